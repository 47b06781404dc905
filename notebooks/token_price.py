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
# # What does a million tokens cost?
#
# A fleet has to serve a given traffic, and 95 % of its requests within limits. For each device, `raggedspec sim plan` chooses how many, and
# the rows, drafts and method of each. How much do drafts save, and how does that depend on how many of them are accepted?
#
# Inputs: the facts of devices and models in `simulator/data`; prices of a device-hour, which are assumed

# %%
# To plan your own fleet, change this cell: prices of one device for an hour in any currency, models, lengths, limits, traffic, acceptance.
PRICES = {"h100": 2.50, "l40s": 0.90}
MODELS = {"target": "qwen3-8b", "draft": "qwen3-0.6b"}
WORKLOAD = {"prompt_tokens": {"kind": "lognormal", "median_tokens": 300, "sigma": 0.6, "max_tokens": 1200}, "output_tokens": {"kind": "geometric", "mean_tokens": 120}}
LIMITS = {"slo_first_token_s": 1.0, "slo_per_token_s": 0.03}  # until the first token, and for each further one
RATE_PER_S, KEPT = 400, 0.95  # requests per second of the whole service; share of them that must be in time
ACCEPTANCE, SPREAD = [0.5, 0.7, 0.85], 0.15  # mean probabilities that a draft is right; their standard deviation over requests

# %%
from itertools import product

import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, find_plan, plots
from simulator.studies.whatif import WhatIf

# %%
study = {"kind": "open", "num_requests": 120, "arrivals": {"kind": "poisson", "rate_per_s": RATE_PER_S}}
base = Scenario(study=study, workload=WORKLOAD, engine={"max_new_tokens": 512}, cost={"kind": "roofline", "device": next(iter(PRICES)), **MODELS}, service=LIMITS)
asked = {0.0: base} | {level: WhatIf(acceptance=level, deviation=SPREAD).scenario(base, "paged+continuous") for level in ACCEPTANCE}
CHOICES = {"method": ("paged+continuous",), "batch_size": (128,)}

# %% [markdown]
# ## The cheapest fleet of each device
#
# For every level of acceptance the best of 1, 3 and 5 drafts; and once no drafts, which acceptance makes no difference to. The bars are 95 %
# intervals: each replication draws other requests, and the constants of the device anew.

# %%
lines = []
for (device, price), (level, scenario) in product(PRICES.items(), asked.items()):
    drafts = (1, 3, 5) if level else (0,)
    plan = find_plan(scenario, {device: price}, KEPT, axes={**CHOICES, "num_speculative_tokens": drafts}, tries=2, replications=3)
    best = plan.fleets[0].as_mapping()
    lines.append({"level": level, **best, **best["cost_per_million_tokens"]})
plans = pd.DataFrame(lines).set_index(["device", "level"])

# %%
axes = plots.new_axes()
for device, style in zip(PRICES, plots.series_styles(len(PRICES)), strict=True):
    found, plain = plans.loc[device].loc[ACCEPTANCE], plans.loc[(device, 0.0), "mean"]
    axes.errorbar(found.index, found["mean"], [found["mean"] - found["low"], found["high"] - found["mean"]], marker="o", capsize=3, label=device, **style)
    axes.axhline(plain, color=style.get("color"), linestyle=":", label=f"{device}, no drafts")
axes.set(xlabel="probability that a draft is right", ylabel="a million tokens", ylim=(0, None), xticks=ACCEPTANCE)
axes.legend(frameon=False)
cheapest = plans["mean"].idxmin()
plots.captioned(axes, f"A million tokens cost {plans['mean'].min():.2f} at least ({cheapest[0]}, acceptance {cheapest[1]:g}) and {plans['mean'].max():.2f} at most.")

# %% [markdown]
# ## Answer

# %%
mean = plans["mean"].unstack("level")  # by device
prices = {device: " / ".join(f"{value:.2f}" for value in mean.loc[device, ACCEPTANCE]) for device in PRICES}
saved = {device: " / ".join(f"{100 * (1 - value / mean.loc[device, 0.0]):.0f}" for value in mean.loc[device, ACCEPTANCE]) for device in PRICES}
middle = plans.xs(ACCEPTANCE[len(ACCEPTANCE) // 2], level="level")
fleets = [f"{line['replicas']} × {device}, {line['batch_size']} rows, {line['num_speculative_tokens']} drafts: {line['price_per_hour']:.2f} an hour, {line['tokens_per_joule']:.2f} tokens per joule" for device, line in middle.iterrows()]

# %%
Markdown(
    f"With acceptance {' / '.join(map(str, ACCEPTANCE))}, a million tokens cost {' and '.join(f'{prices[device]} on {device}' for device in PRICES)}; without drafts {' and '.join(f'{mean.loc[device, 0.0]:.2f}' for device in PRICES)} (at {' and '.join(f'{price:.2f}' for price in PRICES.values())} a device-hour).\n\n"
    + "".join(f"- **{device}**: drafts save {saved[device]} % of the cost.\n" for device in PRICES)
    + "".join(f"- **Fleet** for {RATE_PER_S} requests per second at acceptance {ACCEPTANCE[len(ACCEPTANCE) // 2]}: {fleet}.\n" for fleet in fleets)
    + "- Energy is a lower bound: each device counts with the limit of its power."
)
