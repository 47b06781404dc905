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
# # How does acceptance spread change the answer?
#
# Planning usually starts from one number: the mean acceptance. But some prompts accept nearly every draft and others almost none. A batch
# that waits for its slowest row feels this, and so does the slowest request. Five models of acceptance are fitted to one trace of the engine.
# All of them get the mean nearly right. Do they give the same answers?
#
# Inputs: a trace of 320 prompts with the bundled pair and costs of `cpu/tiny`, `simulator/data`

# %%
# To study your own engine, change this cell: a trace of `raggedspec generate --trace`, a folder of `raggedspec calibrate`.
TRACE = "validation/cpu/tiny/fit/acceptance.ndjson.gz"
CALIBRATION, BATCH, REPLICATIONS = "cpu/tiny", 8, 10

# %%
import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, fit_all, plots, read_engine_trace, simulate

trace = read_engine_trace(TRACE)
fits = fit_all(trace, REPLICATIONS)
table = pd.concat({name: fit.table for name, fit in fits.items()}, names=["model", "statistic"])
table.round(3)

# %% [markdown]
# ## Which model drifts as the engine does?
#
# `iid`: each draft is right with one probability. `profile`: one probability per place in the round. `markov`: neighbouring drafts agree.
# `beta`: each request has its own probability. `bootstrap`: whole requests are drawn from the trace. Dots are means of the replications,
# and bars go from the least to the greatest of them.

# %%
length, rounds = table.xs("mean_acceptance_length", level=1), table.xs("sd_rounds", level=1)
upper, lower = plots.panels(2)
for axes, found in ((upper, length), (lower, rounds)):
    axes.errorbar(range(len(found)), found["model"], [found["model"] - found["low"], found["high"] - found["model"]], fmt="o", capsize=3, color=plots.BLUE)
    axes.axhline(found["trace"].iloc[0], color=plots.ORANGE, label="trace")
    axes.set(xticks=range(len(found)), xticklabels=list(found.index), ylim=(0, None))

# %%
upper.set(ylabel="mean acceptance\nlength (tokens)")
lower.set(ylabel="standard deviation of\nrounds per request")
lower.legend(frameon=False, loc="lower right")
off = 100 * (length["model"] / length["trace"] - 1).abs().max()
plots.captioned(upper, f"All models have the mean within {off:.0f} %, but the rounds of a request spread by {rounds['trace'].iloc[0]:.1f} (standard deviation) in the trace, "
                f"{rounds['model']['iid']:.1f} with iid and {rounds['model']['beta']:.1f} with beta.")

# %% [markdown]
# ## Throughput
#
# The same requests run with the acceptance replayed from the trace, and with each model. The difference in tokens per second shows what the
# model gets wrong, for methods that wait for slow rows and for methods that refill free rows.

# %%
workload = {"prompt_tokens": {"kind": "trace", "path": TRACE}, "output_tokens": {"kind": "trace", "path": TRACE}}
cost = {"kind": "table", "calibration": CALIBRATION}
replayed = Scenario(study={"num_requests": trace.header["num_sequences"]}, workload=workload, engine={"batch_size": BATCH}, cost=cost,
                    acceptance={"kind": "replay", "path": TRACE}, noise=False)
METHODS = ["rollback", "eqspec", "exspec", "inplace"]

# %%
lines = []
for method in METHODS:
    right = simulate(replayed.but(method=method), 1, keep_frames=False)["tokens_per_s"]
    for name, fit in fits.items():
        speed = simulate(replayed.but(method=method, acceptance=fit.spec), 5, keep_frames=False)["tokens_per_s"]
        lines.append({"method": method, "model": name, "error": 100 * (speed / right - 1)})
errors = pd.DataFrame(lines)
error = errors.set_index(["method", "model"])["error"]

# %%
axes = plots.heat_map(errors, "model", "method", "error", numbers="{:+.1f}", cmap="RdBu_r", vmin=-25, vmax=25)
axes.set(xlabel="model of acceptance", ylabel="method")
axes.figure.colorbar(axes.images[0], ax=axes, label="error of tokens/s (%)")
plots.captioned(axes, f"With iid, tokens/s are off by {error['eqspec', 'iid']:+.1f} % for EQSPEC and {error['inplace', 'iid']:+.1f} % for in place; "
                f"with beta by {error['eqspec', 'beta']:+.1f} % and {error['inplace', 'beta']:+.1f} %.")

# %% [markdown]
# ## Latency
#
# Requests now arrive at random, at 80 % of the throughput that the replay reaches. The slowest requests are those whose drafts fail. Lines
# are means of the replications, and bands go from the least to the greatest of them.

# %%
rate = 0.8 * simulate(replayed, 1)["requests_per_s"]
arrivals = replayed.but(study={"kind": "open", "num_requests": 320, "arrivals": {"kind": "poisson", "rate_per_s": rate}}, method="inplace")
served = {name: simulate(arrivals.but(acceptance=fits[name].spec), 5) for name in ("iid", "bootstrap")}
axes = plots.latency_cdf(served)
tail = {name: results["latency_p99_s"] for name, results in served.items()}
plots.captioned(axes, f"The 99th percentile of latency is {tail['iid']:.2f} s with iid and {tail['bootstrap']:.2f} s with whole requests of the trace.")

# %% [markdown]
# ## Answer

# %%
worst, closest = error.xs("iid", level=1).abs().max(), error.xs("beta", level=1).abs().max()
Markdown(
    f"The mean is not enough: with it alone (iid) tokens/s are off by up to {worst:.0f} %, with a probability for each request (beta) by up to {closest:.0f} %.\n\n"
    f"- The rounds of a request spread by {rounds['trace'].iloc[0]:.1f} (standard deviation) in the trace; iid has {rounds['model']['iid']:.1f}, markov {rounds['model']['markov']:.1f}, beta {rounds['model']['beta']:.1f}.\n"
    f"- Under load, the 99th percentile of latency with iid differs by {100 * (tail['iid'] / tail['bootstrap'] - 1):+.0f} % from that with whole requests of the trace.\n"
    f"- Correlation between neighbouring drafts leaves an error of {error['eqspec', 'markov']:+.0f} % for EQSPEC: what matters is how much requests differ from each other.\n"
    f"- Methods that refill free rows depend on the spread less than those that wait: {error['inplace', 'iid']:+.1f} % against {error['eqspec', 'iid']:+.1f} % with iid."
)
