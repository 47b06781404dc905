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
# # How large should the EXSPEC pool be?
#
# EXSPEC picks rows of equal length from a window of W sequences, so that nothing needs realigning. A larger window finds such groups more
# often. But each sequence in it holds K/V memory and waits longer for its turn. What does a larger window buy, and what does it cost?
#
# Inputs: assumed costs; a trace of the engine with the bundled pair, `simulator/data`

# %%
# To study your own engine, change this cell: {"kind": "table", "calibration": FOLDER}, and a trace of `raggedspec generate --trace`.
COST = {"kind": "linear", "verify_base_s": 0.025, "draft_base_s": 0.003, "concat_base_s": 0.001, "realign_base_s": 0.001}
DEAR = {"realign_read_s": 16e-6, "realign_layers": 32}  # the published realignment reads (6 B + 2) numbers per layer
ACCEPTANCE = {"kind": "bootstrap", "path": "validation/cpu/tiny/fit/acceptance.ndjson.gz"}
LENGTHS = {
    "of mixed lengths": {"kind": "uniform", "low_tokens": 8, "high_tokens": 120},
    "of 16 tokens each": {"kind": "fixed", "tokens": 16},
}
WINDOWS, BATCH, REPLICATIONS = [4, 8, 16, 32, 64, 96], 4, 10

# %% [markdown]
# Costs are assumed, not measured: a verify pass of 25 ms, a draft pass of 3 ms, 1 ms for any move of K/V. The published
# realignment also reads single numbers from the device, at about 16 µs each. Acceptance is drawn, request by request, from the trace.

# %%
import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, attribute, build_sweep, plots, simulate, sweep

WINDOW, SIZE = "engine.window_size", "engine.batch_size"
engine = {"layout": "realigned", "scheduler": "grouped", "batch_size": BATCH, "window_size": BATCH, "max_new_tokens": 48}
fused = Scenario().but(engine=engine, study={"num_requests": 96}, acceptance=ACCEPTANCE, cost=COST)
base = fused.but(switches=DEAR)

# %% [markdown]
# ## Grouped rounds are not the goal
#
# The share of grouped rounds says how often nothing is moved. Tokens per second is what a user gets. Here and below, lines are medians of
# the replications, and bands go from the least to the greatest of them.

# %%
parts = []
for name, lengths in LENGTHS.items():
    spec = build_sweep(base.but({"workload.prompt_tokens": lengths}), replications=REPLICATIONS, grid={WINDOW: WINDOWS})
    parts.append(sweep(spec).assign(prompts=name))
frame = pd.concat(parts)
means = frame.groupby(["prompts", WINDOW])[["grouping_rate", "tokens_per_s", "realign_share", "latency_mean_s"]].mean()
rate, speed = means["grouping_rate"].unstack(0) * 100, means["tokens_per_s"].unstack(0)
gain = 100 * (speed / speed.iloc[0] - 1)
mixed, equal = LENGTHS

# %%
upper, lower = plots.panels(2)
plots.band_against(frame.assign(grouping_rate=100 * frame["grouping_rate"]), WINDOW, "grouping_rate", upper, by="prompts")
upper.set(xlabel="", ylabel="grouped rounds (%)", ylim=(0, 100))
plots.band_against(frame, WINDOW, "tokens_per_s", lower, by="prompts")
lower.set(xlabel="window (sequences)", ylabel="tokens per second", ylim=(0, None))
lower.legend().remove()
at = 32
plots.captioned(upper, f"A window of {at} groups {rate[mixed][at]:.0f} % of the rounds on mixed prompts ({gain[mixed][at]:+.0f} % tokens/s), "
                f"and {rate[equal][at]:.0f} % on equal ones ({gain[equal][at]:+.0f} %).")

# %% [markdown]
# Where a realignment is one fused copy, without reads from the device, there is less to save:

# %%
spec = build_sweep(fused.but({"workload.prompt_tokens": LENGTHS[equal]}), replications=REPLICATIONS, grid={WINDOW: WINDOWS})
cheap = sweep(spec).groupby(WINDOW)["tokens_per_s"].mean()
cheap_gain = 100 * (cheap / cheap.iloc[0] - 1)

# %% [markdown]
# ## Window and batch size
#
# A full group needs as many rows of one length as the batch has. The larger the batch, the rarer that is.

# %%
same = base.but({"workload.prompt_tokens": LENGTHS[equal]})
spec = build_sweep(same, replications=REPLICATIONS, grid={SIZE: [2, 4, 8], WINDOW: [8, 16, 32, 64, 96]})
sizes = sweep(spec)
sizes["grouped"] = 100 * sizes["grouping_rate"]
table = sizes.groupby([SIZE, WINDOW])["grouped"].mean()

# %%
axes = plots.heat_map(sizes, WINDOW, SIZE, "grouped", numbers="{:.0f}", vmin=0, vmax=100)
axes.set(xlabel="window (sequences)", ylabel="batch size (rows)")
axes.figure.colorbar(axes.images[0], ax=axes, label="grouped rounds (%)")
plots.captioned(axes, f"On equal prompts, a window of 32 groups {table[2, 32]:.0f} % of the rounds at batch 2 and {table[8, 32]:.0f} % at batch 8.")

# %% [markdown]
# ## Spread of the acceptance
#
# Rows that accept different numbers of drafts drift apart. Each request gets its own acceptance probability with mean 0.6;
# its spread, the standard deviation, is 0 or 0.3.

