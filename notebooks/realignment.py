# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What does realignment cost, and why?
#
# After a round the rows of a batch have different lengths. A layout that keeps a rectangle must move K/V before the next round. Is that
# expensive because of the bytes, or because of the number of operations that the host starts? And what does it mean for throughput?
#
# Inputs: `docs/results/anatomy-cpu.json`, `docs/results/bench-cpu.json`, the costs of `cpu/tiny`, the bundled pair

# %%
# To study your own machine, change this cell: outputs of `raggedspec anatomy` and `raggedspec bench`, a folder of `raggedspec calibrate`.
ANATOMY, BENCH = "../docs/results/anatomy-cpu.json", "../docs/results/bench-cpu.json"
CALIBRATION, TRACE = "cpu/tiny", "validation/cpu/tiny/fit/acceptance.ndjson.gz"
BATCH, CONTEXT = 8, 256  # shown below; both must be among those that were measured

# %%
import json
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import refimpl
from refimpl.viz.rounds import ragged_batch
from refimpl.viz.style import BLUE, GREY, ORANGE, captioned, new_axes

# %% [markdown]
# ## Layouts side by side
#
# The same round in three layouts. `realigned` shifts rows to a common end, `masked` leaves holes, `inplace` lets each row end where it ends.

# %%
pair, prompts = refimpl.load_pair("tiny"), ["def area(r", "import os", "class A:\n    def", "x ="]
seen, unused = {}, {}
for method in ("eqspec", "masked", "inplace"):
    rounds = list(refimpl.watch(pair, prompts, method=method, batch_size=4, num_speculative_tokens=4, max_new_tokens=14))
    seen[method] = rounds[2]
    kinds = [kind for row in rounds[2].rows for kind in row.kinds]
    used = len(kinds) - sum(kinds.count(kind) for kind in ("pad", "hole", "free"))
    unused[method] = f"{used} of {len(kinds)} slots are in use ({kinds.count('pad')} pads, {kinds.count('hole')} holes); {rounds[2].record.num_moves} moves of K/V"

# %%
captioned(ragged_batch(seen["eqspec"]), f"Realigned: {unused['eqspec']}.")

# %%
captioned(ragged_batch(seen["masked"]), f"Masked: {unused['masked']}.")

# %%
captioned(ragged_batch(seen["inplace"]), f"In place: {unused['inplace']}.")

# %% [markdown]
# ## What was measured
#
# Every layout ran with the same forced acceptance. `per_row` is the published way: row by row and layer by layer. `eqspec` moves the same
# entries with one fused gather for each model.

# %%
anatomy = json.loads(Path(ANATOMY).read_text())
measured = pd.DataFrame(anatomy["rows"]).query("context_tokens == @CONTEXT")
axes = new_axes()
ROW_BY_ROW, FUSED = "row by row (per_row)", "fused (eqspec)"
styles = {"per_row": (ROW_BY_ROW, ORANGE, "-"), "eqspec": (FUSED, BLUE, "-"), "masked": ("masked", GREY, "-"), "inplace": ("in place", GREY, ":")}
for name, (label, color, dashes) in styles.items():
    line = measured[measured["engine"] == name]
    axes.plot(line["batch_size"], line["realign_ms_per_round"], dashes, marker="o", label=label, color=color)

# %%
axes.set(xlabel="batch size (rows)", ylabel="moving K/V (ms per round)", ylim=(0, None))
axes.legend(frameon=False)
at = measured[measured["batch_size"] == BATCH].set_index("engine")
captioned(axes, f"At batch {BATCH} and {CONTEXT} tokens of context, moving takes {at.loc['per_row', 'realign_ms_per_round']:.1f} ms a round row by row, "
          f"{at.loc['eqspec', 'realign_ms_per_round']:.1f} ms fused, and {at.loc['inplace', 'realign_ms_per_round']:.2f} ms in place.")

# %% [markdown]
# ## Bytes or operations?
#
# If bytes were the cost, all points would lie on one line, that of the memory's bandwidth. What lies above the line is spent on starting operations.

# %%
moved = pd.DataFrame(anatomy["rows"]).query("bytes_per_round > 0 and batch_size > 1")
axes, bandwidth = new_axes(), anatomy["meta"]["rates"]["bytes_per_s"]
for name, label, color, below in (("per_row", ROW_BY_ROW, ORANGE, 3), ("eqspec", FUSED, BLUE, -9)):
    points = moved[moved["engine"] == name]
    axes.scatter(points["bytes_per_round"] / 1e6, points["realign_ms_per_round"], color=color, label=label)
    for _, point in points.iterrows():
        axes.annotate(f"{point['host_operations_per_round']:.0f}", (point["bytes_per_round"] / 1e6, point["realign_ms_per_round"]), fontsize=7, xytext=(4, below), textcoords="offset points")

