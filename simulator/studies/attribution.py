"""Where a gain comes from: Shapley values of the settings in which two scenarios differ.

Each factor is a group of settings. The value of a set of factors is the metric of the scenario that takes those
settings from b and the rest from a, on common random numbers; a factor's share is its mean contribution over all
orders of switching. The shares add up to b - a exactly, replication by replication, so each has a paired interval.
"""

from dataclasses import dataclass, fields
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import InputError, require
from simulator.intervals import mean_interval
from simulator.runner import Progress, run_all, run_replication
from simulator.service.metrics import ROUNDING, check_metric
from simulator.settings.fields import LEVEL, PAIRED, to_mapping
from simulator.settings.parts import Study
from simulator.settings.scenario import Scenario, ScenarioLike, as_scenario, from_data
from simulator.settings.tables import Table
from simulator.studies.comparison import verdict_of

FACTORS: dict[str, tuple[str, ...]] = {
    "refill": ("#refill", "switches.refill", "switches.zombies"),
    "grouping": (
        "#grouping", "engine.window_size", "engine.aging_bound", "switches.group_key", "switches.pad_ends",
    ),
    "prompts in chunks": ("#chunks", "engine.token_budget"),
    "scheduler": ("#scheduler",),
    "alignment cost": (
        "engine.layout", "engine.compaction_threshold", "switches.free_realign", "switches.realign_read_s",
        "switches.copy_launch_s", "switches.realign_layers", "switches.copy_groups", "switches.discard_mixed_caches",
    ),
    "k throttling": ("switches.k_policy", "engine.num_speculative_tokens"),
    "drafter and budget": ("engine.drafter", "engine.draft_budget", "lookup", "confidence", "head"),
    "draft caching": ("switches.draft_cache",),
    "padded prompts": ("switches.pad_prompts",),
    "bonus token": ("switches.keep_bonus",),
    "batch size": ("engine.batch_size",),
    "sorting": ("workload.sort_prompts",),
    "acceptance": ("acceptance",),
    "component costs": ("cost",),
}  # fmt: skip
STUDY = tuple(f"study.{item.name}" for item in fields(Study))
FLAGS = {  # scheduler -> refill, grouping, chunks
    "static": (False, False, False), "fifo": (True, False, False), "grouped": (True, True, False),
    "continuous": (True, False, True),
}  # fmt: skip
OTHER_FLAGS = (True, False, False)  # of a scheduler that is not made of these: it differs as a whole
MAX_FACTORS = 8
HEADINGS = {"share": "contribution", "relative": "of the difference"}


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Table):
    """Shares of a difference.

    Attributes:
        metric: what was attributed.
        a, b: mean of the metric; it and the shares are of the replications in which every mixture has the metric.
        table: factor → share (in the metric's unit), low, high, relative (share over b - a), and what taking the factor
            from b does, in the words of `Comparison`. Printed columns are called as `HEADINGS` says.
        per_replication: shares ``[replication, factor]``.
        extrapolated: what lay outside the calibrated range in any mixture; empty means that nothing did.
    """

    metric: str
    a: float
    b: float
    table: pd.DataFrame
    per_replication: pd.DataFrame
    extrapolated: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Attribution({self.metric}: {self.a:.4g} to {self.b:.4g}, {len(self.table) - 1} factors)"

    def to_frame(self) -> pd.DataFrame:
        """The table of the shares."""
        return self.table


def flatten(scenario: Scenario) -> dict[str, Any]:
    """Settings by dotted path; the scheduler becomes flags, ``#refill``, ``#grouping`` and ``#chunks``.

    One that has no flags keeps its name, ``#scheduler``, which is empty for the others.
    """
    flat: dict[str, Any] = {}
    for name, value in to_mapping(scenario).items():
        nested = (isinstance(value, dict) and "kind" not in value) or name == "study"
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if nested else {name: value}
    scheduler = flat.pop("engine.scheduler")
    flat["#refill"], flat["#grouping"], flat["#chunks"] = FLAGS.get(scheduler, OTHER_FLAGS)
    flat["#scheduler"] = "" if scheduler in FLAGS else scheduler
    return flat


def unflatten(flat: dict[str, Any]) -> Scenario:
    """Back from `flatten`.

    Grouping or chunks without refill are a window that is filled only once it is empty. With prompts in chunks all rows
    of the window run, so that grouping does nothing beside them.
    """
    flat = dict(flat)
    refill, grouping, chunks = (flat.pop(name) for name in ("#refill", "#grouping", "#chunks"))
    flagged = "continuous" if chunks else "grouped" if grouping else "fifo" if refill else "static"
    flat["engine.scheduler"] = flat.pop("#scheduler") or flagged
    if not refill and (grouping or chunks):
        flat["switches.refill"] = False
    data: dict[str, Any] = {}
    for path, value in flat.items():
        head, _, tail = path.partition(".")
        if tail:
            data.setdefault(head, {})[tail] = value
        else:
            data[head] = value
    return from_data(data)


