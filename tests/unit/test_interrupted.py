"""A run that was interrupted in the middle of a round cannot go on: its sequences and K/V may be out of step."""

import asyncio

import pytest

from refimpl import InputError, stream
from refimpl.decoding.cached import CachedModel
from refimpl.streaming import Stream

PROMPTS = [[5, 6, 7], [8], [9, 4, 3, 2]]
REFUSED = "was interrupted in the middle of a round and cannot continue"
METHODS = ("inplace", "masked", "eqspec", "exspec", "rollback")


def interrupt(*_):
    raise KeyboardInterrupt


def interrupt_at(monkeypatch, number):
    forward, calls = CachedModel.forward, []

    def forward_until(self, *arguments):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return forward(self, *arguments)

    monkeypatch.setattr(CachedModel, "forward", forward_until)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [1, 2, 3, 6, 9])
def test_it_is_refused_and_a_new_one_is_right(llama, monkeypatch, method, number):
    settings = {"method": method, "batch_size": 2, "max_new_tokens": 10, "stop_token_ids": []}
    run = stream(llama, PROMPTS, **settings)
    interrupt_at(monkeypatch, number)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    for again in (lambda: list(run), run.result, run.run_one_round, lambda: run.submit([[1]])):
        with pytest.raises(InputError, match=REFUSED):
            again()
    fresh = stream(llama, PROMPTS, **settings)
    assert sum(len(event.token_ids) for event in fresh) == 30
    assert all(len(sequence.token_ids) == 10 for sequence in fresh.result().sequences)


def test_a_round_whose_events_are_lost_was_interrupted(llama, monkeypatch):
    """Else whoever iterates again misses tokens, and nothing says so."""
    run = stream(llama, PROMPTS, batch_size=2, max_new_tokens=10)
    next(iter(run))
    monkeypatch.setattr(Stream, "_events_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    monkeypatch.undo()
    for again in (lambda: list(run), run.result):
        with pytest.raises(InputError, match=REFUSED):
            again()


async def all_of(run):
    return [event async for event in run]


@pytest.mark.parametrize("read", [list, lambda run: asyncio.run(all_of(run))])
def test_it_has_no_end_even_if_all_that_was_left_is_cancelled(llama, monkeypatch, read):
    run = stream(llama, PROMPTS, batch_size=2, max_new_tokens=10)
    interrupt_at(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    for index in range(3):
        run.cancel(index)
    with pytest.raises(InputError, match=REFUSED):
        read(run)
