"""What an interrupt, or an error of the prompts' iterator, leaves of a run: all of it, or a stream that is broken."""

import asyncio
from threading import Thread

import pytest

from refimpl import InputError, generate, stream
from refimpl.decoding.cached import CachedModel
from refimpl.requests import SequenceMaker
from refimpl.scheduling import Scheduler
from refimpl.streaming import Stream

PROMPTS = [[5, 6, 7], [8], [9, 4, 3, 2]]
SETTINGS = {"batch_size": 2, "max_new_tokens": 6, "max_model_len": 16, "stop_token_ids": []}
BROKEN = "in the middle of a round, or was interrupted"


def interrupt_call(monkeypatch, owner, name, number, after=False):
    """Interrupt a call of a function by its number, before its work or after it."""
    original, calls = getattr(owner, name), []

    def interrupted(*arguments, **named):
        calls.append(1)
        done = original(*arguments, **named) if after or len(calls) != number else None
        if len(calls) == number:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(owner, name, interrupted)


async def all_of(run):
    return [event async for event in run]


def require_broken(run):
    uses = [run.result, run.run_one_round, lambda: list(run), lambda: asyncio.run(all_of(run))]
    for use in [*uses, lambda: run.submit([[1]]), lambda: run.cancel(0)]:
        with pytest.raises(InputError, match=BROKEN):
            use()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [*((CachedModel, "forward", n) for n in (1, 2, 6)), (Scheduler, "submit", 3), (SequenceMaker, "note", 2),
     (Stream, "_event_of", 2)],
)  # fmt: skip
def test_an_interrupt_in_the_middle_of_a_change_breaks_the_stream(llama, monkeypatch, owner, name, number, after):
    """A new one of the same pair is right."""
    expected = [s.token_ids for s in generate(llama, PROMPTS, **SETTINGS).sequences]
    run = stream(llama, iter(PROMPTS), **SETTINGS)
    interrupt_call(monkeypatch, owner, name, number, after)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    monkeypatch.undo()
    require_broken(run)
    assert [s.token_ids for s in generate(llama, PROMPTS, **SETTINGS).sequences] == expected


@pytest.mark.parametrize("after", [False, True])
def test_a_sequence_that_is_cancelled_in_part_breaks_the_stream(llama, monkeypatch, after):
    run = stream(llama, PROMPTS, **SETTINGS)
    next(iter(run))
    interrupt_call(monkeypatch, Scheduler, "cancel", 1, after)
    with pytest.raises(KeyboardInterrupt):
        run.cancel(0)
    monkeypatch.undo()
    require_broken(run)


def breaks(error):
    yield PROMPTS[0]
    raise error


async def breaks_asynchronously(error):
    yield PROMPTS[0]
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("gone"), InputError("line 3 is no JSON")])
def test_prompts_that_an_iterator_had_left_are_not_lost_without_a_word(llama, error):
    run = stream(llama, breaks(error), **SETTINGS)
    with pytest.raises(type(error)):
        list(run)
    require_broken(run)


def test_nor_those_of_an_asynchronous_one(llama):
    run = stream(llama, breaks_asynchronously(OSError("gone")), **SETTINGS)
    with pytest.raises(OSError, match="gone"):
        asyncio.run(all_of(run))
    require_broken(run)


def test_what_is_refused_breaks_nothing(llama):
    run = stream(llama, [[5]], **SETTINGS)
    with pytest.raises(InputError, match="does not fit"):
        run.submit([[1] * 40])
    with pytest.raises(InputError, match="no sequence 7"):
        run.cancel(7)
    assert sum(len(event.token_ids) for event in run) == 6


def test_what_another_thread_calls_in_the_middle_of_a_round_is_refused(llama, monkeypatch):
    expected = [s.token_ids for s in generate(llama, PROMPTS, **SETTINGS).sequences]
    run, refused, forward = stream(llama, PROMPTS, **SETTINGS), [], CachedModel.forward

    def attempt():
        require_broken(run)
        refused.append(1)

    def forward_beside(self, *arguments):
        other = Thread(target=attempt)
        other.start()
        other.join()
        return forward(self, *arguments)

    monkeypatch.setattr(CachedModel, "forward", forward_beside)
    rounds = len([run.run_one_round() for _ in range(2)])
    monkeypatch.undo()
    list(run)
    assert len(refused) > rounds
    assert [s.token_ids for s in run.result().sequences] == expected
