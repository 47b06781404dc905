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
# # Which k, which drafter, which budget, and does speculation pay at this batch size?
#
# More drafts mean more tokens a round, and longer rounds. Which number is best depends on the batch, because a verify pass is bound by
# reading weights while the batch is small, and by arithmetic once it is large. Budgets that adapt choose the number as requests come and go.
#
# Inputs: the facts of devices and models in `simulator/data`, `docs/results/budgets-h100.json`, `docs/results/budgets-cpu.json`, `docs/results/bench-cpu.json`

# %%
# To ask about your own machine, change this cell: RUNS is what `raggedspec sim study budgets --out FILE` writes, BENCH what `raggedspec bench` does.
DEVICE, TARGET, DRAFT, ACCEPTANCE = "h100", "qwen3-8b", "qwen3-0.6b", 0.7
RUNS, BENCH = "../docs/results/budgets-h100.json", "../docs/results/bench-cpu.json"
CURVE = "../docs/results/budgets-cpu.json"

# %%
import json
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, Spec, plots, simulate
from simulator.runner import mean_interval
from simulator.service.roofline import RooflineCost
from simulator.studies.crossing import BATCH_SIZES, speedups

# %% [markdown]
# ## By formula: which k
#
# Tokens of a round, (1 − α^(k+1)) / (1 − α), over its seconds, against one token over those of a plain round; 400 tokens of context.

# %%
COST = {"kind": "roofline", "device": DEVICE, "target": TARGET, "draft": DRAFT}
cost = RooflineCost(Spec.of(**COST), None)
gains = pd.DataFrame(speedups(cost, ACCEPTANCE, [400])[:, :, 0].T, index=BATCH_SIZES, columns=range(1, 9))
axes = plots.panels(1, height=3.6)[0]
for color, k in zip((plots.BLUE, plots.ORANGE, plots.GREY), (1, 3, 8), strict=True):
    axes.plot(gains.index, gains[k], marker="o", markersize=3, color=color, label=f"{k} drafts" if k > 1 else "1 draft")
axes.axhline(1, color="black", linewidth=0.8)
axes.set(xscale="log", xlabel="batch size (rows)", ylabel="times as fast as\nwithout drafts")
axes.set_xticks([1, 8, 32, 128, 512], ["1", "8", "32", "128", "512"])

# %% [markdown]
# ## By simulation
#
# Three drafts at the same batch sizes, with prompts, refilled rows and acceptance that differs between requests. The intervals (95 %) are
# those of the mean over the uncertain constants of the device. Time for prompts, the same number with and without drafts, is included.

# %%
WORKLOAD = {"prompt_tokens": {"kind": "uniform", "low_tokens": 100, "high_tokens": 500}, "output_tokens": {"kind": "geometric", "mean_tokens": 150}}
SPREAD = {"kind": "beta", "a": 10 * ACCEPTANCE, "b": 10 - 10 * ACCEPTANCE}
base = Scenario(cost=COST, workload=WORKLOAD, acceptance=SPREAD, engine={"max_new_tokens": 512})
found = {}
for size in (1, 8, 32, 128):
    crowd = base.but({"engine.batch_size": size, "study.num_requests": 8 * size, "engine.num_speculative_tokens": 3})
    three, none = (simulate(each, 5, keep_frames=False).metrics["tokens_per_s"] for each in (crowd, crowd.but({"engine.num_speculative_tokens": 0})))
    found[size] = mean_interval((three / none).to_numpy(), 0.95)[:3]
simulated = pd.DataFrame(found, index=["gain", "low", "high"]).T

