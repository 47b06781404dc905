"""When tokens come, by a clock that moves a second a round, and while somebody sleeps or reads."""

import pytest

from refimpl import Request, generate, stream
from refimpl.decoding.engine import Engine

SETTINGS = {"batch_size": 2, "num_speculative_tokens": 0, "max_new_tokens": 2, "stop_token_ids": ()}
BEGIN_S = 100.0


class Clock:
    """In the place of the module `time`."""

    def __init__(self):
        self.now_s, self.slept_s = BEGIN_S, []

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0, "else it would never wake up"
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock, run_one_round = Clock(), Engine.run_one_round

    def a_second(engine):
        record = run_one_round(engine)
        clock.now_s += 1
        return record

    monkeypatch.setattr("refimpl.streaming.time", clock)
    monkeypatch.setattr(Engine, "run_one_round", a_second)
    return clock


def test_tokens_come_at_the_end_of_their_round(llama, clock):
    """Two rounds of the first request; the second comes at 10 and a third with it, nobody is there before."""
    requests = [Request([1]), Request([2], arrival_s=10.0), Request([3], arrival_s=10.0)]
    run = stream(llama, requests, **SETTINGS)
    assert [(event.index, event.time_s) for event in run] == [(0, 1), (0, 2), (1, 11), (2, 11), (1, 12), (2, 12)]
    assert clock.slept_s == [8]
    result = run.result()
    assert result.header["round_end_s"] == [1, 2, 11, 12]
    assert (result.header["arrival_s"], result.header["submitted_at"]) == ([0, 10, 10], [0, 2, 2])
    assert (result.stats.wall_s, result.stats.tokens_per_s) == (4, 6 / 4)


def test_who_is_submitted_comes_at_that_moment(llama, clock):
    run = stream(llama, [[1]], max_model_len=9, **SETTINGS)
    for event in run:
        if event.index == 0 and event.stop_reason:
            clock.now_s += 5  # of reading
            run.submit([[2]])
    header = run.result().header
    assert (header["arrival_s"], header["submitted_at"], header["round_end_s"]) == ([0, 7], [0, 2], [1, 2, 8, 9])
    assert run.result().stats.wall_s == 4


def test_who_is_submitted_between_rounds_is_told_where_all_come_at_once(llama, clock):
    """Before the first round its arrival is 0, as that of the others."""
    run = stream(llama, [[1]], max_model_len=9, **SETTINGS)
    run.run_one_round()
    clock.now_s = BEGIN_S  # the clock stands still
    run.submit([[2]])
    list(run)
    assert run.result().header["submitted_at"] == [0, 1]


def test_residents_are_those_of_the_mean_round(llama):
    """Two rows in two rounds, then one in three."""
    requests = [Request([1], max_new_tokens=2), Request([2], max_new_tokens=5)]
    stats = stream_result(llama, requests).stats
    assert (stats.most_residents, stats.mean_residents) == (2, (2 + 2 + 1 + 1 + 1) / 5)


def stream_result(pair, requests):
    run = stream(pair, requests, **SETTINGS)
    list(run)
    return run.result()


def test_progress_counts_sequences_not_prompts(llama):
    """A prompt of several samples is as many; the last call says that all have finished."""
    for method in ("inplace", "autoregressive"):
        told = []
        requests = [Request([1], n=2), Request([2])]
        generate(llama, requests, method=method, progress=lambda *n, told=told: told.append(n), **SETTINGS)
        assert {whole for _, whole in told} == {3}
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert told[-1] == (3, 3)
        assert told[0][0] < 3