def differing_factors(a: Scenario, b: Scenario) -> dict[str, tuple[str, ...]]:
    """Factors in which two scenarios differ, and the settings of each that differ; any other setting is its own factor.

    Studies of two kinds, or of which one lasts for requests, one for seconds or one for a record of arrivals, are one
    factor: the settings of one have no meaning in the other.
    """
    flat_a, flat_b = flatten(a), flatten(b)
    differing = [path for path in flat_a if path != "name" and flat_a[path] != flat_b[path]]
    require("seed" not in differing, f"seed differs: {a.seed} and {b.seed}; equal seeds share their random numbers")
    kinds = {(each.kind, each.num_requests is None, each.ends_with_record) for each in (a.study, b.study)}
    groups = FACTORS | ({"study": STUDY} if len(kinds) > 1 else {})
    factors = {name: tuple(p for p in paths if p in differing) for name, paths in groups.items()}
    known = {path for paths in factors.values() for path in paths}
    factors |= {path: (path,) for path in differing if path not in known}
    return {name: paths for name, paths in factors.items() if paths}


def mix(a: Scenario, b: Scenario, paths: set[str]) -> Scenario:
    """The scenario that takes `paths` from b and the rest from a."""
    flat_b = flatten(b)
    return unflatten(flatten(a) | {path: flat_b[path] for path in paths})


def attribute(
    a: ScenarioLike,
    b: ScenarioLike,
    replications: int = 10,
    *,
    metric: str = "tokens_per_s",
    level: float = 0.95,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Attribution:
    """Attribute the difference b - a of a metric to the factors in which they differ.

    Args:
        a, b: scenarios, or their YAML files, with equal seeds.
        replications: of every mixture of the two, at least two.
        metric: what is attributed.
        level: confidence of each interval.
        workers: processes; the result does not depend on it.
        progress: True draws a bar; a function is called with (done, planned) after every replication.

    Raises:
        InputError: equal scenarios, different seeds, too many factors, a mixture that is impossible, or no
            replication in which all of them have the metric.
    """
    PAIRED.check(replications, "replications")
    LEVEL.check(level, "level")
    a, b = as_scenario(a), as_scenario(b)
    for each in (a, b):
        check_metric(metric, each)
    factors = differing_factors(a, b)
    names = list(factors)
    require(bool(names), "the scenarios do not differ in anything that matters")
    require(len(names) <= MAX_FACTORS, f"{len(names)} factors differ ({', '.join(names)}); at most {MAX_FACTORS}")
    subsets = [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]
    mixtures = [_mixture(a, b, factors, subset) for subset in subsets]
    found, extrapolated = _metric_of(mixtures, metric, replications, workers, progress)
    common = np.isfinite(found).all(axis=0)
    require(bool(common.any()), f"no replication has {metric} in every mixture of the two: run longer, or more of them")
    values = dict(zip(subsets, found[:, common], strict=True))
    own = {name: shapley_share(name, names, values) for name in names}
    shares = pd.DataFrame(own, index=np.flatnonzero(common))
    empty, full = values[frozenset()], values[frozenset(names)]
    table = _table(metric, shares, empty, full, level)
    return Attribution(metric, float(empty.mean()), float(full.mean()), table, shares, extrapolated)


def _mixture(a: Scenario, b: Scenario, factors: dict[str, tuple[str, ...]], subset: frozenset[str]) -> Scenario:
    try:
        return mix(a, b, {path for name in subset for path in factors[name]})
    except InputError as error:
        raise InputError(f"with only {', '.join(sorted(subset)) or 'nothing'} switched: {error}") from None


def _metric_of(
    scenarios: list[Scenario], metric: str, replications: int, workers: int, progress: Progress | bool | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Metric of each scenario ``[scenario, replication]``, and what any of them had to extrapolate."""
    jobs = [(scenario, index) for scenario in scenarios for index in range(replications)]
    runs = run_all(run_replication, jobs, workers, "replications", progress, keep_frames=False)
    values = np.array([run.metrics.get(metric, np.nan) for run in runs]).reshape(len(scenarios), replications)
    return values, tuple(sorted({what for run in runs for what in run.extrapolated}))


def shapley_share(name: str, names: list[str], values: dict[frozenset[str], np.ndarray]) -> np.ndarray:
    """Mean contribution of a factor over all orders (Shapley 1953), per replication."""
    others = [other for other in names if other != name]
    total = np.zeros_like(values[frozenset()])
    for size in range(len(others) + 1):
        weight = factorial(size) * factorial(len(names) - size - 1) / factorial(len(names))
        for chosen in combinations(others, size):
            total = total + weight * (values[frozenset(chosen) | {name}] - values[frozenset(chosen)])
    return total


def _table(metric: str, shares: pd.DataFrame, empty: np.ndarray, full: np.ndarray, level: float) -> pd.DataFrame:
    lines, difference, rounding = list[dict[str, Any]](), full - empty, ROUNDING * np.abs(empty).max()
    for name in [*shares, "total"]:
        values = difference if name == "total" else shares[name].to_numpy()
        mean, low, high, _ = mean_interval(values, level)
        relative = mean / difference.mean() if difference.mean() else np.nan
        verdict = verdict_of(metric, values, low, high, rounding)
        line = {"factor": name, "share": mean, "low": low, "high": high}
        lines.append(line | {"relative": relative, "verdict": verdict})
    return pd.DataFrame(lines).set_index("factor")
