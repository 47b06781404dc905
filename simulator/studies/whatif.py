"""What if batch, drafts, acceptance, load or device were others? One question, every method, a recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from refimpl.core.errors import require, shown
from refimpl.core.shown import Shown
from simulator.intervals import mean_interval
from simulator.runner import Results, simulate
from simulator.service.metrics import MANY_CENSORED, censored_share
from simulator.settings.fields import (
    COUNT,
    LEVEL,
    NON_NEGATIVE,
    PAIRED,
    PROBABILITY,
    WHOLE,
    check_fields,
    number_field,
)
from simulator.settings.kinds import DEFAULT_PROBABILITY
from simulator.settings.scenario import Scenario

METHODS = ("rollback", "masked", "eqspec", "exspec", "inplace")
METRICS = ("tokens_per_s", "latency_p99_s", "grouping_rate", "cost_per_million_tokens", "tokens_per_joule")
LABELS = {  # of what is moved, and of the metrics
    "batch_size": "batch size", "window_size": "window", "num_speculative_tokens": "drafts per round",
    "acceptance": "acceptance", "deviation": "its spread", "rate_per_s": "arrivals per s", "tokens_per_s": "tokens/s",
    "latency_p99_s": "P99 latency, s", "grouping_rate": "grouped rounds", "device": "device", "models": "models",
    "cost_per_million_tokens": "cost of 10⁶ tokens", "tokens_per_joule": "tokens/J",
}  # fmt: skip
NUM_REQUESTS = 64


@dataclass(frozen=True)
class WhatIf:
    """What a user may move.

    Attributes:
        batch_size: rows of a round.
        window_size: sequences that a grouped method chooses from; at least the batch size is used.
        num_speculative_tokens: drafts per row and round.
        acceptance: mean probability that a draft is right.
        deviation: standard deviation of that probability over the requests.
        rate_per_s: requests that arrive per second, `NUM_REQUESTS` of them; 0 for all of these at once, None for the
            requests of the scenario that is asked about.
        device: whose costs are computed (kind roofline), by name or YAML file; None for that of the scenario.
        models: TARGET+DRAFT, each by name or YAML file; None for those of the scenario. Where device or models are not
            the scenario's own, its `cost.from_calibration` is left out.

    Raises:
        InputError: a value out of range.
    """

    batch_size: int = number_field(COUNT, 4)
    window_size: int = number_field(COUNT, 16)
    num_speculative_tokens: int = number_field(WHOLE, 5)
    acceptance: float = number_field(PROBABILITY, DEFAULT_PROBABILITY)
    deviation: float = number_field(NON_NEGATIVE, 0.15)
    rate_per_s: float | None = number_field(NON_NEGATIVE, None)
    device: str | None = None
    models: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def scenario(self, base: Scenario, method: str) -> Scenario:
        """The scenario that answers for one method.

        Method, window, batch size, drafts and acceptance of `base` are replaced, its study only by a `rate_per_s`, its
        costs only by a `device` or `models`.

        Raises:
            InputError: a deviation that is impossible around that mean, or costs that the scenario cannot have.
        """
        changed = base.but({**self._changes(base), "engine.window_size": None}, method=method)
        if not changed.engine.scheduler_facts.windowed:
            return changed
        return changed.but({"engine.window_size": max(self.window_size, self.batch_size)})

    def _changes(self, base: Scenario) -> dict[str, object]:
        own = [each.name for each in base.workload.classes if each.acceptance]
        require(not own, f"acceptance is moved for all requests: leave it out of the classes {', '.join(own)}")
        changes: dict[str, object] = {
            "engine.batch_size": self.batch_size,
            "engine.num_speculative_tokens": self.num_speculative_tokens,
            "acceptance": self._acceptance(),
        }
        if self.rate_per_s is not None:
            changes["study"] = self._study(self.rate_per_s)
        if self.device or self.models:
            changes["cost"] = self._cost(base)
        return changes

    def _study(self, rate_per_s: float) -> dict[str, object]:
        if not rate_per_s:
            return {"kind": "offline", "num_requests": NUM_REQUESTS}
        arrivals = {"kind": "poisson", "rate_per_s": rate_per_s}
        return {"kind": "open", "num_requests": NUM_REQUESTS, "arrivals": arrivals}

    def _cost(self, base: Scenario) -> dict[str, object]:
        """Costs of kind roofline; what the scenario's own say beyond device and models is kept.

        A calibration that is laid over them is left out where the chosen ones are others: it was measured with its own.
        """
        own = base.cost.as_mapping() if base.cost.kind == "roofline" else {}
        known = dict(own)
        if self.device:
            known["device"] = self.device
        if self.models:
            target, _, draft = self.models.partition("+")
            require(bool(target and draft), f"models must be TARGET+DRAFT, not {shown(self.models)}")
            known |= {"target": target, "draft": draft}
        complete = {"device", "target"} <= set(known)
        require(complete, "choose both a device and models: costs of the scenario are not of kind roofline")
        if known != own:
            known.pop("from_calibration", None)
        return {"kind": "roofline"} | known

    def _acceptance(self) -> dict[str, object]:
        """Beta(a, b) of that mean and deviation, in the limit of no deviation one probability for all."""
        if not self.deviation:
            return {"kind": "iid", "probability": self.acceptance}
        variance = self.acceptance * (1 - self.acceptance)
        possible = f"deviation must be below {max(variance, 0) ** 0.5:.2f} at a mean of {self.acceptance:g}"
        require(0 < self.deviation**2 < variance, f"{possible}, not {self.deviation:g}")
        total = variance / self.deviation**2 - 1
        return {"kind": "beta", "a": self.acceptance * total, "b": (1 - self.acceptance) * total}


@dataclass(frozen=True, eq=False, repr=False)
class Outlook(Shown):
    """What each method does with the question.

    Attributes:
        question: as asked.
        results: method → its replications, of the same requests.
    """

    question: WhatIf
    results: dict[str, Results]

    def __repr__(self) -> str:
        best, second = self.ranking[:2]
        gain, low, high = self.margin()
        if np.isnan(gain):
            return f"{best} or {second}, not decided: no replication has {self.judged_by} of both, {self._runs}"
        decided = f"take {best}:" if low > 0 else f"{best} or {second}, not decided: {best}"
        better = "lower P99 latency than" if self.judged_by == "latency_p99_s" else "more tokens/s than"
        known = f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        interval = f"({'no interval: known in one replication alone' if np.isnan(low) else known})"
        return f"{decided} {100 * gain:.1f} % {better} {second} {interval}, {self._runs}"

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """What any method asked of a calibration outside its points; empty means that nothing was."""
        return tuple(sorted({what for found in self.results.values() for what in found.extrapolated}))

    @property
    def _runs(self) -> str:
        """What was simulated: nobody is there at the beginning, which a server that runs all day has seldom.

        With the components whose costs were extrapolated, if any were.
        """
        study = next(iter(self.results.values())).scenario.study
        if study.ends_with_record:
            what = f"all requests of {study.arrivals['path']}"
        else:
            what = f"{study.duration_s:g} s" if study.num_requests is None else f"{study.num_requests} requests"
        beyond = ", ".join(sorted({each.partition(":")[0] for each in self.extrapolated}))
        return f"of {what} from an empty server" + (f"; costs were extrapolated: {beyond}" if beyond else "")

    @property
    def judged_by(self) -> str:
        """The metric of the recommendation: the 99th percentile of latency.

        Tokens per second offline, and where a method leaves many requests unfinished: their latencies are not known.
        """
        studies = {found.scenario.study.kind for found in self.results.values()}
        censored = max(censored_share(found.metrics.mean()) for found in self.results.values())
        by_tokens = studies == {"offline"} or censored > MANY_CENSORED
        return "tokens_per_s" if by_tokens else "latency_p99_s"

    def common(self, metric: str) -> pd.DataFrame:
        """A metric of each method, in the replications in which all have it ``[replication, method]``.

        A latency needs a request that finishes. Methods that never have the metric are left out.
        """
        runs = pd.DataFrame({method: found.metrics[metric] for method, found in self.results.items()})
        return runs.dropna(axis=1, how="all").dropna()

    @property
    def ranking(self) -> list[str]:
        """Methods, the best first; at the end those that never have the metric."""
        means = self.common(self.judged_by).mean().reindex(list(self.results))
        return list(means.sort_values(ascending=self.judged_by == "latency_p99_s", kind="stable").index)

    def margin(self, level: float = 0.95) -> tuple[float, float, float]:
        """How much better the best is than the second, as a share of the second, with the ends of its interval.

        The replications are paired: each has the same requests and the same luck for all methods.
        """
        LEVEL.check(level, "level")
        runs = self.common(self.judged_by).reindex(columns=self.ranking[:2])
        best, second = (runs[method].to_numpy() for method in runs)
        gain = second - best if self.judged_by == "latency_p99_s" else best - second
        return mean_interval(gain / mean_interval(second, level)[0], level)[:3]

    def to_frame(self) -> pd.DataFrame:
        """Method → mean of each metric, the best first."""
        return pd.DataFrame({name: self.common(name).mean() for name in METRICS}).reindex(self.ranking)


def outlook(
    question: WhatIf, base: Scenario | None = None, methods: Sequence[str] = METHODS, replications: int = 5
) -> Outlook:
    """Simulate every method on the same requests.

    Args:
        question: what is moved.
        base: the rest: costs, lengths, service, and the requests unless `rate_per_s` is given; the default scenario if
            None.
        methods: at least two, each once.
        replications: at least two.

    Example::

        outlook(WhatIf(batch_size=8, rate_per_s=1.5), Scenario(cost={"kind": "table", "calibration": "cpu/tiny"}))

    Raises:
        InputError: impossible values, or a question outside the calibrated range.
    """
    check_methods(methods)
    PAIRED.check(replications, "replications")
    base = base or Scenario()
    return Outlook(
        question, {m: simulate(question.scenario(base, m), replications, keep_frames=False) for m in methods}
    )


def check_methods(methods: Sequence[str]) -> None:
    """Raise InputError unless there are at least two, each once."""
    require(len(methods) > 1, "methods must be at least two, so that one can be recommended")
    require(len(set(methods)) == len(methods), f"methods must be named once each, not {', '.join(methods)}")


def speedup(
    question: WhatIf, base: Scenario | None = None, method: str = "inplace", replications: int = 5
) -> tuple[float, float, float]:
    """Tokens per second over those without drafts at the same batch size, and the ends of its 95 % interval.

    Both meet the same requests, so that the ratio is paired. Both have the draft loaded; without drafts it takes
    no more than the memory of its weights.

    Args:
        question, base: as for `outlook`.
        method: of both.
        replications: at least two.

    Example::

        pair = {"device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"}
        speedup(WhatIf(batch_size=8), Scenario(cost={"kind": "roofline", **pair}))
    """
    PAIRED.check(replications, "replications")
    speeds = [
        simulate(each.scenario(base or Scenario(), method), replications, keep_frames=False).metrics["tokens_per_s"]
        for each in (question, replace(question, num_speculative_tokens=0))
    ]
    return mean_interval((speeds[0] / speeds[1]).to_numpy(), 0.95)[:3]
