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
# # How far can I trust the simulator?
#
# The cost of each component was measured on one machine. Then whole runs of the engine were compared with their simulations: other
# batch sizes, windows and k, and other prompts. No cost, no noise and no acceptance was taken from these runs. How large are the
# differences, and what causes them?
#
# Inputs: the calibration and the held-out runs of `simulator/data` (`cpu/tiny`), published measurements in the same folder

# %%
# To look at your own machine, change this cell: the folders that `raggedspec calibrate` has written.
CALIBRATION, VALIDATION = "cpu/tiny", "cpu/tiny"

# %%
import numpy as np
import pandas as pd
from IPython.display import Markdown
from scipy.stats import bootstrap

from simulator import InputError, Scenario, plots, read_validation, simulate
from simulator.settings.calibration import load_calibration
from simulator.settings.folders import PUBLISHED

# %%
calibration, found = load_calibration(CALIBRATION), read_validation(VALIDATION)
{name: found.meta[name] for name in ("device", "pair", "dtype", "torch_threads", "utc_time", "commit")}

# %% [markdown]
# ## Costs between the measured points
#
# Costs are measured at some batch sizes and interpolated between them. To see what interpolation costs, leave each inner batch size out
# and guess its cost from its neighbours. These gaps are twice as wide as those that the simulator has to bridge. Costs that were measured at
# two batch sizes have none to leave out. Boxes hold the middle half of the guesses, and the bars above and below them all.

# %%
residuals = {}
for component, grid in [(name, grid) for (name, _), grid in calibration.grids.items() if len(grid.axes[0]) > 2]:
    sizes, seconds = grid.axes[0], grid.mean_s
    weight = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    guess = seconds[:-2] + weight[:, None, None] * (seconds[2:] - seconds[:-2])
    costs = seconds[1:-1] > 0  # a piece of no tokens takes no time, so there is nothing to guess
    residuals.setdefault(component, []).extend(100 * (guess[costs] / seconds[1:-1][costs] - 1))
spread = {component: np.median(np.abs(values)) for component, values in residuals.items()}

# %%
axes = plots.new_axes()
axes.boxplot(list(residuals.values()), whis=(0, 100), medianprops={"color": plots.BLUE})
axes.axhline(0, color="black", linewidth=0.8)
axes.set_xticks(range(1, len(residuals) + 1), list(residuals), rotation=30)
axes.set(ylabel="error of the guessed cost (%)")
best, worst = min(spread, key=spread.get), max(spread, key=spread.get)
plots.captioned(axes, f"Costs are guessed from the batch sizes on either side: half of the guesses are off by more than {spread[best]:.1f} % ({best}) to {spread[worst]:.0f} % ({worst}), up or down.")

# %% [markdown]
# ## Which rows run together
#
# This is not predicted: the simulator runs the engine's own scheduler classes. With the acceptance of a run replayed, every
# decision of every round must agree.

# %%
decided = {"rows of all rounds": int(found.table["rows"].sum()), "decided alike": found.parity}
decided | {"largest error of the number of rounds": float(found.table["scheduler_error"].abs().max())}

# %% [markdown]
# ## Costs alone
#
# Each run is simulated with its own acceptance, so only costs can be wrong. The bands contain what the calibration knows about its own
# noise: the speed of a run, the jitter of a round, the error of each component's mean. The names of the studies hold the batch size (b),
# the drafts a row and round (k) and the window (w).

# %%
biases = 100 * found.table.groupby("study")["cost_error"].mean()
hardest = biases.abs().idxmax()
size = 100 * found.table["cost_error"].abs().mean()
width = "too narrow" if found.cost_coverage < 0.85 else "too wide" if found.cost_coverage > 0.95 else "as wide as it should be"
plots.captioned(
    plots.held_out_runs(found, acceptance=False),
    f"With the acceptance known, {100 * found.cost_coverage:.0f} % of {len(found.table)} runs lie within the 90 % band: "
    f"it is {width}. The mean error is {size:.1f} %.",
)

