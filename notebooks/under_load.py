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
# # What happens under load?
#
# Requests come when they like. They wait, their prompts hold up the rows that decode, and the memory for K/V runs out. What does a user
# notice, which settings help, and how many devices does a given traffic need?
#
# Inputs: the facts of devices and models in `simulator/data`; the price of a device-hour

# %%
# To plan for your own service, change this cell: costs (or {"kind": "table", "calibration": FOLDER}), lengths, acceptance, promises, traffic, load, price.
COST = {"kind": "roofline", "device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"}
PROMPTS = {"kind": "lognormal", "median_tokens": 300, "sigma": 0.6, "max_tokens": 1200}
OUTPUTS = {"kind": "geometric", "mean_tokens": 120}
ACCEPTANCE = {"kind": "beta", "a": 5.8, "b": 2.5}  # of each request: mean 0.7, standard deviation 0.15
FIRST_TOKEN_S, RELAXED_S, STRICT_S = 0.5, 0.020, 0.008  # at most until the first token, and for each further one: two promises
TRAFFIC_PER_S, KEPT = 60, 0.95  # requests per second; share of them for which a promise must be kept
RATES = [8, 20, 32, 40, 48]  # requests per second of one device, from little load to too much
PRICE, ROWS, REPLICATIONS = 2.50, 64, 4  # of one device for one hour, in any currency; requests that run on it at a time; of each simulation

# %%
import pandas as pd
from IPython.display import Markdown

from simulator import Scenario, build_sweep, plots, simulate, sweep

BLOCK, MIDDLE, USUAL = 16, RATES[2], 0.75 * RATES[2]
service = {"slo_first_token_s": FIRST_TOKEN_S, "slo_per_token_s": RELAXED_S}
engine = {"method": "paged+fifo", "batch_size": ROWS, "num_speculative_tokens": 2, "block_size": BLOCK, "max_new_tokens": 512}
study = {"kind": "open", "num_requests": 400, "arrivals": {"kind": "gamma", "rate_per_s": USUAL, "cv": 1.0}}
base = Scenario(cost=COST, workload={"prompt_tokens": PROMPTS, "output_tokens": OUTPUTS}, acceptance=ACCEPTANCE, engine=engine, service=service, study=study)

# %% [markdown]
# ## Arrivals
#
# One device, paged K/V, up to 64 rows (`ROWS`), two drafts a row and round. The same number of requests per second can come at random, or in
# bursts: gaps between arrivals that vary three times as much.

# %%
RATE, CV = "study.arrivals.rate_per_s", "study.arrivals.cv"
KINDS = {1.0: "at random", 3.0: "in bursts"}
loads = sweep(build_sweep(base, replications=REPLICATIONS, grid={CV: list(KINDS), RATE: RATES}))
loads["arrivals"] = loads.pop(CV).map(KINDS)
loads = loads[["arrivals", *loads.columns[:-1]]]
busy = {name: simulate(base.but({RATE: MIDDLE, CV: cv}), 1) for cv, name in KINDS.items()}

# %%
axes = plots.backlog(busy)
most = {line.get_label(): int(max(line.get_ydata())) for line in axes.lines}
plots.captioned(axes, f"At {MIDDLE} requests per second, at most {most['at random']} are there at a time when they come at random, and {most['in bursts']} when they come in bursts.")

# %% [markdown]
# ## What a user waits for
#
# The first token waits for a free row and for its prompt. Later tokens wait for rounds, and for the prompts of others between them. The
# lines are medians of the replications, the bands go from the least to the greatest of them. Each draws the constants of the device anew,
# so bands say how well the answer is known.

# %%
waits = loads.assign(first_ms=1000 * loads["first_token_p99_s"], gap_ms=1000 * loads["inter_token_p99_s"], in_time=loads[RATE] * loads["slo_attainment"])
tail = waits.groupby(["arrivals", RATE])[["first_ms", "gap_ms", "in_time", "tokens_per_s"]].median()
even, bursts = (tail.loc[name] for name in KINDS.values())
upper, lower = plots.panels(2)
plots.band_against(waits, RATE, "first_ms", upper, by="arrivals")
upper.set(xlabel="", ylabel="until the first token\n(ms, 99th percentile)", yscale="log", xticks=RATES)
plots.band_against(waits, RATE, "gap_ms", lower, by="arrivals")
lower.set(xlabel="requests per second", ylabel="between tokens\n(ms, 99th percentile)", ylim=(0, None), xticks=RATES)
lower.legend().remove()