# %%
errors = [simulated["gain"] - simulated["low"], simulated["high"] - simulated["gain"]]
axes.errorbar(simulated.index, simulated["gain"], errors, fmt="s", capsize=3, color="black", label="3 drafts, simulated")
axes.legend(frameon=False)
ends = [f"{gains[3][size]:.2f} × as fast at batch {size} (simulated: {simulated['gain'][size]:.2f} ×)" for size in (1, 128)]
apart = (simulated["gain"] - gains.loc[simulated.index, 3]).abs().idxmax()
plots.captioned(axes, f"By formula, three drafts make decoding {ends[0]} and {ends[1]}; the two differ most at batch {apart}, {gains[3][apart]:.2f} × and {simulated['gain'][apart]:.2f} ×.")

# %% [markdown]
# ## By measurement
#
# The engine itself, with the bundled pair on two CPU cores: speed over its own plain decoding at the same batch size. The bars reach from
# the slowest to the fastest run.

# %%
bench = json.loads(Path(BENCH).read_text())
measured = pd.DataFrame(bench["rows"]).pivot_table(index="engine", columns="batch_size", values=["tokens_per_s", "tokens_per_s_min", "tokens_per_s_max"])
plain = measured.loc["autoregressive_batched", "tokens_per_s"]
engine, low, high = (measured[name].loc[["rollback", "eqspec", "inplace"]] / plain for name in ("tokens_per_s", "tokens_per_s_min", "tokens_per_s_max"))
few, many = min(engine), max(engine)

# %%
axes = plots.new_axes(6.0, 3.0)
for size, color in ((few, plots.BLUE), (many, plots.ORANGE)):
    axes.errorbar(engine.index, engine[size], [engine[size] - low[size], high[size] - engine[size]], fmt="o", capsize=3, color=color, label=f"batch {size}")
axes.axhline(1, color="black", linewidth=0.8)
axes.set(ylabel="times as fast as\nwithout drafts", ylim=(0, None), xlim=(-0.5, 2.5))
axes.legend(frameon=False)
drawn = bench["meta"]["settings"]["num_speculative_tokens"]
plots.captioned(axes, f"Measured with {drawn} drafts, in place decodes {engine.loc['inplace', few]:.2f} × as fast as with none at batch {few} and {engine.loc['inplace', many]:.2f} × at batch {many}; rollback, {engine.loc['rollback', few]:.2f} × and {engine.loc['rollback', many]:.2f} ×.")

# %% [markdown]
# ## Which budget, over load
#
# Requests arrive at different rates. `by_load` has a table from rows to drafts, made from the same costs and the mean acceptance. `goodput`
# has the costs alone, and learns acceptance from what rows have accepted. Lines are medians of the replications, and bands go from
# the least to the greatest of them.

# %%
data = json.loads(Path(RUNS).read_text())
runs = pd.DataFrame(data["runs"])
upper, lower = plots.panels(2, height=2.8)
chosen = runs.assign(drafts=runs["budget"].replace("fixed 0", "none"), token_ms=1000 * runs["per_token_mean_s"])
chosen = chosen[chosen["drafts"].isin(["none", "by_load", "goodput"])].drop(columns="budget")
plots.band_against(chosen, "rate_per_s", "tokens_per_s", upper, by="drafts", labels={"none": "no drafts"})
plots.band_against(chosen, "rate_per_s", "token_ms", lower, by="drafts", labels={"none": "no drafts"})
upper.set(xlabel="", ylabel="tokens per second", ylim=(0, None))
lower.set(xlabel="requests that arrive per second", ylabel="milliseconds per token\nafter the first", ylim=(0, None))
lower.get_legend().remove()

# %%
judged = pd.DataFrame(data["judged"]).set_index(["budget", "over", "rate_per_s"])
slow, fast = runs["rate_per_s"].min(), runs["rate_per_s"].max()
none = judged.xs("fixed 0", level="over")["throughput"]
plots.captioned(upper, f"At {fast:g} requests per second, by_load makes {none['by_load', fast]:.2f} × the tokens per second that no drafts make, and goodput {none['goodput', fast]:.2f} ×.")

# %% [markdown]
# ## Which budget, by measurement
#
# The engine with the bundled pair on one CPU thread (with 95 % intervals): tokens per second over those without drafts at the same
# batch size.

