"""Metrics of one replication, all computed from the event log; docs/scenarios.md defines them."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from refimpl.core.errors import did_you_mean, require, shown
from refimpl.placement import PLACEMENTS, PoolSize
from simulator.service.cost import CostModel
from simulator.service.pools import POOL_NAMES, PREFILL
from simulator.service.records import STAGES, Columns, EventLog
from simulator.service.replica import Replica
from simulator.service.simulation import Simulation
from simulator.settings.scenario import Engine, Scenario, Study

Paid = Mapping[Replica, float]  # share of the observed seconds for which each is paid
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MIN_MSER_BATCHES = 20
SHARES = ("fairness", "slo_attainment", "occupancy", "grouping_rate", "cache_hit_rate", "draft_acceptance_rate")
CLASS_METRICS = (  # also given for each class of requests
    "requests_per_s", "goodput_per_s", "slo_attainment", "first_token_p50_s", "first_token_p99_s", "per_token_mean_s",
    "per_token_p99_s", "latency_p99_s", "draft_acceptance_rate",
)  # fmt: skip
MANY_CENSORED = 0.01  # share of the requests
ROUNDING = 1e-9  # share of a value: deviations below are none


@dataclass(frozen=True, eq=False)
class Frames:
    """The tidy tables of a replication: one line per request, per round, and per row if kept."""

    requests: pd.DataFrame
    rounds: pd.DataFrame
    rows: pd.DataFrame


def frames_of(simulation: Simulation) -> Frames:
    """Turn an event log into tables."""
    log, requests = simulation.log, simulation.log.request_frame()
    if classes := simulation.scenario.workload.classes:
        names = np.array([each.name for each in classes])
        requests = requests.assign(**{"class": names[simulation.source.classes(requests["request"].to_numpy())]})
    return Frames(requests, log.round_frame(), log.row_frame())


def mser5(values: np.ndarray) -> int:
    """Observations to leave out at the beginning (White 1997): batches of five, smallest squared standard error.

    Raises:
        InputError: fewer than 100 observations, or the minimum lies in the second half: the run is too short.
    """
    count, n = len(values) // 5, len(values)
    require(count >= MIN_MSER_BATCHES, f"study.warmup: mser5 needs {5 * MIN_MSER_BATCHES} finished requests, not {n}")
    means = np.asarray(values[: 5 * count]).reshape(count, 5).mean(axis=1)
    remaining, least = count - np.arange(count), (ROUNDING * np.abs(means).max()) ** 2
    means = means - means[count // 2 :].mean()  # of what every tail holds: squares cancel least around it
    tail_sum, tail_square = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    variance = tail_square - tail_sum**2 / remaining
    variance = np.where(variance > least * remaining, variance, 0)
    statistic = (variance / remaining.astype(float) ** 2)[: count - 5]
    cut = int(np.argmin(statistic))
    message = f"study.warmup: no steady state within {n} finished requests: run longer, or the server is overloaded"
    require(cut < count // 2, message)
    return 5 * cut


def _keep(columns: Columns, mask: np.ndarray) -> Columns:
    return columns if mask.all() else {name: values[mask] for name, values in columns.items()}


def warmup_s(simulation: Simulation, requests: Columns) -> float:
    """Seconds to leave out at the beginning: up to the first arrival after those of all that MSER-5 leaves out.

    Raises:
        InputError: as `mser5`, or nobody who finished came after them.
    """
    if simulation.scenario.study.warmup == "none":
        return 0.0
    done = _keep(requests, ~np.isnan(requests["finished_s"]))
    order = np.lexsort((done["request"], done["arrival_s"]))
    arrival_s = done["arrival_s"][order]
    cut = mser5(done["finished_s"][order] - arrival_s)
    if not cut:
        return 0.0
    later = arrival_s[arrival_s > arrival_s[cut - 1]]  # others may have come together with the last that is left out
    require(len(later) > 0, "study.warmup: nobody who finished came after those that mser5 leaves out")
    return float(later[0])


def measure(simulation: Simulation) -> dict[str, float]:
    """All metrics of a replication that has run, by name."""
    requests, rounds = simulation.log.request_columns, simulation.log.round_columns
    start_s = warmup_s(simulation, requests)
    observed = _clipped(simulation.log.columns_with_cut, start_s, simulation.log.end_s)
    finishing = _keep(requests, requests["finished_s"] > start_s)  # not those that never finish
    gaps_s = inter_token_s(simulation.log, rounds, start_s)
    ends_s = rounds["start_s"] + rounds["round_s"]
    tokens = rounds["kept"][ends_s > start_s * (1 + ROUNDING)].sum()
    rounds = _keep(rounds, rounds["start_s"] >= start_s)
    requests = _keep(requests, requests["arrival_s"] >= start_s)
    span_s = max(simulation.log.end_s - start_s, 1e-300)
    paid = {replica: _paid_share(replica, start_s, start_s + span_s) for replica in simulation.replicas}
    result = {
        "tokens_per_s": float(tokens) / span_s,
        "makespan_s": simulation.log.last_round_s,
        "cut_outputs": float(requests["cut"].sum()),
        "warmup_s": start_s,
    }
    result |= _served(simulation, requests, finishing, span_s) | _spread("inter_token", gaps_s)
    result |= _by_class(simulation, requests, finishing, span_s) | _by_replica(simulation, paid, observed, span_s)
    result |= _economy(simulation, paid, result["tokens_per_s"])
    result |= _rounds(simulation, rounds) | _seconds(simulation, paid, observed, span_s)
    return result | _rows(rounds, requests)


@lru_cache(maxsize=1)
def metric_names() -> tuple[str, ...]:
    """Names of all metrics, in the order of `measure`."""
    simulation = Simulation(Scenario(study=Study(num_requests=1)))
    simulation.run()
    return tuple(measure(simulation))


def censored_share(metrics: Mapping[str, float]) -> float:
    """Requests that had not finished at the end, of those that arrived."""
    return metrics["censored"] / max(metrics["censored"] + metrics["completed"], 1)


def most_of(name: str) -> float:
    """What a metric can be at most; at least it is 0."""
    metric = name.partition(".")[0]
    return 1.0 if metric in SHARES or metric.endswith("_share") else np.inf


def check_metric(name: str, scenario: Scenario | None = None) -> None:
    """Raise InputError, before any work is done, unless there is a metric of that name, or one of its own."""
    known = metric_names() + (own_metrics(scenario) if scenario else ())
    require(name in known, f"metric must be one of {', '.join(known)}, not {shown(name)}{did_you_mean(name, known)}")


def own_metrics(scenario: Scenario) -> tuple[str, ...]:
    """Names of the metrics of a class or a pool, whose name is behind a dot, and of a replica, whose number is."""
    of_classes = [f"{metric}.{each.name}" for each in scenario.workload.classes for metric in CLASS_METRICS]
    split, varies = scenario.service.pools.kind != "colocated", scenario.service.varies
    of_pools = [f"busy_share.{name}" for name in POOL_NAMES if split]
    return (
        *of_classes,
        *["replicas_on"] * varies,
        *of_pools,
        *(f"cache_hit_rate.{number}" for number in _sharing_replicas(scenario)),
    )


def _sharing_replicas(scenario: Scenario) -> range:
    """Replicas whose hit rates may differ: those that cache prompts, of several replicas."""
    first, last = scenario.service.prompt_replicas
    return range(first, last) if last > 1 and scenario.shares_prefixes else range(0)


def _first_token_s(requests: Columns) -> np.ndarray:
    return requests["first_token_s"] - requests["arrival_s"]


def _per_token_s(done: Columns) -> np.ndarray:
    """0 where there is but one token."""
    return (done["finished_s"] - done["first_token_s"]) / np.maximum(done["generated_tokens"] - 1, 1)


def _served(simulation: Simulation, requests: Columns, finishing: Columns, span_s: float) -> dict[str, float]:
    """What happened to these requests.

    Args:
        simulation: that has run.
        requests: that arrived in the observed seconds.
        finishing: that finished in them.
        span_s: observed seconds.
    """
    done = _keep(requests, ~np.isnan(requests["finished_s"]))
    count, arrived = len(done["request"]), len(requests["request"])
    return {
        "requests_per_s": len(finishing["request"]) / span_s,
        "completed": float(count),
        "censored": float(arrived - count),
        "goodput_per_s": float(_meets(simulation, finishing).sum()) / span_s,
        "slo_attainment": float(_meets(simulation, done).sum()) / (arrived or math.nan),
    } | _latencies(requests, done)


def _by_class(simulation: Simulation, requests: Columns, finishing: Columns, span_s: float) -> dict[str, float]:
    """`CLASS_METRICS` of the requests of each class."""
    result = dict[str, float]()
    for place, each in enumerate(simulation.scenario.workload.classes):
        own, ended = (
            _keep(part, simulation.source.classes(part["request"]) == place) for part in (requests, finishing)
        )
        accepted, drafted = (float(own[name].sum()) for name in ("accepted", "drafted"))
        found = _served(simulation, own, ended, span_s) | {"draft_acceptance_rate": accepted / (drafted or math.nan)}
        result |= {f"{metric}.{each.name}": found[metric] for metric in CLASS_METRICS}
    return result


def _by_replica(simulation: Simulation, paid: Paid, rounds: Columns, span_s: float) -> dict[str, float]:
    """Replicas that are there, busy share of each of two pools, given clipped rounds, hit rate of each prefix cache."""
    service, pools = simulation.scenario.service, simulation.fleet.pools
    result = {"replicas_on": sum(paid.values())} if service.varies else {}
    for name, pool in pools.items() if len(pools) > 1 else ():
        own = _keep(rounds, np.isin(rounds["replica"], [replica.number for replica in pool.replicas]))
        observed_s = span_s * sum(paid[replica] for replica in pool.replicas)
        result[f"busy_share.{name}"] = float(own["round_s"].sum()) / (observed_s or math.nan)
    return result | {f"cache_hit_rate.{n}": _hit_rate(simulation, n) for n in _sharing_replicas(simulation.scenario)}


def _paid_share(replica: Replica, start_s: float, end_s: float) -> float:
    """Share of these seconds for which a replica is paid."""
    if not replica.paid_s and replica.since_s is not None and replica.since_s <= start_s:
        return 1.0
    times = [*replica.paid_s, *([] if replica.since_s is None else [(replica.since_s, end_s)])]
    return sum([max(0.0, min(stop, end_s) - max(begin, start_s)) for begin, stop in times]) / (end_s - start_s)


def _hit_rate(simulation: Simulation, replica: int | None) -> float:
    """Tokens that were in the cache over those that were needed there, of one replica or of all."""
    hits, needed = simulation.log.num_prefix_hits, simulation.log.num_to_cache
    count = (hits.total(), needed.total()) if replica is None else (hits[replica], needed[replica])
    return count[0] / (count[1] or math.nan)


def _meets(simulation: Simulation, done: Columns) -> np.ndarray:
    """Which requests finished within every limit that is given for their class, or for all."""
    classes, good = simulation.source.classes(done["request"]), np.ones(len(done["request"]), dtype=bool)
    for name, seconds in (("slo_first_token_s", _first_token_s(done)), ("slo_per_token_s", _per_token_s(done))):
        good &= seconds <= limits_of(simulation.scenario, name, classes)
    return good


def limits_of(scenario: Scenario, name: str, classes: np.ndarray) -> np.ndarray:
    """A limit of each request, given its class's number: of the class, or of all; infinite where there is none."""
    service = scenario.service
    own = scenario.workload.classes or (service,)
    return np.array([getattr(each, name) or getattr(service, name) or math.inf for each in own])[classes]