# %%
now, then = even.loc[MIDDLE], bursts.loc[MIDDLE]
plots.captioned(upper, f"At {MIDDLE} requests per second, 1 % wait longer than {now['first_ms']:.0f} ms for the first token and {now['gap_ms']:.0f} ms between tokens; in bursts, {then['first_ms']:.0f} and {then['gap_ms']:.0f} ms.")

# %% [markdown]
# ## Goodput
#
# Goodput counts the requests that finish within the relaxed promise. Beyond some load the device makes more tokens, and fewer requests are in
# time.

# %%
axes = plots.band_against(waits, RATE, "in_time", by="arrivals")
axes.plot([0, max(RATES)], [0, max(RATES)], color=plots.GREY, linewidth=0.8, label="all in time")
axes.set(xlabel="requests per second", ylabel="requests in time per second", xlim=(0, None), ylim=(0, None), xticks=RATES)
axes.legend(frameon=False)
top, last = even["in_time"].idxmax(), max(RATES)
plots.captioned(axes, f"With arrivals at random, {even.loc[top, 'in_time']:.1f} of {top} requests per second are in time, and {even.loc[last, 'in_time']:.1f} of {last}; with bursts, {bursts.loc[top, 'in_time']:.1f} and {bursts.loc[last, 'in_time']:.1f}.")

# %% [markdown]
# ## Prompts in chunks
#
# The scheduler `continuous` feeds prompts in chunks beside the rows that decode, within a budget of tokens a round. A small budget keeps
# rounds short; a large one brings prompts in sooner. From here on, three quarters of the middle rate arrive at each device.

# %%
BUDGET, BUDGETS = "engine.token_budget", [192, 320, 576, 1152]
chunked = base.but({"engine.scheduler": "continuous"})
chunks = sweep(build_sweep(chunked, replications=REPLICATIONS, grid={BUDGET: BUDGETS}))
whole = simulate(base, REPLICATIONS, keep_frames=False).metrics
ms = {"first_ms": "first_token_p99_s", "gap_ms": "inter_token_p99_s"}
chunks, whole = (frame.assign(**{name: 1000 * frame[metric] for name, metric in ms.items()}) for frame in (chunks, whole))
small, large = (chunks[chunks[BUDGET] == budget].median(numeric_only=True) for budget in (BUDGETS[0], BUDGETS[-1]))
whole = whole.median()

# %%
upper, lower = plots.panels(2)
for axes, name, label in ((upper, "first_ms", "until the first token\n(ms, 99th percentile)"), (lower, "gap_ms", "between tokens\n(ms, 99th percentile)")):
    plots.band_against(chunks, BUDGET, name, axes)
    axes.axhline(whole[name], color=plots.ORANGE, linestyle="--", label="whole prompts")
    axes.set(xlabel="", ylabel=label, ylim=(0, None))
lower.set(xlabel="token budget (tokens per round)")
upper.legend(frameon=False)
plots.captioned(upper, f"Chunks cut the wait between tokens from {whole['gap_ms']:.0f} to {small['gap_ms']:.0f} ms with {BUDGETS[0]} tokens a round and {large['gap_ms']:.0f} ms with {BUDGETS[-1]}; the first token then takes {small['first_ms']:.0f} and {large['first_ms']:.0f} ms instead of {whole['first_ms']:.0f}.")

# %% [markdown]
# ## Room for K/V
#
# A paged pool hands out blocks as rows grow. When they run out, the youngest request gives its blocks back, and its prompt is computed
# again later. Requests that begin with the same system prompt share its blocks.

# %%
BLOCKS, SHARED, SIZES = "engine.num_blocks", 200, [300, 500, 800, 1400]
texts = {"nothing": {"kind": "none"}, f"{SHARED} tokens": {"kind": "system_prompt", "tokens": SHARED}}
crowd = base.but({"workload.prompt_tokens": {"kind": "uniform", "low_tokens": SHARED + 1, "high_tokens": 600}})
tight = {name: build_sweep(crowd.but({"workload.common": common}), replications=REPLICATIONS, grid={BLOCKS: SIZES}) for name, common in texts.items()}
pools = [sweep(spec).assign(shared=name) for name, spec in tight.items()]
pools = pd.concat(pools)[["shared", *pools[0].columns[:-1]]]
pools = pools.assign(again=100 * pools["preemptions"] / base.study.num_requests, in_time=USUAL * pools["slo_attainment"])
room = pools.groupby(["shared", BLOCKS])[["again", "in_time", "tokens_per_s"]].median()

