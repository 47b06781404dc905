"""From visits to the table of points and its uncertainty."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from refimpl.bench.reference import Reference, pooled_cv, uninterrupted
from refimpl.calibrate.visits import Place, Visit
from refimpl.core.formats import POINT_COLUMNS


@dataclass(frozen=True, slots=True)
class Execution:
    """Seconds of one execution at the reference's mean speed."""

    seconds: float
    pass_index: int
    growth_tokens: int


class Points:
    """Executions by place, those of interrupted rounds left out.

    A stage that took long counts, since runs have such stages too, unless its whole round was interrupted.

    Attributes:
        executions: place → its executions.
        num_interrupted: rounds left out.
    """

    def __init__(self, visits: list[Visit], reference: Reference):
        of_kind: dict[tuple[str, int, int, int], list[float]] = defaultdict(list)
        for timed in (timed for visit in visits for timed in visit.rounds):
            of_kind[timed.kind].append(timed.seconds)
        kept = {kind: set(uninterrupted(seconds)) for kind, seconds in of_kind.items()}
        self.visits = [
            replace(visit, rounds=tuple(timed for timed in visit.rounds if timed.seconds in kept[timed.kind]))
            for visit in visits
        ]
        self.num_interrupted = sum(map(len, of_kind.values())) - sum(len(visit.rounds) for visit in self.visits)
        collected: dict[Place, list[Execution]] = defaultdict(list)
        for visit in self.visits:
            speed = reference.mean_s / reference.near(visit.begun_s, visit.ended_s)
            for timing in (timing for timed in visit.rounds for timing in timed.timings):
                execution = Execution(timing.seconds * speed, visit.pass_index, timing.growth_tokens)
                collected[timing.place].append(execution)
        self.executions = dict(sorted(collected.items(), key=lambda item: _key(item[0])))

    def lines(self) -> list[dict[str, Any]]:
        """One line per point, as points.csv holds it."""
        growth: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, found in self.executions.items():
            growth[place.component, place.layout] += [execution.growth_tokens for execution in found]
        grown = {key: round(statistics.mean(values)) for key, values in growth.items()}
        return [
            _line(place, grown[place.component, place.layout], [execution.seconds for execution in found])
            for place, found in self.executions.items()
            if (place.component, place.layout, place.batch_size) not in self.holed
        ]

    @property
    def holed(self) -> set[tuple[str, str, int]]:
        """Batch sizes without some point that longer rows or larger batches have: no grid can hold them.

        This happens if K/V hardly ever move. At the far corner, which may not fit the device, points may be missing.
        """
        places = self.executions.keys()
        return {
            (lesser.component, lesser.layout, lesser.batch_size)
            for place in places
            for lesser in _lesser(place, places)
            if lesser not in self.executions
        }

    def drift(self) -> tuple[float, dict[str, float]]:
        """Relative standard deviation of a pass at reference speed, and standard error of each component's share.

        A pass, even one that was broken off, is compared with the means of the places that it has visited.
        """
        passes = sorted({visit.pass_index for visit in self.visits})
        total = [self._ratio(index, None) for index in passes]
        cv = {}
        for name in sorted({place.component for place in self.executions}):
            shares = [self._ratio(index, name) / whole for index, whole in zip(passes, total, strict=True)]
            cv[name] = statistics.stdev(shares) / len(shares) ** 0.5
        return statistics.stdev(total), cv

    def round_cv(self) -> float:
        """Relative standard deviation of a round's forward passes about the mean of its visit, pooled over visits."""
        of_kind: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        for number, visit in enumerate(self.visits):
            for timed in visit.rounds:
                of_kind[number, timed.kind].append(timed.forward_s)
        return pooled_cv(of_kind.values())

    def _ratio(self, pass_index: int, component: str | None) -> float:
        """Seconds of a pass over what its places take on average; 1 where it has none."""
        spent = expected = 0.0
        for place, found in self.executions.items():
            if component in (None, place.component):
                mine = [execution.seconds for execution in found if execution.pass_index == pass_index]
                spent += sum(mine)
                expected += len(mine) * statistics.mean(execution.seconds for execution in found)
        return spent / expected if expected else 1.0


def _lesser(place: Place, places: Iterable[Place]) -> Iterator[Place]:
    """Places of the same component with fewer rows, or shorter ones, on the axes of those that exist."""
    alike = [p for p in places if (p.component, p.layout) == (place.component, place.layout)]
    for rows in {p.batch_size for p in alike if p.batch_size < place.batch_size}:
        yield replace(place, batch_size=rows)
    for length in {p.prompt_len for p in alike if p.prompt_len < place.prompt_len}:
        yield replace(place, prompt_len=length)


def _key(place: Place) -> tuple[str, str, int, int, int]:
    return place.component, place.layout, place.batch_size, place.tokens_per_row, place.prompt_len


def _line(place: Place, growth: int, seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    deciles = statistics.quantiles(ordered, n=10, method="inclusive") if len(ordered) > 1 else ordered * 9
    numbers = (statistics.mean(ordered), statistics.median(ordered), deciles[0], deciles[8])
    width = place.prompt_len + growth if place.prompt_len >= 0 else 0
    at = (place.component, place.layout, place.batch_size, place.tokens_per_row, width, len(ordered))
    return dict(zip(POINT_COLUMNS, (*at, *(f"{x:.9f}" for x in numbers)), strict=True))
