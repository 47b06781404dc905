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
# # Will it pay on my GPU with my models?
#
# No GPU is needed here: seconds come from the facts of a device and of two models, with what is uncertain about them drawn anew in
# every replication. [The reproduction page](../docs/reproduction.md) and `raggedspec sim validate --roofline` say how far such costs are from
# published measurements. Requests arrive at random, and what counts is how long the slowest 1 % of them take, from arrival to last token.
#
# Inputs: the facts of devices and models in `simulator/data`

# %%
# To ask about your own machine, change this cell. Devices and models go by name (the files in `simulator/data/devices` and `architectures`), or by a
# YAML file; {"kind": "table", "calibration": FOLDER} takes costs that `raggedspec calibrate` has measured instead.
COST = {"kind": "roofline", "device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"}
ACCEPTANCE, SPREAD = 0.7, 0.15  # mean probability that a draft is right, and its standard deviation over requests
RATE_PER_S, NUM_REQUESTS = 12.0, 192  # traffic: requests per second, and how many of them are simulated
WORKLOAD = {"prompt_tokens": {"kind": "uniform", "low_tokens": 100, "high_tokens": 500}, "output_tokens": {"kind": "geometric", "mean_tokens": 150}}
MAX_NEW_TOKENS = 512
SIZES, DRAFTS = [8, 16, 32, 64], [0, 1, 2, 3, 4, 6]  # to choose from: rows that run at a time, and drafts

# %%
from dataclasses import replace

import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, build_sweep, compare, plots, sweep
from simulator.runner import mean_interval
from simulator.studies.whatif import METHODS, WhatIf, speedup

# %%
ROWS, K, RATE, P99, REPLICATIONS = "engine.batch_size", "engine.num_speculative_tokens", "study.arrivals.rate_per_s", "latency_p99_s", 5
study = {"kind": "open", "num_requests": NUM_REQUESTS, "arrivals": {"kind": "poisson", "rate_per_s": RATE_PER_S}}
base = Scenario(cost=COST, workload=WORKLOAD, study=study, engine={"max_new_tokens": MAX_NEW_TOKENS})
again = {"seed": 1}  # other requests and other constants than those that a choice was made with
usual = WhatIf(acceptance=ACCEPTANCE, deviation=SPREAD)

# %% [markdown]
# ## How many rows, how many drafts
#
# The same requests with every choice, in place. More rows let more requests run at a time, and make each round longer; with no drafts a
# round makes one token for each row.

# %%
tried = sweep(build_sweep(usual.scenario(base, "inplace"), replications=REPLICATIONS, grid={ROWS: SIZES, K: DRAFTS}))
means = tried.groupby([K, ROWS])[P99].mean()
drafts, rows = map(int, means.drop(0, level=K).idxmin())
plain_rows = int(means[0].idxmin())

# %%
axes = plots.heat_map(tried, K, ROWS, P99, numbers="{:.2f}", cmap="viridis_r")
axes.set(xlabel="drafts per row and round", ylabel="batch size (rows)")
axes.figure.colorbar(axes.images[0], ax=axes, label="99th percentile of latency (s)")
some = f"{drafts} draft{'s' * (drafts != 1)}"
plots.captioned(axes, f"With {some} and at most {rows} rows at a time, 1 % of the requests take longer than {means[drafts, rows]:.2f} s; without drafts, {means[0, plain_rows]:.2f} s with {plain_rows} rows.")

# %% [markdown]
# ## Which method, which window
#
# All methods with that number of drafts and rows, beside no drafts in place. EXSPEC chooses rows from a window of W sequences, which may be
# larger than the batch. The bars are 95 % intervals of the difference, on the same requests. The best of many was partly lucky, so numbers
# that were chosen are simulated anew, here and below, with requests and constants that the choice has not seen.

# %%
chosen = replace(usual, batch_size=rows, num_speculative_tokens=drafts)
offers = {"no drafts": replace(usual, batch_size=plain_rows, num_speculative_tokens=0).scenario(base, "inplace")}
offers |= {method: chosen.scenario(base, method) for method in METHODS if method != "exspec"}
offers |= {f"exspec, W = {n * rows}": replace(chosen, window_size=n * rows).scenario(base, "exspec") for n in (1, 2, 4)}
offers = {name: scenario.but(again) for name, scenario in offers.items()}
found = compare(offers, replications=REPLICATIONS).of(P99).sort_values("difference")
(best, second), pool = found.index[:2], found.index[found.index.str.startswith("exspec")][0]