# %%
upper, lower = plots.panels(2)
plots.band_against(pools, BLOCKS, "again", upper, by="shared")
upper.set(xlabel="", ylabel="preemptions\n(per 100 requests)", ylim=(0, None))
plots.band_against(pools, BLOCKS, "in_time", lower, by="shared")
lower.set(xlabel=f"K/V pool (blocks of {BLOCK} tokens)", ylabel="requests in time\nper second", ylim=(0, None))
lower.legend().remove()
alone, common = (room.loc[name] for name in texts)
plots.captioned(upper, f"With {SIZES[1]} blocks, {alone.loc[SIZES[1], 'again']:.0f} preemptions per 100 requests leave {alone.loc[SIZES[1], 'in_time']:.1f} of {USUAL:g} requests per second in time; where prompts share {SHARED} tokens, {common.loc[SIZES[1], 'in_time']:.1f}.")

# %% [markdown]
# Conversations share more: each turn begins with all of the conversation before it. The pool is four times the largest above.

# %%
sessions = {"workload.common": {"kind": "sessions", "sessions": 48, "turns": 4}, "workload.prompt_tokens": {"kind": "uniform", "low_tokens": 50, "high_tokens": 250}, BLOCKS: 4 * SIZES[-1]}
turns = {shared: simulate(base.but({**sessions, "engine.prefix_sharing": shared}), REPLICATIONS, keep_frames=False) for shared in (True, False)}
hits = 100 * turns[True]["cache_hit_rate"]
pd.DataFrame({f"sharing {shared}": result.summary()["mean"] for shared, result in turns.items()}).loc[["cache_hit_rate", "first_token_p99_s", "inter_token_p99_s", "slo_attainment"]]

# %% [markdown]
# ## Replicas and routing
#
# Four devices share a little more than four times that rate: each in turn, the one with the fewest tokens to do, or by the length of the prompt.
# Dots are medians of the replications, and bars go from the least to the greatest of them.

# %%
ROUTER, WAYS = "service.router", {"round_robin": "in turn", "least_loaded": "least loaded", "by_length": "by length"}
four = base.but({"service.replicas": 4, "service.router": "least_loaded", "study.num_requests": 640, RATE: 3.25 * MIDDLE})
routed = sweep(build_sweep(four, replications=REPLICATIONS, grid={ROUTER: list(WAYS)}))
routed = routed.assign(first_ms=1000 * routed["first_token_p99_s"], gap_ms=1000 * routed["inter_token_p99_s"])
spread = routed.groupby(ROUTER)[["first_ms", "gap_ms"]].quantile([0, 0.5, 1]).unstack().loc[list(WAYS)]

# %%
upper, lower = plots.panels(2)
for axes, name, label in ((upper, "first_ms", "until the first token"), (lower, "gap_ms", "between tokens")):
    low, middle, high = spread[name].to_numpy().T
    axes.errorbar(list(WAYS.values()), middle, [middle - low, high - middle], fmt="o", capsize=3, color=plots.BLUE)
    axes.set(ylabel=f"{label}\n(ms, 99th percentile)", ylim=(0, None), xlim=(-0.5, 2.5))
lower.set_xlabel("which of four devices a request goes to")
first, gap = (spread[name][0.5] for name in ("first_ms", "gap_ms"))
plots.captioned(upper, f"By length, 1 % wait longer than {first['by_length']:.0f} ms for the first token and {gap['by_length']:.0f} ms between tokens; with the least loaded device, {first['least_loaded']:.0f} and {gap['least_loaded']:.0f} ms.")

# %% [markdown]
# ## How many devices?
#
# The traffic to plan for, with prompts in chunks, with and without drafts. Each run says for every request which of the two promises it kept.
# The grey line is the share that must be kept.

# %%
parts, DEVICES, DRAFTS = [], (1, 2, 3, 4, 5, 6), (0, 2)
for devices in DEVICES:
    for drafts in DRAFTS:
        changes = {"service.replicas": devices, "service.router": "least_loaded" if devices > 1 else "round_robin", "engine.num_speculative_tokens": drafts, RATE: TRAFFIC_PER_S, "study.num_requests": 640}
        found = simulate(chunked.but(changes), REPLICATIONS).frame("requests")
        parts.append(found.assign(devices=devices, drafts=drafts))
requests = pd.concat(parts)
first_s = requests["first_token_s"] - requests["arrival_s"]
further_s = (requests["finished_s"] - requests["first_token_s"]) / (requests["generated_tokens"] - 1).clip(lower=1)

