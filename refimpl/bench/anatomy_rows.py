"""Rows of the anatomy, and what they say about realignment.

- *scaling*: exponent of a power law fitted to the time of realignment over batch sizes, at one context.
- *bound*: "bandwidth" when the bytes move at half of the device's measured bandwidth or more, else "host": then the
  time is that of issuing operations, whatever the number of bytes.
"""

import math
import statistics
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, fields
from typing import Any

from refimpl.bench.work import Rates

LINEAR = (0.85, 1.15)  # exponents that count as linear
BANDWIDTH_BOUND = 0.5


@dataclass(frozen=True, slots=True)
class AnatomyRow:
    """One method, or `per_row`, at a batch size and a context; means over rounds, medians over repeats.

    Attributes:
        engine: method; or per_row, which moves the target's K/V alone and whose round is eqspec's with that instead.
        batch_size, context_tokens: rows, and tokens of the longest prompt.
        host_operations_per_round: fused gathers and write-backs; for per_row reads, slices and stacks.
        bytes_per_round: read plus written by them, of both models.
        realign_ms_per_round: of the stage that moves K/V, rounds without any included.
        ms_per_round: wall-clock of a round.
        share_realign: of it.
        checks_ms_per_round: of the run-time checks, on the host.
        share_checks: of the round.
        bytes_per_s: moved per second of that stage; 0 where nothing moves.
        fraction_of_bandwidth: of what a large copy reaches on the device.
        bound: host or bandwidth; none where nothing moves.
    """

    engine: str
    batch_size: int
    context_tokens: int
    host_operations_per_round: float
    bytes_per_round: float
    realign_ms_per_round: float
    ms_per_round: float
    share_realign: float
    checks_ms_per_round: float
    share_checks: float
    bytes_per_s: float
    fraction_of_bandwidth: float
    bound: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the time of realignment grows with the batch: fitted exponent, None where nothing moves."""

    engine: str
    context_tokens: int
    exponent: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class AnatomyRun:
    """Means over the rounds of one run, per round."""

    operations: float
    num_bytes: float
    realign_s: float
    checks_s: float
    round_s: float


def make_row(engine: str, batch_size: int, context: int, runs: Seq[AnatomyRun], rates: Rates) -> AnatomyRow:
    """Summarise the repeats of one place."""
    operations, num_bytes, realign_s, checks_s, round_s = (
        statistics.median(getattr(run, field.name) for run in runs) for field in fields(AnatomyRun)
    )
    speed = num_bytes / realign_s if num_bytes else 0.0
    fraction = speed / rates.bytes_per_s
    return AnatomyRow(
        engine=engine,
        batch_size=batch_size,
        context_tokens=context,
        host_operations_per_round=operations,
        bytes_per_round=num_bytes,
        realign_ms_per_round=1e3 * realign_s,
        ms_per_round=1e3 * round_s,
        share_realign=realign_s / round_s,
        checks_ms_per_round=1e3 * checks_s,
        share_checks=checks_s / round_s,
        bytes_per_s=speed,
        fraction_of_bandwidth=fraction,
        bound="none" if not num_bytes else "bandwidth" if fraction >= BANDWIDTH_BOUND else "host",
    )


def scalings(rows: Seq[AnatomyRow]) -> list[Scaling]:
    """Fit realignment's time against the batch size, for each engine and context with two or more batch sizes."""
    places = dict.fromkeys((row.engine, row.context_tokens) for row in rows)
    found = []
    for engine, context in places:
        here = [r for r in rows if (r.engine, r.context_tokens) == (engine, context)]
        moving = [(r.batch_size, r.realign_ms_per_round) for r in here if r.bytes_per_round]
        exponent = fitted_exponent(moving)
        found.append(Scaling(engine, context, exponent, _verdict(exponent, bool(moving))))
    return found


def fitted_exponent(points: Seq[tuple[float, float]]) -> float | None:
    """Slope of log y against log x by least squares; None for fewer than two different x."""
    if len({x for x, _ in points}) < 2:
        return None
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    return statistics.linear_regression(xs, ys).slope


def _verdict(exponent: float | None, moves: bool) -> str:
    if exponent is None:
        return "not known" if moves else "nothing moves"
    return "sublinear" if exponent < LINEAR[0] else "linear" if exponent <= LINEAR[1] else "superlinear"


def as_report(rows: Seq[AnatomyRow], fits: Seq[Scaling]) -> dict[str, Any]:
    """JSON-ready: ``{"rows": […], "scaling": […]}``."""
    return {"rows": [asdict(row) for row in rows], "scaling": [asdict(fit) for fit in fits]}