# %%
curve = pd.DataFrame(json.loads(Path(CURVE).read_text())["rows"]).set_index(["budget", "batch_size"])
axes = plots.new_axes(6.0, 3.2)
for shift, (name, color) in enumerate({"fixed 5": plots.GREY, "by_load": plots.BLUE, "goodput": plots.ORANGE}.items()):
    part = curve.loc[name]
    speed, low, high = (part["over_none"].str[i] for i in range(3))
    axes.errorbar(part.index * 1.05**shift, speed, [speed - low, high - speed], fmt="o", markersize=4, capsize=3, color=color, label=name)
axes.axhline(1, color="black", linewidth=0.8)

# %%
sizes = curve.index.get_level_values("batch_size").unique()
axes.set(xscale="log", xlabel="batch size (rows)", ylabel="times as fast as\nwithout drafts")
axes.set_xticks(sizes, sizes.astype(str))
axes.legend(frameon=False)
ends = [f"{curve.loc[('by_load', size), 'over_none'][0]:.2f} × the tokens of no drafts at batch {size}" for size in (sizes[0], sizes[-1])]
plots.captioned(axes, f"Measured, by_load makes {ends[0]} and {ends[1]}.")

# %% [markdown]
# ## Which drafter
#
# A lookup costs nothing on the device, but finds something in a share of the rounds only. Batch 16, 3 drafts, tokens per second over those
# of the draft model; a looked-up token is right with probability 0.5.

# %%
asked = base.but({"engine.batch_size": 16, "engine.num_speculative_tokens": 3})
model = simulate(asked, 5, keep_frames=False)["tokens_per_s"]
lines = {}
for share in (0.25, 0.5, 0.75, 1.0):
    looks = {"lookup": {"kind": "iid", "found": share, "probability": 0.5}}
    hybrid = asked.but({"engine.drafter": "hybrid", **looks})
    ngram = asked.but({"engine.drafter": "ngram", "cost.draft": "", **looks})
    lines[share] = {name: simulate(each, 5, keep_frames=False)["tokens_per_s"] / model for name, each in (("ngram", ngram), ("hybrid", hybrid))}
drafters = pd.DataFrame(lines).T.rename_axis("rounds that find something").round(2)

# %% [markdown]
# ## Answer

# %%
over = judged.loc["by_load"].reset_index()
below = over[over["over"].str.startswith("best")]["token_speed"].min()
best = {size: int(gains.loc[size].idxmax()) if gains.loc[size].max() > 1 else 0 for size in (1, 64)}
take = [f"{k or 'no'} draft{'s' * (k != 1)} at batch {size}" for size, k in best.items()]
pays = gains.index[gains[3] > 1]
reach = f"3 drafts pay up to batch {pays.max()}" if len(pays) else "3 drafts pay at no batch size"

# %%
Markdown(
    f"On {DEVICE} with {TARGET} and {DRAFT}, take {take[0]} and {take[1]}; {reach}. In the runs of {Path(RUNS).stem}, a table by load (by_load) gives tokens at least {below:.2f} × as fast as the best fixed number at every rate tried.\n\n"
    f"- Where it loses: 8 drafts at batch 128 have {gains[8][128]:.2f} × the speed of plain decoding; measured at batch {many}, rollback has {engine.loc['rollback', many]:.2f} ×, in place {engine.loc['inplace', many]:.2f} ×.\n"
    f"- In these runs goodput, which is not told how many drafts are accepted, makes {none['goodput', fast]:.2f} × the tokens of no drafts at {fast:g} requests per second, where by_load makes {none['by_load', fast]:.2f} ×.\n"
    f"- A lookup that finds something in a quarter of the rounds makes {drafters.loc[0.25, 'ngram']:.2f} × of the draft model's tokens/s, one that always does {drafters.loc[1.0, 'ngram']:.2f} ×."
)
