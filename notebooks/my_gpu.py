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
# every replication. [The reproduction page](../docs/reproduction.md) and `raggedspec sim roofline` say how far such costs are from
# published measurements.
#
# Inputs: the facts of devices and models in `simulator/data`

# %%
# To ask about your own machine, change this cell. Devices and models go by name (the files in `simulator/data/devices` and `architectures`), or by a YAML file.
DEVICE, TARGET, DRAFT = "h100", "qwen3-8b", "qwen3-0.6b"
ACCEPTANCE, SPREAD = 0.7, 0.15  # mean probability that a draft is right, and its standard deviation over requests
WORKLOAD = {"prompt_tokens": {"kind": "uniform", "low_tokens": 100, "high_tokens": 500}, "output_tokens": {"kind": "geometric", "mean_tokens": 150}}

# %%
from dataclasses import replace

import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, plots
from simulator.studies.whatif import WhatIf, outlook, speedup

# %%
SIZES, DRAFTS = (1, 4, 16, 64), (1, 2, 3, 4, 6, 8)
COST = {"kind": "roofline", "device": DEVICE, "target": TARGET, "draft": DRAFT}
base = Scenario(cost=COST, workload=WORKLOAD, engine={"max_new_tokens": 512})
usual = WhatIf(acceptance=ACCEPTANCE, deviation=SPREAD)

# %% [markdown]
# ## Drafts against no drafts
#
# The same requests, in place, with and without drafts. Below 1 speculation loses.

# %%
asked = [replace(usual, batch_size=size, num_speculative_tokens=k) for size in SIZES for k in DRAFTS]
gains = pd.DataFrame([{"batch": q.batch_size, "drafts": q.num_speculative_tokens, "gain": speedup(q, base)[0]} for q in asked])
best = gains.loc[gains.groupby("batch")["gain"].idxmax()].set_index("batch")
axes = plots.heat_map(gains, "batch", "drafts", "gain", numbers="{:.2f}")
axes.set(xlabel="batch size (rows)", ylabel="drafts per row and round")
axes.figure.colorbar(axes.images[0], ax=axes, label="speed over no drafts")
ends = [f"{best.loc[size, 'gain']:.2f} × with {best.loc[size, 'drafts']:.0f} at batch {size}" for size in (SIZES[0], SIZES[-1])]
plots.captioned(axes, f"The best number of drafts brings {ends[0]} and {ends[1]}.")

# %% [markdown]
# ## What would change the answer
#
# One thing at a time, at batch 16 with the best number of drafts there.

# %%
chosen = replace(usual, batch_size=16, num_speculative_tokens=int(best.loc[16, "drafts"]))
changes = {
    "as above": chosen,
    f"acceptance {ACCEPTANCE - 0.2:.1f}": replace(chosen, acceptance=ACCEPTANCE - 0.2),
    f"acceptance {ACCEPTANCE + 0.15:.2f}": replace(chosen, acceptance=ACCEPTANCE + 0.15),
    "all requests alike": replace(chosen, deviation=0.0),
    "twice the drafts": replace(chosen, num_speculative_tokens=2 * chosen.num_speculative_tokens),
    "batch 64": replace(chosen, batch_size=64),
}

# %%
sensitivity = pd.DataFrame({name: speedup(question, base) for name, question in changes.items()}, index=["gain", "low", "high"]).T
sensitivity

# %% [markdown]
# ## Which method

# %%
methods = outlook(replace(chosen, window_size=64), base, ("inplace", "exspec", "eqspec", "masked"))
methods

# %% [markdown]
# ## Answer

# %%
now = sensitivity.loc["as above"]
worst = sensitivity["gain"].idxmin()
verdict = "pays" if now["low"] > 1 else "does not pay" if now["high"] < 1 else "may pay"
Markdown(
    f"On {DEVICE} with {TARGET} and {DRAFT}, speculation {verdict} at batch 16: {now['gain']:.2f} × [{now['low']:.2f}, {now['high']:.2f}] with {chosen.num_speculative_tokens} drafts, by {methods.ranking[0]}.\n\n"
    f"- Most of all this depends on: {worst}, which makes it {sensitivity.loc[worst, 'gain']:.2f} ×.\n"
    f"- Of methods: {methods!r}.\n"
    "- The interval is about the constants of device and engine; the acceptance is yours to measure (`raggedspec verify` prints it)."
)