# %% [markdown]
# ## The whole prediction
#
# Acceptance is now drawn from a trace of other prompts, as it would be when planning. Prompts differ in how many drafts they accept.
# This makes up most of the band, and no simulator can know it in advance.

# %%
plots.captioned(
    plots.held_out_runs(found),
    f"With the acceptance drawn, {100 * found.coverage:.0f} % of {len(found.table)} runs lie within the 90 % band; "
    f"the mean error is {100 * found.table['makespan_error'].abs().mean():.1f} %.",
)

# %% [markdown]
# Runs of one study share their costs, so they are not independent: the interval below is over studies. The speed of the machine on
# the day is not known when planning; the second share is for bands that draw it.

# %%
studies = found.table.groupby("study")["in_band"].mean()
low, high = bootstrap((studies,), np.mean, rng=0).confidence_interval
bands = {"known speed": found.coverage, "drawn speed": found.planner_coverage, "costs alone": found.cost_coverage}
bands | {"interval of the first, low": float(low), "high": float(high)}

# %% [markdown]
# ## Where it refuses
#
# Outside the measured batch sizes and widths the simulator refuses. It can be told to go on (`cost.outside: extrapolate`); then
# the result names everything that was extrapolated.

# %%
axis = calibration.grid("verify", "inplace").axes
beyond = Scenario().but({"engine.batch_size": 2 * int(axis[0][-1])}, cost={"kind": "table", "calibration": CALIBRATION})
try:
    simulate(beyond, 1)
except InputError as error:
    refusal = str(error)
refusal

# %% [markdown]
# ## A machine that was not calibrated
#
# Costs of kind `roofline` are computed from data sheets. Published measurements on other machines, to which nothing was fitted, say how
# far off they are: seconds of a pass, of a first token, of a request.

# %%
checks = pd.read_csv(PUBLISHED / "check_errors.csv")
off = 100 * checks["relative_error"]
axes = plots.new_axes()
axes.plot(1000 * checks["measured_s"], off, "o", color=plots.BLUE, alpha=0.6)
axes.axhline(0, color="black", linewidth=0.8)
axes.set(xscale="log", xlabel="measured time (ms)", ylabel="error of the computed time (%)")
worst = off[off.abs().idxmax()]
plots.captioned(axes, f"Costs from data sheets are off by {off.abs().median():.1f} % at the median of {len(off)} published measurements, and by {worst:+.0f} % at worst.")

# %% [markdown]
# ## Answer

# %%
errors = found.summary["mean_absolute"] * 100
Markdown(
    f"The makespan of a single run is predicted within {errors['makespan_error']:.1f} % on average, the mean of a study within {errors['study_makespan_error']:.1f} %, on the machine that was calibrated.\n\n"
    f"- **Costs** account for {errors['cost_error']:.1f} % (at worst {100 * found.summary.loc['cost_error', 'worst']:+.1f} %), **acceptance** of the twenty or so prompts of a run for {errors['acceptance_error']:.1f} %.\n"
    + "".join(f"- **90 % bands**, {name}: {100 * share:.0f} % of {len(found.table)} runs lie inside.\n" for name, share in bands.items())
    + f"- The 95 % interval of the first share, over studies, is {100 * low:.0f} … {100 * high:.0f} %.\n"
    f"- **Range**: batch sizes {axis[0][0]:.0f} … {axis[0][-1]:.0f}, up to {axis[2][-1]:.0f} cached tokens a row; beyond it the simulator refuses.\n\n"
    f"A difference between two methods below {errors['cost_error']:.1f} % is not decided; costs of {hardest} are off by {biases[hardest]:+.1f} %. Another machine needs its own calibration: "
    f"costs from its data sheet are off by {off.abs().median():.1f} % at the median, at worst {worst:+.0f} %."
)