# %%
end = moved["bytes_per_round"].max() / 1e6
axes.plot([0, end], [0, 1e9 * end / bandwidth], color=GREY, label=f"bandwidth, {bandwidth / 1e9:.0f} GB/s")
axes.set(xlabel="K/V read and written (MB per round); numbers: operations", ylabel="moving K/V (ms per round)", xlim=(0, None), ylim=(0, None))
axes.legend(frameon=False)
floor = 1e3 * at["bytes_per_round"] / bandwidth
over = (at["realign_ms_per_round"] - floor)["per_row"] / at.loc["per_row", "host_operations_per_round"] * 1e3
captioned(axes, f"Row by row, {at.loc['per_row', 'host_operations_per_round']:.0f} operations cost {over:.1f} µs each beyond their bytes; "
          f"the fused gather reaches {100 * at.loc['eqspec', 'fraction_of_bandwidth']:.0f} % of the bandwidth.")

# %% [markdown]
# ## What it means for a round
#
# Measured rounds with real acceptance, by stage.

# %%
bench = pd.DataFrame(json.loads(Path(BENCH).read_text())["rows"]).query("batch_size == @BATCH").set_index("engine")
shown = bench.loc[["rollback", "masked", "eqspec", "exspec", "inplace"]]
axes, left = new_axes(), 0
for stage, color in (("draft", "#d9d9d9"), ("verify", "#b3b3b3"), ("host", "#8c8c8c"), ("realign", ORANGE)):
    axes.barh(shown.index, shown[f"ms_{stage}"], left=left, color=color, label="moving K/V" if stage == "realign" else stage)
    left = left + shown[f"ms_{stage}"]

# %%
axes.set(xlabel="time of a round (ms)")
axes.invert_yaxis()
axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
captioned(axes, f"At batch {BATCH}, moving K/V takes {100 * shown.loc['eqspec', 'share_realign']:.0f} % of an EQSPEC round and "
          f"{100 * shown.loc['exspec', 'share_realign']:.0f} % of an EXSPEC round; in place, {100 * shown.loc['inplace', 'share_realign']:.1f} %.")

# %% [markdown]
# ## What it means for throughput
#
# From EQSPEC to in place two things change: nothing is moved, and free rows are refilled at once. The simulator separates them. The black
# bars are 95 % intervals.

# %%
from simulator import Scenario, attribute, plots

base = Scenario(study={"num_requests": 48}, cost={"kind": "table", "calibration": CALIBRATION}, acceptance={"kind": "bootstrap", "path": TRACE},
                workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 8, "high_tokens": 120}})
eqspec, inplace = (base.but({"engine.batch_size": BATCH}, method=method) for method in ("eqspec", "inplace"))
shares = attribute(eqspec, inplace, replications=10)
shares.table

# %%
axes = plots.waterfall(shares)
axes.set(ylabel="tokens per second")
steps = [{"refill": "refilling", "alignment cost": "not moving K/V"}[name] for name in shares.table.index.drop("total")]
axes.set_xticks(range(len(steps) + 2), ["EQSPEC", *steps, "in place"], rotation=0, ha="center")
refill, moves = (shares.table.loc[name, "share"] for name in ("refill", "alignment cost"))
captioned(axes, f"Simulated, EQSPEC makes {shares.a:.0f} tokens/s; not moving K/V brings {moves:+.0f} and refilling {refill:+.0f}.")

# %% [markdown]
# ## Answer

# %%
needed = floor / at["realign_ms_per_round"]
mostly = {name: "for the bytes" if share > 0.5 else "to start operations" for name, share in needed.items()}
Markdown(
    f"At batch {BATCH} and {CONTEXT} tokens of context, moving K/V takes {100 * at.loc['per_row', 'share_realign']:.0f} % of a round row by row, most of it {mostly['per_row']}, and {100 * at.loc['eqspec', 'share_realign']:.0f} % fused, most of it {mostly['eqspec']}.\n\n"
    f"- The bytes alone would take {100 * needed['per_row']:.0f} % of the time row by row, and {100 * needed['eqspec']:.0f} % of the time fused.\n"
    f"- Row by row, {at.loc['per_row', 'bytes_per_round'] / 1e6:.0f} MB are moved a round, and fused {at.loc['eqspec', 'bytes_per_round'] / 1e6:.0f} MB. One operation costs {over:.1f} µs beyond its bytes on this CPU.\n"
    f"- In place nothing moves: {100 * at.loc['inplace', 'share_realign']:.1f} % of a round.\n"
    f"- For throughput, refilling free rows matters {'more' if refill > moves else 'less'} ({refill:+.0f} tokens/s) than not moving ({moves:+.0f}), in the simulation of batch {BATCH}.\n"
    f"- Measured on {anatomy['meta']['device']}; on another device, operations and bytes have other prices."
)