# %%
LIMITS = {"relaxed": RELAXED_S, "strict": STRICT_S}
kept = {name: 100.0 * ((first_s <= FIRST_TOKEN_S) & (further_s <= limit_s)) for name, limit_s in LIMITS.items()}
plan = requests.assign(**kept).groupby(["devices", "drafts", "replication"])[list(LIMITS)].mean().reset_index()
share = plan.groupby(["drafts", "devices"])[list(LIMITS)].median()
enough = {(drafts, name): [n for n in DEVICES if share.loc[(drafts, n), name] >= 100 * KEPT] for drafts in DRAFTS for name in LIMITS}
needed = {key: str(found[0]) if found else f"more than {DEVICES[-1]}" for key, found in enough.items()}

# %%
upper, lower = plots.panels(2)
for axes, (name, limit_s) in zip((upper, lower), LIMITS.items(), strict=True):
    plots.band_against(plan, "devices", name, axes, by="drafts", labels={n: f"{n or 'no'} drafts" for n in DRAFTS})
    axes.axhline(100 * KEPT, color=plots.GREY, linewidth=0.8)
    axes.set(xlabel="", ylabel=f"requests in time (%),\n{1000 * limit_s:.0f} ms per token", ylim=(0, 105), xticks=DEVICES)
lower.set_xlabel("devices")
lower.legend().remove()
plots.captioned(upper, f"For {TRAFFIC_PER_S} requests per second, a promise of {1000 * STRICT_S:.0f} ms per token needs {needed[2, 'strict']} devices with 2 drafts and {needed[0, 'strict']} without, "
                f"and one of {1000 * RELAXED_S:.0f} ms needs {needed[2, 'relaxed']} and {needed[0, 'relaxed']} (median of {REPLICATIONS} draws of the device's speed).")

# %% [markdown]
# ## Answer

# %%
cost = {key: f"{PRICE * found[0]:.2f} an hour" if found else f"more than {PRICE * DEVICES[-1]:.2f}" for key, found in enough.items()}
million = 3600 * TRAFFIC_PER_S * requests["generated_tokens"].mean() / 1e6  # tokens an hour
chosen = enough[2, "strict"][0] if enough[2, "strict"] else DEVICES[-1]
others = enough[0, "strict"][0] if enough[0, "strict"] else DEVICES[-1]
worst, plain = (plan.query("drafts == @k and devices == @n")["strict"].min() for k, n in ((2, chosen), (0, others)))
more = 100 * (even.loc[last, "tokens_per_s"] / even.loc[top, "tokens_per_s"] - 1)
thrash = alone.loc[SIZES[0], "tokens_per_s"] / alone.loc[SIZES[-1], "tokens_per_s"]

# %%
Markdown(
    f"For {TRAFFIC_PER_S} requests per second, a promise of {1000 * STRICT_S:.0f} ms per token needs {needed[2, 'strict']} devices with drafts ({cost[2, 'strict']}) and {needed[0, 'strict']} without ({cost[0, 'strict']}), and one of {1000 * RELAXED_S:.0f} ms needs {needed[2, 'relaxed']} and {needed[0, 'relaxed']} (median of {REPLICATIONS} draws of the device's speed).\n\n"
    f"- **Load**: one device serves {even.loc[top, 'in_time']:.0f} of {top} requests per second in time. Where {last} come, it makes {more:+.0f} % tokens/s, and {even.loc[last, 'in_time']:.0f} are in time.\n"
    f"- **Bursts** make 1 % wait longer than {then['first_ms']:.0f} ms for the first token instead of {now['first_ms']:.0f} ms.\n"
    f"- **Chunks** of {BUDGETS[-1]} tokens a round cut the 99th percentile between tokens from {whole['gap_ms']:.0f} to {large['gap_ms']:.0f} ms; smaller ones make the first token late.\n"
    f"- **Room**: a pool of {SIZES[0]} blocks makes {100 * thrash:.0f} % of the tokens/s of one of {SIZES[-1]}. Shared prompts need less room: a turn of a conversation finds {hits:.0f} % of its tokens in the cache.\n"
    f"- **Routing** by length makes 1 % wait {first['by_length'] / first['least_loaded']:.1f} × as long for the first token as the least loaded device.\n"
    f"- **Money**: {PRICE * chosen / million:.2f} per million tokens with {chosen} devices. How fast a device is, is not known exactly: in the slowest of {REPLICATIONS} draws they keep {worst:.0f} % in time, and {others} without drafts {plain:.0f} %."
)
