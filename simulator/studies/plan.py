"""The cheapest fleet that keeps a service's limits: which device, how many, and how each of them batches and drafts.

A coarse model, of full batches and mean lengths, orders every choice of a grid by what its fleet would cost. The most
promising ones are simulated: the fewest replicas are sought that keep the promise, each with its share of the arrivals.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import InputError, require
from refimpl.core.independent import tokens_per_round
from simulator.runner import Progress, reporting
from simulator.service.acceptance import acceptance_of
from simulator.service.admission import state_bytes
from simulator.service.cost import CostModel, Fed
from simulator.service.metrics import devices_of, limits_of
from simulator.service.scenario_cost import make_cost
from simulator.service.streams import TILE_REQUESTS, Streams
from simulator.service.workload import RequestSource
from simulator.settings.fields import COUNT, POSITIVE, SHARE
from simulator.settings.hardware import load_device
from simulator.settings.kinds import LOOKUP
from simulator.settings.scenario import Scenario, ScenarioLike, as_scenario
from simulator.studies.capacity import Trials, fewest, require_a_rate_and_a_limit

AXES: dict[str, tuple[Any, ...]] = {  # what is chosen beside the device, and from which values
    "method": ("paged+fifo", "paged+continuous"),
    "batch_size": (8, 16, 32, 64, 128),
    "num_speculative_tokens": (0, 1, 2, 3, 5),
}
MOST_REPLICAS = 1024
NEVER = (
    "not looked at: pools for prompts alone, failures, scaling, routers that know loads, and settings that are no axis"
)
STEPS = 24  # numbers of rows that the coarse model tries for a batch size
MEANS = ("tokens_per_joule", "slo_attainment", "busy_share", "occupancy", "first_token_p99_s", "per_token_mean_s")


@dataclass(frozen=True)
class Choice:
    """One replica as it may be, and what the coarse model says of it.

    Attributes:
        scenario: of the replica, at the rate of the whole service.
        settings: device, method, rows and drafts.
        price_per_hour: of its devices.
        rate_per_s: requests that it serves at most.
    """

    scenario: Scenario
    settings: dict[str, Any]
    price_per_hour: float
    rate_per_s: float

    @property
    def estimate_per_hour(self) -> float:
        """What a fleet of such replicas would cost, parts of one included."""
        return self.price_per_hour * self.scenario.study.arrivals["rate_per_s"] / self.rate_per_s


@dataclass(frozen=True)
class Fleet:
    """A choice that was simulated.

    Attributes:
        choice: what each replica is.
        replicas: fewest that keep the promise.
        trials: rates per replica that were tried.
    """

    choice: Choice
    replicas: int
    trials: Trials

    @property
    def price_per_hour(self) -> float:
        """Of all replicas."""
        return self.replicas * self.choice.price_per_hour

    @property
    def kept_with_one_less(self) -> float:
        """Share of the requests, of the class with least of them, that one replica less would serve in time."""
        return self.trials.kept(self._rate(self.replicas - 1)) if self.replicas > 1 else 0.0

    @property
    def one_less_falls_behind(self) -> bool:
        """Whether one replica less would finish fewer requests than come."""
        return self.replicas > 1 and self.trials.falls_behind(self._rate(self.replicas - 1))

    def as_mapping(self) -> dict[str, Any]:
        """One line of the plan."""
        known: dict[str, Any] = {"replicas": self.replicas, "price_per_hour": self.price_per_hour}
        known |= {"cost_per_million_tokens": self.tokens_cost}
        found = self.choice.settings | known | {name: self._summary.loc[name, "mean"] for name in MEANS}
        return found | {"kept": self.kept, "with_one_less": self.kept_with_one_less}

    @property
    def kept(self) -> float:
        """Share of the requests, of the class with least of them, that are in time."""
        return self.trials.kept(self._rate(self.replicas))

    @property
    def tokens_cost(self) -> dict[str, float]:
        """Of a million tokens: mean over replications, low and high of its 95 % interval."""
        return dict(self._summary.loc["cost_per_million_tokens", ["mean", "low", "high"]])

    @property
    def _summary(self) -> pd.DataFrame:
        return self.trials.summaries[self._rate(self.replicas)]

    def _rate(self, replicas: int) -> float:
        return float(self.choice.scenario.study.arrivals["rate_per_s"]) / replicas


@dataclass(frozen=True)
class Plan:
    """Fleets that keep the promise, the cheapest first, and what was not simulated.

    Attributes:
        fleets: that were simulated; of equal prices, first those with more requests in time, then with cheaper tokens.
        left_out: choices that were not, the most promising first.
        impossible: why choices cannot serve, and how many.
        extrapolated: what lay outside the calibrated range.
    """

    fleets: tuple[Fleet, ...]
    left_out: tuple[Choice, ...]
    impossible: dict[str, int]
    extrapolated: tuple[str, ...]

    def reasons(self) -> Iterator[str]:
        """Why the first is taken, and what was not looked at, in sentences."""
        first, *others = self.fleets
        if first.replicas > 1:
            growing = ", while its queue grows" * first.one_less_falls_behind
            yield f"one replica less would serve {100 * first.kept_with_one_less:.1f} % in time{growing}"
        if others:
            more, kept = others[0].price_per_hour / first.price_per_hour - 1, others[0].kept
            dearer = f"{100 * more:.3g} % more" if more else f"as much, with {100 * kept:.1f} % in time"
            yield f"the runner-up costs {dearer}"
        for reason, count in self.impossible.items():
            yield f"not simulated: {count}, {reason}"
        if self.left_out:
            share = self.left_out[0].estimate_per_hour / first.choice.estimate_per_hour
            count = len(self.left_out)
            yield f"not simulated: {count}, which cost at least {share:.2f} × the first by the coarse model"
        yield NEVER


def find_plan(
    scenario: ScenarioLike,
    prices: Mapping[str, float | None],
    attainment: float = 0.99,
    *,
    axes: Mapping[str, Sequence[Any]] = AXES,
    tries: int = 8,
    replications: int = 5,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Plan:
    """Search for the cheapest fleet.

    Args:
        scenario: an open study with costs of kind roofline, a limit, and the arrivals of the whole service; or its
            YAML file.
        prices: device → price of one for an hour, in any currency; None for that of its file.
        attainment: share of the requests of every class that must finish within the limits.
        axes: setting of the engine → values to choose from.
        tries: choices to simulate, unless more are the best with some value of a setting.
        replications, workers: of each simulation.
        progress: True draws a bar; a function is called with (choices done, choices to simulate) after each.

    Raises:
        InputError: another study or other costs, no price, no limit, or no choice that can serve.
    """
    SHARE.check(attainment, "attainment")
    COUNT.check(tries, "tries")
    require_a_rate_and_a_limit(scenario := as_scenario(scenario))
    require(scenario.cost.kind == "roofline", "plan needs costs of kind roofline, of target and draft: give cost")
    fixed = "plan seeks the fewest replicas that do everything, and are always there: leave out service.pools"
    require(not scenario.service.moves, f"{fixed}, failures and scaling, or give no devices")
    known = {name: _price(name, price) for name, price in prices.items()}
    choices, impossible = _choices(scenario, known, axes, attainment)
    require(bool(choices), f"plan: no choice can serve: {'; '.join(impossible)}")
    tried = _promising(choices, tries)
    fleets, extrapolated = [], set[str]()
    with reporting(progress, "choices") as report:
        for done, choice in enumerate(tried, 1):
            trials = Trials(choice.scenario, attainment, replications, workers, lambda rates: None)
            if replicas := _replicas(choice, trials):
                fleets.append(Fleet(choice, replicas, trials))
            extrapolated |= trials.extrapolated
            report(done, len(tried))
    require(bool(fleets), f"plan: with up to {MOST_REPLICAS} replicas none of the {len(tried)} most promising serves")
    fleets.sort(key=lambda fleet: (fleet.price_per_hour, -fleet.kept, fleet.tokens_cost["mean"]))
    left_out = tuple(choice for choice in choices if choice not in tried)
    return Plan(tuple(fleets), left_out, impossible, tuple(sorted(extrapolated)))


def _price(device: str, price: float | None) -> float:
    known = load_device(device).cost_per_hour if price is None else POSITIVE.check(price, f"price of {device}")
    require(known is not None, f"plan: no price of {device}: give DEVICE=PRICE, or cost_per_hour in its file")
    return float(known or 0)


def _choices(
    scenario: Scenario, prices: Mapping[str, float], axes: Mapping[str, Sequence[Any]], attainment: float
) -> tuple[list[Choice], dict[str, int]]:
    """Choices that may serve, the cheapest first by the coarse model, and how many cannot, by why."""
    choices, impossible = list[Choice](), dict[str, int]()
    for device, *values in product(prices, *axes.values()):
        settings = dict(zip(axes, values, strict=True))
        try:
            choices.append(_choice(scenario, device, prices[device], settings, attainment))
        except InputError as error:
            impossible[str(error)] = impossible.get(str(error), 0) + 1
    return sorted(choices, key=lambda choice: choice.estimate_per_hour), impossible


def _choice(scenario: Scenario, device: str, price: float, settings: dict[str, Any], attainment: float) -> Choice:
    """Raises InputError where the models do not fit, or no batch keeps the limits."""
    changes = {"cost.device": device, "service.cost_per_hour": price, "service.replicas": 1}
    changes |= {"engine.window_size": None} | {f"engine.{name}": value for name, value in settings.items()}
    if device != scenario.cost["device"]:
        changes["cost.from_calibration"] = ""
    if not settings.get("num_speculative_tokens", scenario.engine.num_speculative_tokens):
        changes["cost.draft"] = ""
    made = scenario.but(changes)
    cost = make_cost(made.but(noise=False), Streams(made.seed, 0))
    rate_per_s = Coarse(made, cost, attainment).rate_per_s
    require(rate_per_s > 0, "whose limits no batch keeps by the coarse model")
    return Choice(made, {"device": device} | settings, price * devices_of(made.engine, cost), rate_per_s)


def _promising(choices: Sequence[Choice], tries: int) -> list[Choice]:
    """The best with each value of every setting, then the best of the others."""
    best = {(name, value): choice for choice in reversed(choices) for name, value in choice.settings.items()}
    chosen = [choice for choice in choices if choice in best.values()]
    return [*chosen, *(choice for choice in choices if choice not in chosen)][: max(tries, len(chosen))]


def _replicas(choice: Choice, trials: Trials) -> int | None:
    """Fewest replicas that keep the promise; None where `MOST_REPLICAS` do not."""
    rate_per_s = choice.scenario.study.arrivals["rate_per_s"]
    guess = ceil(rate_per_s / choice.rate_per_s)
    return fewest(lambda replicas: trials.keeps_up(rate_per_s / replicas), guess, MOST_REPLICAS)


class Coarse:
    """A replica by closed formulas: full batches of requests of mean length.

    Args:
        scenario: of the replica.
        cost: without noise.
        attainment: share of the requests that must meet the limits.
    """

    def __init__(self, scenario: Scenario, cost: CostModel, attainment: float):
        self.scenario, self.cost, self.attainment = scenario, cost, attainment
        streams = Streams(scenario.seed, 0)
        self.k = scenario.engine.num_speculative_tokens
        source, indices = RequestSource(scenario, streams), np.arange(TILE_REQUESTS)
        lengths = [source.lengths(index) for index in indices.tolist()]
        self.prompt, output = (np.array([(prompt, min(out, budget)) for prompt, out, budget in lengths])).T
        rates = acceptance_of(scenario, streams).rates(0)
        self.per_round = np.array([self._tokens_per_round(rate) for rate in rates])
        self.rounds, self.width = output / self.per_round, int((self.prompt + output / 2).mean())
        classes = source.classes(indices)
        self.per_token_s = limits_of(scenario, "slo_per_token_s", classes)
        self.first_token_s = limits_of(scenario, "slo_first_token_s", classes)

    def _tokens_per_round(self, rate: float) -> float:
        """Of a request whose drawn drafts are right at a rate; a lookup finds tokens in a share of the rounds."""
        drafting, lookup = self.scenario.engine.drafting, self.scenario.lookup
        if drafting.lookup is None or lookup.kind == "trace":  # a run's own acceptance says what was right of both
            return tokens_per_round(rate, self.k)
        values = lookup.resolved(LOOKUP)
        most, probability = min(self.k, values["most_tokens"] or self.k), values["probability"]
        drawn, drawn_behind = (tokens_per_round(rate, n) if drafting.draws else 1.0 for n in (self.k, self.k - most))
        found = tokens_per_round(probability, most) + probability**most * (drawn_behind - 1)
        return float(values["found"] * found + (1 - values["found"]) * drawn)

    @property
    def rate_per_s(self) -> float:
        """Most requests that it serves within the limits, with any number of rows; 0 where none does."""
        engine, cost = self.scenario.engine, self.cost
        room = inf if cost.kv_capacity_bytes is None else cost.kv_capacity_bytes - state_bytes(engine, cost)
        fits = room // (cost.kv_bytes_per_token * (self.prompt.mean() + 2 * (self.width - self.prompt.mean())))
        rows = np.unique(np.geomspace(1, max(1.0, min(engine.batch_size, fits)), STEPS).astype(int))
        return max([self._rate(each) for each in rows.tolist()])

    def _rate(self, rows: int) -> float:
        """Of as many rows all the time; prompts between the rounds make these longer."""
        cost, k = self.cost, self.k
        draft_s = cost.point("draft", rows, k, self.width) if k and self.scenario.engine.drafting.uses_draft else 0.0
        round_s = draft_s + cost.point("verify", rows, k + 1, self.width) + cost.point("host", rows, k + 1)
        prefill_s = self._prefill_s(rows)
        request_s = self.rounds.mean() * round_s / rows + prefill_s
        apart_s = round_s * request_s / (request_s - prefill_s)
        in_time = (apart_s / self.per_round <= self.per_token_s) & (prefill_s + apart_s <= self.first_token_s)
        return 1 / request_s if in_time.mean() >= self.attainment else 0.0

    def _prefill_s(self, rows: int) -> float:
        """Of one request: beside rows that decode, or in a pass with the others that come in the same round."""
        prompt = float(self.prompt.mean())
        if self.scenario.engine.scheduler_facts.chunked:
            return sum(self.cost.beside(Fed(rows, self.k + 1, self.width), [Fed(1, prompt, 0)]))
        together = 1 + rows / self.rounds.mean()  # prompts of a round, as one of them meets them
        return self.cost.point("prefill", together, prompt) / together
