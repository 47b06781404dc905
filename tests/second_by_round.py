"""A clock that stands still but for rounds, which take a second each, for sleepers, and for those who set it."""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

from refimpl.decoding.engine import Engine


class Clock:
    """In the place of the module `time`; `records` are those of all rounds."""

    def __init__(self):
        self.now_s, self.slept_s, self.records = 100.0, [], []

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept_s += [seconds] if seconds else []
        self.now_s += seconds

    async def sleep_beside_others(self, seconds):
        self.sleep(seconds)
        await asyncio.sleep(0)


@contextmanager
def second_by_round():
    """Streams go by the clock that this yields."""
    clock, run_one_round = Clock(), Engine.run_one_round

    def a_second(engine):
        clock.records.append(run_one_round(engine))
        clock.now_s += 1
        return clock.records[-1]

    slow = mock.patch.object(Engine, "run_one_round", a_second)
    sleeper = SimpleNamespace(sleep=clock.sleep_beside_others)
    with slow, mock.patch("refimpl.streaming.time", clock), mock.patch("refimpl.streaming.asyncio", sleeper):
        yield clock