# %%
axes = plots.new_axes()
axes.errorbar(found.index, found["difference"], [found["difference"] - found["low"], found["high"] - found["difference"]], fmt="o", capsize=3, color=plots.BLUE)
axes.axhline(0, color=plots.ORANGE)
axes.set(ylabel="99th percentile of latency,\nseconds more than without drafts")
axes.set_xticks(range(len(found)), found.index, rotation=20, ha="right")
plots.captioned(axes, f"1 % of the requests take longer than {found['b'][best]:.2f} s with {best} and {found['b'][second]:.2f} s with {second}; without drafts, {found['a'][best]:.2f} s.")

# %% [markdown]
# ## What would change the answer
#
# One thing at a time, in place with that number of rows. Each case has the number of drafts that is best for it.

# %%
cases = {"as above": (chosen, base)}
cases |= {f"acceptance {value:.2f}": (replace(chosen, acceptance=value), base) for value in (0.75 * ACCEPTANCE, (1 + ACCEPTANCE) / 2)}
cases |= {"all requests accept alike": (replace(chosen, deviation=0.0), base)}
cases |= {f"{factor} × the traffic": (chosen, base.but({RATE: factor * RATE_PER_S})) for factor in (0.5, 1.5)}
cases |= {"half the rows": (replace(chosen, batch_size=max(rows // 2, 1)), base)}

# %%
lines = {}
for name, (question, where) in cases.items():
    asked = question.scenario(where, "inplace")
    tried = sweep(build_sweep(asked, replications=REPLICATIONS, grid={K: DRAFTS}))
    k = int(tried[tried[K] > 0].groupby(K)[P99].mean().idxmin())
    anew = sweep(build_sweep(asked.but(again), replications=REPLICATIONS, grid={K: [0, k]})).pivot(index="replication", columns=K, values=P99)
    lines[name] = (k, *mean_interval((anew[k] / anew[0]).to_numpy(), 0.95)[:3])
changes = pd.DataFrame(lines, index=["drafts", "share", "low", "high"]).T.iloc[::-1]

# %%
axes = plots.new_axes()
errors = [changes["share"] - changes["low"], changes["high"] - changes["share"]]
axes.errorbar(changes["share"], [f"{name} ({line['drafts']:.0f} {'draft' if line['drafts'] == 1 else 'drafts'})" for name, line in changes.iterrows()], xerr=errors, fmt="o", capsize=3, color=plots.BLUE)
axes.axvline(1, color=plots.ORANGE)
axes.set(xlabel="99th percentile of latency over that without drafts", xlim=(0, None))
ends = [f"{changes['share'][name]:.2f} × with {name}" for name in (changes["share"].idxmin(), changes["share"].idxmax())]
plots.captioned(axes, f"The slowest 1 % of the requests take {changes['share']['as above']:.2f} × as long with drafts as without: {ends[0]}, {ends[1]}.")

# %% [markdown]
# ## Answer

# %%
machine = "{device} with {target} and {draft}".format(**COST) if "device" in COST else COST["calibration"]
final = compare({name: offers[name].but({"seed": 2}) for name in dict.fromkeys(("no drafts", best, pool))}, replications=REPLICATIONS).of(P99)
now, exspec = final.loc[best], final.loc[pool]
verdict = "pays" if now["high"] < 0 else "does not pay" if now["low"] > 0 else "may pay"
falling = changes.iloc[::-1]
other = [f"{name} ({line['drafts']:.0f})" for name, line in falling.iterrows() if line["drafts"] != drafts]
lost = [name for name, line in falling.iterrows() if line["high"] >= 1]
gain, least, most = speedup(replace(chosen, rate_per_s=0.0), base)

# %%
Markdown(
    f"On {machine} at {RATE_PER_S:g} requests per second, speculation {verdict}: with {best}, {some} and {rows} rows 1 % of the requests take longer than {now['b']:.2f} s, without drafts {now['a']:.2f} s (95 % interval of the difference {now['low']:+.2f} to {now['high']:+.2f} s).\n\n"
    f"- **Window**: only EXSPEC has one. Its best is {pool.split()[-1]}, with which 1 % take longer than {exspec['b']:.2f} s (difference to no drafts {exspec['low']:+.2f} to {exspec['high']:+.2f} s).\n"
    f"- **Another number of drafts** is best with: {', '.join(other) or 'none of these changes'}.\n"
    f"- **Drafts may not pay** with: {', '.join(lost) or 'none of these changes'}.\n"
    f"- **All requests at once**, in place with as many rows: {gain:.2f} × the tokens/s of no drafts (95 % interval {least:.2f} to {most:.2f}).\n"
    "- The intervals are about the constants of device and engine; the acceptance is yours to measure (`raggedspec verify` prints it)."
)