def _economy(simulation: Simulation, paid: Paid, tokens_per_s: float) -> dict[str, float]:
    """What all devices cost and draw while they are paid for, by token; NaN where price or power are not known."""
    service, cost = simulation.scenario.service, simulation.cost
    devices = sum(share * devices_of(replica.scenario.engine, cost) for replica, share in paid.items())
    price, watts = service.cost_per_hour or cost.cost_per_hour, service.watts or cost.watts
    tokens = tokens_per_s or math.nan
    return {
        "cost_per_million_tokens": devices * (price or math.nan) / 3600 / tokens * 1e6,
        "tokens_per_joule": tokens / (devices * (watts or math.nan)),
    }


def devices_of(engine: Engine, cost: CostModel) -> int:
    """Devices of one replica: those of the target, and one more for what draws drafts beside it."""
    draws = engine.num_speculative_tokens > 0 and engine.drafting.draws is not None
    return cost.num_devices + (engine.execution == "overlapped" and engine.contention < 1 and draws)


def _latencies(requests: Columns, done: Columns) -> dict[str, float]:
    """Of requests that arrived, and of those of them that finished."""
    first_token = _first_token_s(requests)
    first_token = first_token[~np.isnan(first_token)]
    latency = done["finished_s"] - done["arrival_s"]
    per_token = _per_token_s(done)[done["generated_tokens"] > 1]
    begun = requests["begun_s"] - requests["arrival_s"]
    result = {"queueing_mean_s": _mean(begun[~np.isnan(begun)])}
    spreads = {"first_token": first_token, "per_token": per_token, "latency": latency}
    spreads["service"] = done["finished_s"] - done["begun_s"]
    for name, values in spreads.items():
        result |= _spread(name, values)
    speed = done["generated_tokens"] / np.maximum(latency, 1e-300)
    fairness = float(speed.sum() ** 2 / (len(speed) * (speed**2).sum())) if len(speed) else float("nan")
    return result | {"fairness": fairness}