# %%
parts = []
for deviation in (0.0, 0.3):
    total = 0.24 / deviation**2 - 1 if deviation else 0.0
    drawn = {"kind": "beta", "a": 0.6 * total, "b": 0.4 * total} if deviation else {"kind": "iid", "probability": 0.6}
    spec = build_sweep(same.but(acceptance=drawn), replications=REPLICATIONS, grid={WINDOW: WINDOWS})
    parts.append(sweep(spec).assign(spread=deviation))
spreads = pd.concat(parts)
spreads["grouped"] = 100 * spreads["grouping_rate"]
drift = spreads.groupby(["spread", WINDOW])[["grouped", "tokens_per_s"]].median()

# %%
axes = plots.band_against(spreads, WINDOW, "grouped", by="spread")
axes.set(xlabel="window (sequences)", ylabel="grouped rounds (%)", ylim=(0, None))
without, wide = drift.loc[0.0, 32], drift.loc[0.3, 32]
plots.captioned(axes, f"A spread of 0.3 changes the grouped rounds from {without['grouped']:.0f} % to {wide['grouped']:.0f} % at W = 32, "
                f"and tokens/s by {100 * wide['tokens_per_s'] / without['tokens_per_s'] - 100:+.0f} %.")

# %% [markdown]
# ## Refill or grouping?
#
# Compared with EQSPEC (a static batch), EXSPEC changes two things: it refills free rows at once, and it groups. Which of them brings
# the gain? Each share is a mean over both orders: what a change brings alone, and what it brings after the other. The black bars are 95 %
# intervals of these shares.

# %%
eqspec = same.but(engine={"layout": "realigned", "scheduler": "static", "batch_size": BATCH, "max_new_tokens": 48})
shares = attribute(eqspec, same.but({"engine.window_size": 32}), replications=REPLICATIONS)
alone = simulate(same.but(method="realigned+fifo"), REPLICATIONS)["tokens_per_s"]
axes = plots.waterfall(shares)
axes.set(ylabel="tokens per second")
axes.set_xticks(range(4), ["EQSPEC", "refill", "grouping", "EXSPEC, W = 32"], rotation=0, ha="center")
refill, grouping = (shares.table.loc[name, "share"] for name in ("refill", "grouping"))
plots.captioned(axes, f"On equal prompts, EQSPEC makes {shares.a:.0f} tokens/s; refilling brings {refill:+.0f} and grouping {grouping:+.0f}, as a mean over both orders.")

# %% [markdown]
# ## Waiting
#
# A sequence that fits no group is passed over. After `aging_bound` rounds the next round takes it, grouped or not. These rounds are counted
# from its first one, or from when it is the oldest: one that has not run yet may wait longer in the window.

# %%
bounds = [4, 8, 16, 32, 64, 128]
spec = build_sweep(same.but({"engine.window_size": 32}), replications=REPLICATIONS, grid={"engine.aging_bound": bounds})
aging = sweep(spec)
waits = aging.groupby("engine.aging_bound")[["longest_wait_rounds", "longest_gap_s", "latency_p99_s", "tokens_per_s"]].median()
waits.round(2)

# %%
upper, lower = plots.panels(2)
plots.band_against(aging, "engine.aging_bound", "longest_gap_s", upper)
upper.set(xlabel="", ylabel="longest pause (s)", ylim=(0, None))
plots.band_against(aging, "engine.aging_bound", "latency_p99_s", lower)
lower.set(xlabel="aging bound (rounds)", ylabel="99th percentile\nof latency (s)", ylim=(0, None))
short, long = waits.loc[8], waits.loc[128]
plots.captioned(lower, f"Aging after 8 rounds instead of 128 cuts the longest pause from {long['longest_gap_s']:.1f} s to {short['longest_gap_s']:.1f} s, "
                f"and changes the 99th percentile of latency by {short['latency_p99_s'] - long['latency_p99_s']:+.1f} s.")

# %% [markdown]
# ## Answer

# %%
reached = 100 * gain[equal][32] / gain[equal].max()
cases = {"moves are expensive and prompts have equal lengths": gain[equal], "moves are expensive and prompts have mixed lengths": gain[mixed], "moves are cheap and prompts have equal lengths": cheap_gain}
where = pd.Series({name: gains.max() for name, gains in cases.items()}).idxmax()

# %%
Markdown(
    f"A large pool pays most where {where}: there W = 32 brings {cases[where][32]:+.0f} % tokens/s and W = {cases[where].idxmax()} {cases[where].max():+.0f} %.\n\n"
    f"- With one fused copy instead of the published realignment, W = 32 brings {cheap_gain[32]:+.1f} % and W = 96 {cheap_gain[96]:+.1f} %.\n"
    f"- On prompts of mixed lengths, W = 32 brings {gain[mixed][32]:+.1f} %, since only {rate[mixed][32]:.0f} % of the rounds are grouped.\n"
    f"- On equal prompts, W = 32 has {reached:.0f} % of the largest gain. The K/V of W sequences must fit into memory.\n"
    f"- Refilling free rows brings EQSPEC from {shares.a:.0f} to {alone:.0f} tokens/s without any pool; W = 32 reaches {shares.b:.0f}.\n"
    f"- Waits grow with the aging bound: with 8, the longest pause between two rounds of a sequence is {short['longest_gap_s']:.1f} s, and one in the window is passed over for at most {short['longest_wait_rounds']:.0f} rounds; with 128, {long['longest_gap_s']:.1f} s and {long['longest_wait_rounds']:.0f} rounds."
)
