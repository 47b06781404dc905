"""The largest rate of arrivals at which a service keeps its promises."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log, log1p, log2

import numpy as np
import pandas as pd

from refimpl.core.errors import InputError, require
from simulator.runner import Progress, reporting, simulate
from simulator.settings.fields import SHARE, Range
from simulator.settings.kinds import ARRIVALS
from simulator.settings.scenario import Scenario, ScenarioLike, as_scenario
from simulator.settings.tables import Table

TOLERANCE = Range(1e-6, 1)  # below it, bisection would not end
ROUNDING = 1e-9  # a mean of shares that is the promise exactly may come out below it
MAX_STEPS = 24  # doublings or halvings until a rate is found on either side
COLUMNS = (
    "slo_attainment", "tokens_per_s", "busy_share", "occupancy", "queueing_mean_s", "first_token_p99_s",
    "per_token_mean_s", "cost_per_million_tokens", "tokens_per_joule",
)  # fmt: skip
FAR_BEHIND = 0.1  # share of the later half of the arrivals by which a server falls behind that they are too many for


@dataclass(frozen=True, eq=False, repr=False)
class Capacity(Table):
    """What was found.

    Attributes:
        rate_per_s: the largest rate tried at which the promise was kept; of ``on_off``, while on.
        broken_at_per_s: the smallest rate tried at which it was not.
        table: rate → `COLUMNS`, means over the replications, the 95 % interval of the attainment, the attainment of
            each class, and `behind`, see `share_behind`; in order of rate.
        extrapolated: what lay outside the calibrated range at any of the rates; empty means that nothing did.
    """

    rate_per_s: float
    broken_at_per_s: float
    table: pd.DataFrame
    extrapolated: tuple[str, ...] = ()

    def __repr__(self) -> str:
        growing = ", where the queue was still growing" if self.queue_grew else ""
        return f"Capacity({self.rate_per_s:.4g} requests/s{growing}, broken at {self.broken_at_per_s:.4g})"

    @property
    def queue_grew(self) -> bool:
        """Whether the server could not finish as many requests as came at `rate_per_s`: more of them would break it."""
        return bool(self.table.loc[self.rate_per_s, "behind"] > FAR_BEHIND)

    def to_frame(self) -> pd.DataFrame:
        """The table of the rates that were tried."""
        return self.table


def find_capacity(
    scenario: ScenarioLike,
    attainment: float = 0.99,
    *,
    tolerance: float = 0.02,
    replications: int = 10,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Capacity:
    """Search for the largest ``rate_per_s`` at which enough requests finish within the scenario's limits.

    Rates are doubled or halved from the scenario's own until one keeps and one breaks the promise, then the interval
    between them is halved. All rates meet the same random numbers, so attainment falls as the rate grows, apart from
    chance: a rate is judged by the mean over the replications.

    Args:
        scenario: an open study with a limit and with arrivals that have a rate, or its YAML file; more requests make
            it more exact.
        attainment: share of the requests, and of those of each class, that must finish within the limits.
        tolerance: stop when the two rates are that close, as a share.
        replications, workers: of each rate.
        progress: True draws a bar; a function is called with (rates tried, rates planned) after every rate.

    Raises:
        InputError: another study, no limit, or a promise that every rate keeps or none does.
    """
    SHARE.check(attainment, "attainment")
    TOLERANCE.check(tolerance, "tolerance")
    require_a_rate_and_a_limit(scenario := as_scenario(scenario))
    with reporting(progress, "rates") as report:
        planned = 2 + ceil(log2(log(2) / log1p(tolerance)))
        trials = Trials(scenario, attainment, replications, workers, lambda n: report(n, max(n, planned)))
        kept, broken = _bracket(trials.keeps, scenario.study.arrivals["rate_per_s"], attainment)
        while broken / kept - 1 > tolerance:
            middle = (kept * broken) ** 0.5
            kept, broken = (middle, broken) if trials.keeps(middle) else (kept, middle)
    return Capacity(kept, broken, trials.table(), tuple(sorted(trials.extrapolated)))


@dataclass
class Trials:
    """Rates that were tried, and what came of each.

    Attributes:
        scenario: an open study with limits.
        attainment: share of the requests, and of those of each class, that must finish within them.
        replications, workers: of each rate.
        report: called with the number of rates so far.
        summaries: rate → metric → mean over the replications with its interval, and `behind`.
        extrapolated: what lay outside the calibrated range at any of them.
    """

    scenario: Scenario
    attainment: float
    replications: int
    workers: int
    report: Callable[[int], None]
    summaries: dict[float, pd.DataFrame] = field(default_factory=dict)
    extrapolated: set[str] = field(default_factory=set)

    def keeps(self, rate_per_s: float) -> bool:
        """Simulate a rate; whether the promise is kept there, to every class."""
        tried = self.scenario.but({"study.arrivals.rate_per_s": rate_per_s})
        results = simulate(tried, self.replications, workers=self.workers)
        summary = results.summary()
        summary.loc["behind", "mean"] = share_behind(results.frame("requests"))
        self.summaries[rate_per_s] = summary
        self.extrapolated.update(results.extrapolated)
        self.report(len(self.summaries))
        return bool(self.kept(rate_per_s) >= self.attainment - ROUNDING)

    def keeps_up(self, rate_per_s: float) -> bool:
        """As `keeps`; and whether the server finishes as many requests as come."""
        return self.keeps(rate_per_s) and not self.falls_behind(rate_per_s)

    def falls_behind(self, rate_per_s: float) -> bool:
        """Whether, at a rate that was tried, far fewer requests finish than come."""
        return bool(self.summaries[rate_per_s].loc["behind", "mean"] > FAR_BEHIND)

    def kept(self, rate_per_s: float) -> float:
        """Share of the requests within their limits at a rate that was tried: of the class with least of them."""
        names = [f"slo_attainment.{each.name}" for each in self.scenario.workload.classes] or ["slo_attainment"]
        return float(self.summaries[rate_per_s].loc[names, "mean"].min())

    def table(self) -> pd.DataFrame:
        """Rate → `COLUMNS`, with the interval behind the attainment, then those of classes and `behind`."""
        first, *rest = COLUMNS
        own = [f"slo_attainment.{each.name}" for each in self.scenario.workload.classes]
        means = {rate: summary["mean"] for rate, summary in self.summaries.items()}
        ends = {rate: summary.loc[first, ["low", "high"]] for rate, summary in self.summaries.items()}
        frame = pd.concat([pd.DataFrame(means).T, pd.DataFrame(ends).T], axis=1).sort_index()
        return frame[[first, "low", "high", *own, *rest, "behind"]].rename_axis("rate_per_s")


def share_behind(requests: pd.DataFrame) -> float:
    """How far finishes fall behind arrivals while the later half of the requests come, mean over replications.

    As a share of the requests that arrive in it: about 0 where the queue is as long at its end as at its beginning. The
    first half, in which an empty server fills, is left out.
    """
    shares = []
    for _, run in requests.groupby("replication"):
        begin_s, end_s = run["arrival_s"].quantile([0.5, 1.0])
        came, done = (((run[name] > begin_s) & (run[name] <= end_s)).sum() for name in ("arrival_s", "finished_s"))
        shares.append((came - done) / max(came, 1))
    return float(np.mean(shares))


def require_a_rate_and_a_limit(scenario: Scenario) -> None:
    """Raise InputError unless some rate can be found at which a scenario keeps a promise."""
    study = scenario.study
    require(study.kind == "open", f"plan needs a study of kind open, not {study.kind}")
    unfinished = "what is unfinished when the clock stops would count as a broken promise"
    require(study.duration_s is None, f"plan needs study.num_requests in place of study.duration_s: {unfinished}")
    refused = "a server that breaks the promise has no steady state, and is refused there"
    require(study.warmup == "none", f"plan needs study.warmup none, not {study.warmup}: {refused}")
    rated = [kind for kind, parameters in ARRIVALS.items() if "rate_per_s" in parameters]
    kind = study.arrivals.kind
    require(kind in rated, f"plan needs study.arrivals with a rate ({', '.join(rated)}), not {kind}")
    require(scenario.has_limits, "plan needs service.slo_first_token_s or slo_per_token_s")


def _bracket(keeps: Callable[[float], bool], start: float, attainment: float) -> tuple[float, float]:
    """A rate that keeps the promise, and twice that, which does not."""
    rate, up = start, keeps(start)
    for _ in range(MAX_STEPS):
        other = rate * 2 if up else rate / 2
        if keeps(other) != up:
            return (rate, other) if up else (other, rate)
        rate = other
    said, cure = ("all", "ask for more requests") if up else ("none", "no rate is small enough")
    rates = f"the rates {start:g} … {rate:g}/s"
    raise InputError(f"{said} of {rates} reach an attainment of {attainment:g}: {cure}")


def fewest(keeps: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The least number, up to `most`, that keeps a promise which all larger ones keep; None where there is none.

    From a guess in steps that double, then by halves.
    """
    broken, kept, step = 0, min(guess, most), 1
    while not keeps(kept):
        if kept == most:
            return None
        broken, kept = kept, min(2 * kept, most)
    while kept - broken > 1:
        middle = (broken + kept) // 2 if broken else max(1, kept - step)
        step *= 2
        broken, kept = (broken, middle) if keeps(middle) else (middle, kept)
    return kept
