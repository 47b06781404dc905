"""Rows of the anatomy, and what they say about realignment.

- *scaling*: exponent of a power law fitted to the time of realignment over batch sizes, at one context, with a 95 %
  interval. Only batches that K/V move in every round count: a single row is never ragged, and where moves are rare the
  mean mixes two different costs.
- *bound*: "bandwidth" when the bytes move at half of the device's measured bandwidth or more, else "host": then the
  time is that of issuing operations and does not depend on the number of bytes.
"""

import math
import statistics
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, fields
from typing import Any

from refimpl.bench.work import Rates

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # 97.5 % quantiles of Student's t, by freedom from 1
BANDWIDTH_BOUND = 0.5


@dataclass(frozen=True, slots=True)
class AnatomyRow:
    """One method, or `per_row`, at a batch size and a context; means over rounds, medians over repeats.

    Attributes:
        engine: method; or per_row, which moves the target's K/V only and whose round is otherwise eqspec's.
        batch_size, context_tokens: rows, and tokens of the longest prompt.
        host_operations_per_round: fused gathers and write-backs; for per_row reads, slices and stacks.
        bytes_per_round: read plus written by them, of both models.
        realign_ms_per_round: of the stage that moves K/V, rounds without any included.
        ms_per_round: wall-clock of a round.
        share_realign: of it.
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
    bytes_per_s: float
    fraction_of_bandwidth: float
    bound: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the time of realignment grows with the batch.

    Attributes:
        engine, context_tokens: whose rows these are.
        exponent: fitted; None where K/V move every round at fewer than two batch sizes.
        low, high: 95 % interval of it; None with fewer than three batch sizes.
        verdict: linear where the interval includes 1, else sublinear or superlinear; "not known" without an interval,
            "nothing moves" where that is so in all batches of several rows.
    """

    engine: str
    context_tokens: int
    exponent: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class AnatomyRun:
    """Means over the rounds of one run, per round."""

    operations: float
    num_bytes: float
    realign_s: float
    round_s: float


def make_row(engine: str, batch_size: int, context: int, runs: Seq[AnatomyRun], rates: Rates) -> AnatomyRow:
    """Summarise the repeats of one place."""
    operations, num_bytes, realign_s, round_s = (
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
        bytes_per_s=speed,
        fraction_of_bandwidth=fraction,
        bound="none" if not num_bytes else "bandwidth" if fraction >= BANDWIDTH_BOUND else "host",
    )


def scalings(rows: Seq[AnatomyRow]) -> list[Scaling]:
    """Fit realignment's time against the batch size, for each engine and context."""
    places = dict.fromkeys((row.engine, row.context_tokens) for row in rows)
    return [_scaling(place, [r for r in rows if (r.engine, r.context_tokens) == place]) for place in places]


def _scaling(place: tuple[str, int], rows: Seq[AnatomyRow]) -> Scaling:
    ragged = [row for row in rows if row.batch_size > 1 and row.host_operations_per_round >= 1]
    exponent, interval = fitted_exponent([(row.batch_size, row.realign_ms_per_round) for row in ragged])
    low, high = interval or (None, None)
    moves = any(row.bytes_per_round for row in rows if row.batch_size > 1)
    return Scaling(*place, exponent, low, high, _verdict(interval) if moves else "nothing moves")


def fitted_exponent(points: Seq[tuple[float, float]]) -> tuple[float | None, tuple[float, float] | None]:
    """Slope of log y against log x by least squares, and its 95 % interval by Student's t.

    The slope is None for fewer than two different x, the interval for fewer than three.
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    if len(set(xs)) < 2:
        return None, None
    slope, intercept = statistics.linear_regression(xs, ys)
    freedom = len(xs) - 2
    if len(set(xs)) < 3:
        return slope, None
    residuals = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(residuals / freedom / sum((x - statistics.mean(xs)) ** 2 for x in xs))
    half = T_975[min(freedom, len(T_975)) - 1] * error
    return slope, (slope - half, slope + half)


def _verdict(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "not known"
    low, high = (round(end, 9) for end in interval)
    return "sublinear" if high < 1 else "superlinear" if low > 1 else "linear"


def as_report(rows: Seq[AnatomyRow], fits: Seq[Scaling]) -> dict[str, Any]:
    """JSON-ready: ``{"rows": […], "scaling": […]}``."""
    return {"rows": [asdict(row) for row in rows], "scaling": [asdict(fit) for fit in fits]}