def inter_token_s(log: EventLog, rounds: Columns, start_s: float) -> np.ndarray:
    """Time between two rounds that yield tokens of one request, where the later one begins at `start_s` or after."""
    gaps = _keep(log.gaps, rounds["start_s"][log.gaps["round"]] >= start_s)
    ends_s = (rounds["start_s"] + rounds["round_s"])[gaps["round"]]
    return np.repeat(ends_s - gaps["ended_s"], gaps["rows"])


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    """Mean and quantiles, by the names of their metrics; NaN where there is nothing."""
    quantiles = np.quantile(values, list(QUANTILES.values())) if len(values) else [np.nan] * len(QUANTILES)
    found = {f"{name}_{label}_s": float(value) for label, value in zip(QUANTILES, quantiles, strict=True)}
    return {f"{name}_mean_s": _mean(values)} | found


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _clipped(rounds: Columns, start_s: float, end_s: float) -> Columns:
    """Rounds with as much of their seconds as lies between `start_s` and `end_s`."""
    begin = rounds["start_s"]
    inside_s = np.minimum(begin + rounds["round_s"], end_s) - np.maximum(begin, start_s)
    share = np.maximum(inside_s, 0) / np.maximum(rounds["round_s"], 1e-300)
    return rounds | {name: rounds[name] * np.minimum(share, 1) for name in (*STAGES, "round_s")}


