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
# # Which method should I choose?
#
# Move the batch size, the window, the number of drafts, the acceptance, its spread over requests and the rate of arrivals, or choose a
# device and models; see what each method does, and which one to take. All methods meet the same requests, so that their difference is paired.
#
# Inputs: the costs of `cpu/tiny`

# %%
# To study your own machine, change this cell: a folder of `raggedspec calibrate`, and the lengths of your requests.
COST = {"kind": "table", "calibration": "cpu/tiny"}
WORKLOAD = {"prompt_tokens": {"kind": "uniform", "low_tokens": 8, "high_tokens": 120}, "output_tokens": {"kind": "geometric", "mean_tokens": 60}}

# %%
import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, plots
from simulator.page import Page
from simulator.studies.whatif import METHODS, WhatIf, outlook
from simulator.studies.whatif_grid import answer_grid

base = Scenario(cost=COST, workload=WORKLOAD)

# %% [markdown]
# ## The panel
#
# Its answers are computed ahead, so that it needs no kernel; `raggedspec sim panel` writes it as a page. Arrivals of 0 per second stand for
# all requests at once: then the method with most tokens per second is recommended, else the one with the lowest 99th percentile of latency.
# Outside the measured range it says so. With a device and models, costs are computed from their facts instead.

# %%
grid = answer_grid(base, axes={"batch_size": (1, 4, 8), "acceptance": (0.5, 0.8), "rate_per_s": (0.0, 5.0)})
Page(grid)

# %% [markdown]
# ## All requests at once
#
# The functions behind the panel are plain: a `WhatIf` is a question, `outlook` answers it.

# %%
lines = []
for size in (1, 2, 4, 8):
    found = outlook(WhatIf(batch_size=size, window_size=4 * size), base)
    lines += [{"batch": size, "method": method, "tokens_per_s": found.results[method]["tokens_per_s"]} for method in METHODS]
speeds = pd.DataFrame(lines)
axes = plots.heat_map(speeds, "batch", "method", numbers="{:.0f}")
axes.set(xlabel="batch size (rows)", ylabel="method")
axes.figure.colorbar(axes.images[0], ax=axes, label="tokens per second")
gain, low, high = found.margin()
plots.captioned(axes, f"At batch 8, {found.ranking[0]} makes {100 * gain:.0f} % more tokens/s than {found.ranking[1]} (95 % interval {100 * low:.0f} to {100 * high:.0f} %).")

# %% [markdown]
# ## Under load

# %%
loaded = outlook(WhatIf(batch_size=8, window_size=32, rate_per_s=5.0), base)
loaded

# %% [markdown]
# ## Answer

# %%
less, least, most = loaded.margin()
makes, has = "makes" if low > 0 else "may make", "has" if least > 0 else "may have"
Markdown(
    f"With the costs of {COST.get('calibration', COST.get('device', COST['kind']))}, take {found.ranking[0]}: at batch 8 it {makes} {100 * gain:.0f} % more tokens/s than the second best, {found.ranking[1]}.\n\n"
    f"- The 95 % interval of that difference is {100 * low:.0f} to {100 * high:.0f} %. It is about the model; [trust](trust.ipynb) says how far costs are off.\n"
    f"- At {loaded.question.rate_per_s:.0f} requests per second, {loaded.ranking[0]} {has} the lowest 99th percentile of latency, {100 * less:.0f} % below that of {loaded.ranking[1]} (95 % interval {100 * least:.0f} to {100 * most:.0f} %).\n"
    "- Move the panel for your own question."
)
