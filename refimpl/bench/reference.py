"""A fixed pass of the target, timed along with everything else: machines drift, and this shows by how much."""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

from refimpl.core.config import make_config
from refimpl.decoding.devices import synchronize
from refimpl.decoding.engine import Engine
from refimpl.decoding.timing import StageTimer
from refimpl.models.adapter import Pair
from refimpl.requests import prepare

INTERRUPTION = 4  # times the median of its kind
DUE_S = 0.25  # a run is accompanied by one reference pass in so many seconds
NEARBY_S = 3.0  # seconds around a visit from which its speed is taken
WARM = 5
CHECKS = "host"  # also of `raggedspec calibrate`: reference passes are compared across commands
TOKENS = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """When a reference pass ended, and how long it took, in seconds."""

    at_s: float
    seconds: float


class Reference:
    """A pass of the target over two rows of 64 tokens, four at a time.

    Args:
        pair: of which only the target runs.
        tokens: of both rows, repeated where there are fewer than 64.
        checks: level of run-time checks.

    Attributes:
        samples: every timing so far.
    """

    def __init__(self, pair: Pair, tokens: list[int], checks: str = CHECKS):
        tokens = list(islice(cycle(tokens), TOKENS))
        config = make_config(
            method="inplace+fifo", drafter="ngram", batch_size=2, num_speculative_tokens=3, stop_token_ids=[],
            checks=checks,
        )  # fmt: skip
        engine = Engine(pair, prepare(pair, [tokens, tokens[::-1]], config), config)
        engine.run_one_round()
        target = engine.context.target
        target.layout.begin(target.rows(engine.sequences), span=4)
        self.block = target.layout.block(torch.zeros(2, 4, dtype=torch.long, device=pair.device), -1)
        self.model, self.device = target.model, pair.device
        self.timer, self.samples = StageTimer(pair.device), list[Sample]()
        self.time_several(WARM)
        self.samples.clear()

    @torch.inference_mode()
    def time(self) -> float:
        """Run the pass once, on an idle device; return its seconds."""
        synchronize(self.device)
        with self.timer.stage("verify"):
            self.model.forward(self.block, 4)
        seconds = self.timer.take()["verify_s"]
        self.samples.append(Sample(time.perf_counter(), seconds))
        return seconds

    def time_several(self, count: int) -> None:
        """Run the pass so many times."""
        for _ in range(count):
            self.time()

    def time_when_due(self) -> list[float]:
        """Run the pass if the last one was some time ago; its seconds, or nothing."""
        due = not self.samples or time.perf_counter() - self.samples[-1].at_s > DUE_S
        return [self.time()] if due else []

    @property
    def mean_s(self) -> float:
        """Mean seconds of the pass, interruptions left out."""
        return statistics.mean(uninterrupted(sample.seconds for sample in self.samples))

    @property
    def cv(self) -> float:
        """Relative standard deviation of the pass."""
        seconds = uninterrupted(sample.seconds for sample in self.samples)
        return statistics.stdev(seconds) / statistics.mean(seconds)

    def near(self, begun_s: float, ended_s: float) -> float:
        """Mean seconds of the passes around an interval of time."""
        low, high = begun_s - NEARBY_S, ended_s + NEARBY_S
        return statistics.mean(uninterrupted(s.seconds for s in self.samples if low <= s.at_s <= high))


def uninterrupted(values: Iterable[float]) -> list[float]:
    """Leave out executions during which the process was stopped or the machine did other work."""
    values = list(values)
    limit = INTERRUPTION * statistics.median(values)
    return [value for value in values if value <= limit]


def pooled_cv(groups: Iterable[Sequence[float]]) -> float:
    """Relative standard deviation of values about the mean of their group; 0 where no group has two."""
    squares, freedom = 0.0, 0
    for values in groups:
        mean = statistics.mean(values)
        squares += sum((value / mean - 1) ** 2 for value in values)
        freedom += len(values) - 1
    return (squares / freedom) ** 0.5 if freedom else 0.0