def _rounds(simulation: Simulation, rounds: Columns) -> dict[str, float]:
    rounds, engine = _keep(rounds, rounds["mode"] != PREFILL), simulation.scenario.engine
    total = len(rounds["start_s"])
    count = total or math.nan  # a mean over no rounds is not known
    most = -(-engine.batch_size // 2) if engine.execution == "overlapped" else engine.batch_size
    grouped = (rounds["mode"] == "grouped") & (rounds["rows"] > 1)
    return {
        "rounds": float(total),
        "tokens_per_round": float(rounds["kept"].sum()) / count,
        "drawn_tokens_per_round": float((rounds["rows"] * rounds["passes"]).sum()) / count,
        "verified_tokens_per_round": float((rounds["live"] + rounds["drafted"]).sum()) / count,
        "verified_rectangle_per_round": float((rounds["rows"] * (rounds["k"] + 1)).sum()) / count,
        "occupancy": float(rounds["live"].sum()) / (count * most),
        "grouping_rate": float(grouped.sum()) / count,
    }


def _seconds(simulation: Simulation, paid: Paid, rounds: Columns, span_s: float) -> dict[str, float]:
    """Of rounds clipped to the observed seconds."""
    observed_s = span_s * sum(paid.values()) or math.nan
    busy_s = float(rounds["round_s"].sum())
    kv, token_bytes = rounds["kv_tokens"], simulation.cost.kv_bytes_per_token or math.nan  # unknown where it is 0
    kv_s = float((kv * rounds["round_s"]).sum())
    result = {
        "busy_share": busy_s / observed_s,
        "preemptions": float(simulation.log.num_preemptions),
        "cache_hit_rate": _hit_rate(simulation, None),
        "kv_peak_bytes": token_bytes * float(kv[rounds["round_s"] > 0].max(initial=0)),
        "kv_mean_bytes": token_bytes * kv_s / observed_s,
        "kv_allocated_bytes": token_bytes * allocated_tokens(simulation),
    }
    all_s = busy_s or math.nan
    return result | {f"{name.removesuffix('_s')}_share": float(rounds[name].sum()) / all_s for name in STAGES}


def allocated_tokens(simulation: Simulation) -> int:
    """K/V slots that the engine would ask for before a run of a replica's requests, on the replica with most."""
    lengths: defaultdict[int, list[int]] = defaultdict(list)
    for request in simulation.log.requests:
        lengths[request.replica].append(request.most_tokens)
    engine = simulation.scenario.engine
    return max([_run_slots(engine, each) for each in lengths.values()], default=0)


def _run_slots(engine: Engine, lengths: list[int]) -> int:
    """Slots that the engine asks for before a run of requests of so many tokens each, prompt and budget together."""
    size = PoolSize.of_run(
        lengths,
        window_size=engine.resolved_window_size,
        batch_size=engine.batch_size,
        span=engine.num_speculative_tokens + 1,
        block_size=engine.block_size,
    )
    return PLACEMENTS[engine.layout].num_slots(size)


def _rows(rounds: Columns, requests: Columns) -> dict[str, float]:
    drafted, accepted, pairs = (float(rounds[name].sum()) for name in ("drafted", "accepted", "live"))
    return {
        "draft_acceptance_rate": accepted / (drafted or math.nan),
        "mean_acceptance_length": 1 + accepted / (pairs or math.nan),
        "longest_wait_rounds": float(requests["longest_wait_rounds"].max(initial=0)),
        "longest_gap_s": float(requests["longest_gap_s"].max(initial=0)),
    }
