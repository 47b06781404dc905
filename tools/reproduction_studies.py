"""What docs/reproduction.md shows, simulated: a function for each part of docs/reproduction.json."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from simulator.settings.kinds import DEFAULT_PROBABILITY
from simulator.studies.crossing import DEVICES
from simulator.studies.published import OLDEST_FIRST
from simulator.studies.reproduction import WHOLE_FILE_REPLICATIONS

REPLICATIONS, CAPTION_REPLICATIONS, DRAWS = 40, 10, 20
COUNTS = {  # of the studies, as the page says
    "figures and behaviours": REPLICATIONS,
    "lengths of captions and shares of aligning": CAPTION_REPLICATIONS,
    "all 480 prompts, ratios and arrivals": WHOLE_FILE_REPLICATIONS,
    "crossings": DRAWS,
}
PAIRS = (  # whose crossings the page shows
    ({"target": "qwen3-8b", "draft": "qwen3-0.6b", "dtype": "bfloat16"}, DEVICES),
    ({"target": "llama-3-70b", "draft": "llama-3-1b", "dtype": "float8"}, ("h200", "b200", "mi300x")),
)
OUTPUTS = {  # lengths of the captions' outputs -> settings
    "50 tokens, the whole budget": {"workload.output_tokens": {"kind": "fixed", "tokens": 50}},
    "50 tokens, and a pad is the end": {
        "workload.output_tokens": {"kind": "fixed", "tokens": 50},
        "switches.pad_ends": True,
    },
    "geometric, mean 3 tokens": {"workload.output_tokens": {"kind": "geometric", "mean_tokens": 3}},
    "geometric, mean 1.8 tokens": {},
}
SIZES = (1, 2, 4, 8, 16, 32)
LOADS = ((1, 0.5), (2, 0.8), (4, 1.1), (8, 1.2))  # batch size, requests per second
OVERLOADS = ((2, 1.2), (4, 1.65), (8, 1.8))
SCHEDULERS = {  # what serves requests that arrive -> changes to EXSPEC as published
    "EXSPEC as published": {},
    "with aging after 16 rounds": {"engine.aging_bound": 16},
    "oldest first, no groups": OLDEST_FIRST,
    "EXSPEC that keeps its caches": {"switches.discard_mixed_caches": False},
    "EQSPEC as published": {},
}
ONLINE_METRICS = ("busy_share", "latency_p50_s", "latency_p90_s", "latency_p99_s", "longest_gap_s", "prefill_share")
BACKLOG_METRICS = tuple(f"{name}_{label}_s" for name in ("service", "latency") for label in ("p50", "p90", "p99"))
ADMISSIONS: dict[str, dict[str, Any]] = {  # who is served next -> changes to EXSPEC as published
    "as published: full groups, else the oldest rows": {},
    "full groups of rows that have not run, then the same": {"switches.serve_first": "fresh_groups"},
    "full groups, else rows that have not run": {"switches.serve_first": "fresh"},
    "full groups, else the newest rows": {"switches.serve_first": "newest"},
    "full groups, else the largest of two or more": {"switches.serve_first": "largest_group"},
    "new requests when all in the window have finished": {"switches.refill": False},
    "as published, and a pad ends its row": {"switches.pad_ends": True},
}
ALIGNMENTS: dict[str, dict[str, Any]] = {  # what might differ from the simulated runs -> changes to EQSPEC as published
    "as published": {},
    "finished rows are not moved": {"switches.zombies": False},
    "outputs use the whole budget": {"workload.output_tokens": {"kind": "fixed", "tokens": 128}},
    "a slower device, an L40S": {"cost.device": "l40s"},
}
RATIOS: dict[str, dict[str, Any]] = {  # what the speed of batch 8 over batch 1 may depend on -> changes
    "as published": {},
    "a draft is right with probability 0.3": {"acceptance.probability": 0.3},
    "… 0.8": {"acceptance.probability": 0.8},
    "prompts of 32 tokens": {"workload.prompt_tokens": {"kind": "fixed", "tokens": 32}},
    "… 1024 tokens": {"workload.prompt_tokens": {"kind": "fixed", "tokens": 1024}},
    "on an L40S": {"cost.device": "l40s"},
    "on an H100": {"cost.device": "h100"},
    "on an H100, passes recorded as graphs": {"cost.device": "h100", "cost.graphs": True},
}
ALIGNED_SIZES = (4, 8, 16)


def rows(constants: Any) -> list[dict[str, Any]]:
    """Every published figure."""
    from simulator.studies.reproduction import Reproduction
    from simulator.studies.targets import read_targets

    return [row.as_mapping() for row in Reproduction(read_targets(), REPLICATIONS, constants).rows()]


def steps(constants: Any) -> list[dict[str, Any]]:
    """What each behaviour costs."""
    from simulator.studies.explanation import explain

    return [asdict(step) for step in explain(REPLICATIONS, constants)]


def captions(constants: Any) -> list[dict[str, Any]]:
    """Grouping rates of the captions by length of their outputs."""
    from simulator.runner import simulate
    from simulator.studies.published import caption_scenario

    def percent(size: int, change: dict[str, Any]) -> float:
        scenario = caption_scenario(size, constants).but(change)
        return 100 * simulate(scenario, CAPTION_REPLICATIONS, keep_frames=False)["grouping_rate"]

    return [
        {"outputs": name, "percent": [percent(size, change) for size in SIZES[1:]]} for name, change in OUTPUTS.items()
    ]


def throughput(constants: Any) -> list[dict[str, Any]]:
    """Tokens per second on all 480 prompts by method and batch size, with the range of single runs."""
    from simulator.runner import simulate
    from simulator.studies.published import committed_lengths, overhead_scenario
    from simulator.studies.reproduction import make_row

    lines = []
    for method in ("eqspec", "exspec"):
        for size in SIZES:
            scenario = overhead_scenario(method, size, constants, committed_lengths())
            results = simulate(scenario, WHOLE_FILE_REPLICATIONS, keep_frames=False)
            row = make_row("", 1.0, results.metrics["tokens_per_s"].to_numpy())
            share = 100 * results["prefill_share"]
            lines.append(
                {"method": method, "batch_size": size, "tokens_per_s": row.simulated, "low": row.low, "high": row.high}
                | {"prefill_percent": share, "align_percent": 100 * results["realign_share"]}
            )
    return lines


def alignment(constants: Any) -> list[dict[str, Any]]:
    """Share of aligning by batch size, and milliseconds a round of all other stages."""
    from simulator.runner import simulate
    from simulator.studies.published import committed_lengths, overhead_scenario
    from simulator.studies.reproduction import OVERHEAD_PROMPTS

    def line(name: str, change: dict[str, Any], lengths: tuple[int, ...]) -> dict[str, Any]:
        scenarios = [overhead_scenario("eqspec", size, constants, lengths).but(change) for size in ALIGNED_SIZES]
        found = [simulate(scenario, CAPTION_REPLICATIONS, keep_frames=False) for scenario in scenarios]
        others = [1e3 * (1 - each["realign_share"]) * each["makespan_s"] / each["rounds"] for each in found]
        return {"change": name, "percent": [100 * each["realign_share"] for each in found], "others_ms": others}

    lengths = committed_lengths()
    lines = [line(name, change, lengths[:OVERHEAD_PROMPTS]) for name, change in ALIGNMENTS.items()]
    return [*lines, line("all 480 prompts", {}, lengths)]


def ratio(constants: Any) -> list[dict[str, Any]]:
    """Speed of batch 8 over batch 1 by acceptance, context and device, with the interval of its mean."""
    from simulator.intervals import mean_interval
    from simulator.runner import simulate
    from simulator.studies.published import committed_lengths, overhead_scenario
    from simulator.studies.reproduction import OVERHEAD_PROMPTS

    def speeds(method: str, size: int, change: dict[str, Any]) -> Any:
        scenario = overhead_scenario(method, size, constants, committed_lengths()[:OVERHEAD_PROMPTS]).but(change)
        return simulate(scenario, WHOLE_FILE_REPLICATIONS, keep_frames=False).metrics["tokens_per_s"].to_numpy()

    def interval(method: str, change: dict[str, Any]) -> list[float]:
        return list(mean_interval(speeds(method, 8, change) / speeds(method, 1, change), 0.95)[:3])

    return [
        {"change": name} | {method: interval(method, change) for method in ("eqspec", "exspec")}
        for name, change in RATIOS.items()
    ]


def online(constants: Any) -> list[dict[str, Any]]:
    """Latency of requests that arrive, by batch size, load and scheduler."""
    return _served(constants, LOADS + OVERLOADS, SCHEDULERS, "scheduler")


def backlog(constants: Any) -> list[dict[str, Any]]:
    """Time from first round to finish, and from arrival, of requests that all wait at the start."""
    from simulator.runner import simulate
    from simulator.studies.published import OVERHEAD_PROMPTS, committed_lengths, overhead_scenario

    lines = []
    for size in SIZES[1:4]:
        for name, change in list(SCHEDULERS.items())[:3]:
            scenario = overhead_scenario("exspec", size, constants, committed_lengths()[:OVERHEAD_PROMPTS]).but(change)
            results = simulate(scenario, WHOLE_FILE_REPLICATIONS, keep_frames=False)
            metrics = {metric: results[metric] for metric in BACKLOG_METRICS}
            lines.append({"batch_size": size, "scheduler": name} | metrics)
    return lines


def admission(constants: Any) -> list[dict[str, Any]]:
    """The same by who is served next, where the server is not overloaded."""
    return _served(constants, LOADS[1:], ADMISSIONS, "policy")


def _served(constants: Any, rates: Any, changes: dict[str, dict[str, Any]], what: str) -> list[dict[str, Any]]:
    from simulator.runner import simulate
    from simulator.studies.published import online_scenario

    lines = []
    for size, rate in rates:
        for name, change in changes.items():
            method = "eqspec" if name.startswith("EQSPEC") else "exspec"
            scenario = online_scenario(size, rate, constants, method).but(change)
            results = simulate(scenario, WHOLE_FILE_REPLICATIONS, keep_frames=False)
            metrics = {metric: results[metric] for metric in ONLINE_METRICS}
            lines.append({"batch_size": size, "rate_per_s": rate, what: name} | metrics)
    return lines


def forensics(constants: Any) -> list[dict[str, Any]]:
    """Methods that return wrong texts, on the engine."""
    from reproduction_forensics import measure

    return measure()


def acceptance_probability(constants: Any) -> float:
    """That of the crossings."""
    return DEFAULT_PROBABILITY


def crossings(constants: Any) -> list[dict[str, Any]]:
    """Where drafts stop paying."""
    from simulator.studies.crossing import find_crossings

    return [
        {**cost, **asdict(found)}
        for cost, devices in PAIRS
        for found in find_crossings(cost, devices, DEFAULT_PROBABILITY, DRAWS)
    ]


def curves(constants: Any) -> list[dict[str, Any]]:
    """Errors of the operator tables."""
    from simulator.settings.curves import curve_errors

    return list(curve_errors())


def checks(constants: Any) -> list[dict[str, Any]]:
    """Errors of published numbers."""
    from simulator.studies.roofline_checks import check_roofline, summarize_checks

    return summarize_checks(check_roofline()).reset_index().to_dict(orient="records")


def explained(constants: Any) -> dict[str, str]:
    """Why some of them are large."""
    from simulator.studies.roofline_checks import EXPLAINED

    return EXPLAINED


def speculative(constants: Any) -> list[dict[str, Any]]:
    """Tokens a round that published speeds need."""
    from simulator.studies.roofline_checks import needed_lengths

    return needed_lengths().to_dict(orient="records")


STUDIES: dict[str, Callable[[Any], Any]] = {  # part of the data -> what makes it from the constants
    study.__name__: study
    for study in (
        *(rows, steps, captions, throughput, ratio, alignment, online, backlog, admission, forensics),
        *(acceptance_probability, crossings, curves, checks, explained, speculative),
    )
}
