"""Scenarios compared on common random numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import pandas as pd

from refimpl.core.errors import require, shown
from simulator.intervals import mean_interval
from simulator.runner import Progress, Results, run_all, run_replication
from simulator.service.metrics import ROUNDING, check_metric
from simulator.settings.fields import LEVEL, PAIRED
from simulator.settings.scenario import Scenario, ScenarioLike, as_scenario
from simulator.settings.tables import Table

EQUAL, UNCLEAR, UNDECIDED, UNKNOWN = "equal", "not distinguishable", "undecided", "not known"
BETTER = {  # which of two values is the better one -> starts of metrics' names; for all others neither is
    "higher": (
        "tokens_per_s", "requests_per_s", "completed", "goodput_per_s", "slo_attainment", "fairness",
        "tokens_per_joule",
    ),
    "lower": (
        "latency_", "service_", "first_token_", "per_token_", "inter_token_", "queueing_", "longest_gap_s", "censored",
        "kv_", "preemptions", "cost_per_million_tokens",
    ),
}  # fmt: skip


def verdict_of(metric: str, differences: np.ndarray, low: float, high: float, rounding: float = 0.0) -> str:
    """Whether b is higher or lower than a, by more than chance, and whether that is better where the metric says.

    Args:
        metric: what differs.
        differences: b - a in each replication.
        low, high: interval of their mean.
        rounding: differences up to it are none.
    """
    if (np.abs(differences) <= rounding).all():
        return EQUAL if len(differences) else UNKNOWN
    if not np.isfinite(low):
        return UNDECIDED
    if low <= rounding and high >= -rounding:
        return UNCLEAR
    side = "higher" if low > 0 else "lower"
    better = [way for way, names in BETTER.items() if metric.startswith(names)]
    return f"b {side}" + (", better" if better == [side] else ", worse" if better else "")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Table):
    """Two scenarios side by side, replication by replication.

    Attributes:
        a, b: results with equal seeds.
        level: confidence of each interval; metrics are judged one by one.
    """

    a: Results
    b: Results
    level: float = 0.95

    def __post_init__(self) -> None:
        LEVEL.check(self.level, "level")

    def __repr__(self) -> str:
        line = self.table.loc["tokens_per_s"]
        known = f"{line['a']:.4g} and {line['b']:.4g} tokens/s, {line['verdict']}"
        return f"Comparison({self.a.scenario.name!r}, {self.b.scenario.name!r}: {known})"

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """What lay outside the calibrated range in either."""
        return tuple(sorted({*self.a.extrapolated, *self.b.extrapolated}))

    @cached_property
    def table(self) -> pd.DataFrame:
        """metric → a, b, difference (b - a) with its paired interval, ratio b / a, n, verdict.

        All of them are of the n replications in which both have the metric: a latency needs a request that finishes.
        The verdict is about the model: `EQUAL` in every replication, `UNCLEAR` where chance may make the difference,
        else "b higher" or "b lower", with "better" or "worse" where the metric has a good direction (`BETTER`);
        `UNDECIDED` with a single replication, `UNKNOWN` with none. How far the costs are off for a method: see
        `validate`.
        """
        lines = [self._line(name) for name in self.a.metrics if name != "replication" and name in self.b.metrics]
        return pd.DataFrame(lines).set_index("metric")

    def _line(self, name: str) -> dict[str, Any]:
        a, b = self.a.metrics[name].to_numpy(), self.b.metrics[name].to_numpy()
        both = np.isfinite(a) & np.isfinite(b)
        mean_a, mean_b = (float(each[both].mean()) if both.any() else np.nan for each in (a, b))
        difference = np.where(np.isclose(a, b, rtol=ROUNDING, atol=0), 0.0, b - a)
        mean, low, high, n = mean_interval(difference[both], self.level)
        ratio = mean_b / mean_a if mean_a else np.nan
        line = {"metric": name, "a": mean_a, "b": mean_b, "difference": mean, "low": low, "high": high}
        return line | {"ratio": ratio, "n": n, "verdict": verdict_of(name, difference[both], low, high)}


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Table):
    """Several scenarios, each compared with the first.

    Attributes:
        first: name of the scenario that the others are compared with.
        pairs: name of each other scenario → its comparison, with the first as ``a``.
    """

    first: str
    pairs: dict[str, Comparison]

    def __repr__(self) -> str:
        lines = self.of("tokens_per_s")
        found = ", ".join(f"{name} {line['b']:.4g} ({line['verdict']})" for name, line in lines.iterrows())
        return f"Comparisons({self.first} {lines['a'].iloc[0]:.4g} tokens/s; {found})"

    def __getitem__(self, name: str) -> Comparison:
        require(name in self.pairs, f"name must be one of {', '.join(self.pairs)}, not {shown(name)}")
        return self.pairs[name]

    def to_frame(self) -> pd.DataFrame:
        """(scenario, metric) → the columns of `Comparison.table`, where ``a`` is the first scenario."""
        return pd.concat({name: pair.table for name, pair in self.pairs.items()}, names=["scenario"])

    def of(self, metric: str) -> pd.DataFrame:
        """One metric, a line per scenario."""
        check_metric(metric)
        return self.to_frame().xs(metric, level="metric")

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """What lay outside the calibrated range in any of them."""
        return tuple(sorted({what for pair in self.pairs.values() for what in pair.extrapolated}))


@overload
def compare(
    a: ScenarioLike,
    b: ScenarioLike,
    replications: int = 10,
    *,
    level: float = 0.95,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Comparison: ...
@overload
def compare(
    a: Mapping[str, ScenarioLike], b: None = None, replications: int = 10, *, level: float = 0.95, workers: int = 1,
    progress: Progress | bool | None = None,
) -> Comparisons: ...  # fmt: skip


def compare(
    a: ScenarioLike | Mapping[str, ScenarioLike],
    b: ScenarioLike | None = None,
    replications: int = 10,
    *,
    level: float = 0.95,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Comparison | Comparisons:
    """Simulate scenarios on common random numbers and pair their differences.

    Args:
        a, b: two scenarios or their YAML files; or, in place of `a` alone, a mapping of names to two or more of them,
            each of which is compared with the first.
        replications: of each scenario, at least two.
        level: confidence of each interval; metrics are judged one by one.
        workers: processes; the result does not depend on it.
        progress: True draws a bar; a function is called with (done, planned) after every replication.

    Raises:
        InputError: different seeds, or fewer than two scenarios or replications.
    """
    given = a if isinstance(a, Mapping) else {"a": a} | ({} if b is None else {"b": b})
    require(len(given) > 1, "compare needs two scenarios, or a mapping of names to two or more")
    require(b is None or not isinstance(a, Mapping), "compare takes two scenarios or one mapping, not both")
    PAIRED.check(replications, "replications")
    LEVEL.check(level, "level")
    scenarios = {name: as_scenario(each) for name, each in given.items()}
    first, *others = _simulated(list(scenarios.values()), replications, workers, progress)
    if not isinstance(a, Mapping):
        return Comparison(first, others[0], level)
    label, *rest = scenarios
    return Comparisons(label, {name: Comparison(first, each, level) for name, each in zip(rest, others, strict=True)})


def _simulated(
    scenarios: list[Scenario], replications: int, workers: int, progress: Progress | bool | None
) -> list[Results]:
    first = scenarios[0]
    for each in scenarios[1:]:
        message = f"seed differs: {first.seed} and {each.seed}; equal seeds share their random numbers"
        require(first.seed == each.seed, message)
    jobs = [(each, index) for each in scenarios for index in range(replications)]
    runs = run_all(run_replication, jobs, workers, "replications", progress, keep_frames=False)
    starts = range(0, len(runs), replications)
    return [Results(each, tuple(runs[at : at + replications])) for each, at in zip(scenarios, starts, strict=True)]
