"""Stage timing: seconds of a round by stage. On CUDA with events, so that nothing waits for the measurement."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Stage = Literal["prefill", "draft", "verify", "realign", "record"]
STAGES: tuple[Stage, ...] = ("prefill", "draft", "verify", "realign", "record")


class StageTimer:
    """Adds up the time of each stage of the round in flight.

    `realign` is the time in which a layout moves K/V, gathers from or writes back to the pool. What a round takes
    beyond the stages is host work: scheduling, checks, bookkeeping. `record` is the time in which a round's work is
    recorded for replays to come; it falls on the first round of each width.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._events: list[tuple[Stage, torch.cuda.Event, torch.cuda.Event]] = []
        self._round_start = time.perf_counter()

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Charge the body to a stage."""
        if self._cuda:
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            stop.record()
            self._events.append((name, start, stop))
        else:
            begun = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - begun

    def take(self) -> dict[str, float]:
        """Return the round's seconds ``{stage}_s``, ``host_s`` and ``round_s``, and start the next round.

        On CUDA to be called after the round's copy to the host, when all of its events have passed.
        """
        for name, start, stop in self._events:
            stop.synchronize()
            self._seconds[name] += start.elapsed_time(stop) / 1e3
        now = time.perf_counter()
        total, staged = now - self._round_start, sum(self._seconds.values())
        result = {f"{name}_s": seconds for name, seconds in self._seconds.items()}
        result |= {"host_s": max(0.0, total - staged), "round_s": total}
        self._seconds, self._events, self._round_start = dict.fromkeys(STAGES, 0.0), [], now
        return result
