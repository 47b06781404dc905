"""Stage timing: seconds of a round by stage. On CUDA with events, so that nothing waits for the measurement."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from refimpl.core.records import STAGES, Stage


class StageTimer:
    """Adds up the time of each stage of the round in flight; what passes between two rounds belongs to neither.

    `realign` is the time in which a layout moves K/V, gathers from or writes back to the pool. What a round takes
    beyond the stages is host work: scheduling, checks, bookkeeping. `record` is the time in which a round's work is
    recorded for replays to come; it falls on the first round of each width.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._round, self._next = _Stages(), _Stages()
        self._charged = self._round
        self._round_start = time.perf_counter()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Charge stages in the body to the next round on CUDA, which may still run them when this round is taken."""
        self._charged = self._next if self._cuda else self._round
        try:
            yield
        finally:
            self._charged = self._round

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Charge the body to a stage."""
        stages = self._charged
        if self._cuda:
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            stop.record()
            stages.events.append((name, start, stop))
        else:
            begun = time.perf_counter()
            yield
            stages.seconds[name] += time.perf_counter() - begun

    def begin(self) -> None:
        """Start the clock of the round; without this it runs since the last one was taken."""
        self._round_start = time.perf_counter()

    def take(self) -> dict[str, float]:
        """Return the round's seconds ``{stage}_s``, ``host_s`` and ``round_s``, and start the next round.

        On CUDA to be called after the round's copy to the host, when all of its events have passed.
        """
        stages = self._round.total()
        now = time.perf_counter()
        total = now - self._round_start
        result = {f"{name}_s": seconds for name, seconds in stages.items()}
        result |= {"host_s": max(0.0, total - sum(stages.values())), "round_s": total}
        self._round, self._next, self._round_start = self._next, _Stages(), now
        self._charged = self._round
        return result


def sum_stages(records: Iterable[dict[str, float]]) -> dict[str, float]:
    """Seconds by stage over records of `StageTimer.take`, the rounds' own seconds left out."""
    total: dict[str, float] = {}
    for record in records:
        for name, seconds in record.items():
            if name != "round_s":
                stage = name.removesuffix("_s")
                total[stage] = total.get(stage, 0.0) + seconds
    return total


class _Stages:
    """What one round has spent so far: seconds, and events whose times are read when the round is over."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.events: list[tuple[Stage, torch.cuda.Event, torch.cuda.Event]] = []

    def total(self) -> dict[Stage, float]:
        for name, start, stop in self.events:
            stop.synchronize()
            self.seconds[name] += start.elapsed_time(stop) / 1e3
        return self.seconds
