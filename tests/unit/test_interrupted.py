"""What an interrupt, or an error of the prompts' iterator, leaves of a run: all of it, or a run that cannot go on."""

import asyncio
from threading import Thread

import pytest

from refimpl import InputError, generate, stream
from refimpl.decoding.cached import CachedModel
from refimpl.requests import FAILED, SequenceMaker
from refimpl.scheduling import Scheduler
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


# --- between rounds --------------------------------------------------------------------------------------------------

ITERATED = {"batch_size": 2, "max_new_tokens": 4, "max_model_len": 16, "stop_token_ids": []}


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


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), [(Scheduler, "submit"), (SequenceMaker, "note")])
def test_a_request_that_has_come_in_part_ends_the_run(llama, monkeypatch, owner, name, after):
    """Else the indices that later requests are given are not their places."""
    run = stream(llama, iter(PROMPTS), **ITERATED)
    interrupt_call(monkeypatch, owner, name, 2 + (owner is Scheduler), after)  # an engine begins with none
    with pytest.raises(KeyboardInterrupt):
        list(run)
    monkeypatch.undo()
    for again in (lambda: list(run), run.result, run.run_one_round, lambda: run.submit([[1]])):
        with pytest.raises(InputError, match="was interrupted while requests came and cannot continue: start it again"):
            again()


@pytest.mark.parametrize("after", [False, True])
def test_a_sequence_that_is_cancelled_in_part_ends_the_run(llama, monkeypatch, after):
    run = stream(llama, PROMPTS, **ITERATED)
    next(iter(run))
    interrupt_call(monkeypatch, Scheduler, "cancel", 1, after)
    with pytest.raises(KeyboardInterrupt):
        run.cancel(0)
    monkeypatch.undo()
    for again in (lambda: list(run), run.result, lambda: (run.cancel(1), list(run))):
        with pytest.raises(InputError, match="was interrupted while a sequence was cancelled and cannot continue"):
            again()


def test_what_is_refused_interrupts_nothing(llama):
    run = stream(llama, [[5]], **ITERATED)
    with pytest.raises(InputError, match="does not fit"):
        run.submit([[1] * 40])
    with pytest.raises(InputError, match="no sequence 7"):
        run.cancel(7)
    assert sum(len(event.token_ids) for event in run) == 4


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_prompt_whose_sequences_were_not_made_is_not_lost(llama, monkeypatch, number):
    run = stream(llama, iter(PROMPTS), **ITERATED)
    interrupt_call(monkeypatch, SequenceMaker, "make", number)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    list(run)
    expected = stream(llama, PROMPTS, **ITERATED)
    list(expected)
    assert [s.token_ids for s in run.result().sequences] == [s.token_ids for s in expected.result().sequences]


# --- iterators that end by an error ----------------------------------------------------------------------------------


def breaks_after(count, error):
    yield from PROMPTS[:count]
    raise error


async def breaks_after_asynchronously(count, error):
    for prompt in PROMPTS[:count]:
        yield prompt
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("gone"), InputError("line 3 is no JSON")])
@pytest.mark.parametrize("count", [0, 2])
def test_what_an_iterator_had_left_is_not_lost_without_a_word(llama, error, count):
    """A generator that raises has ended: whoever asks it again is told that there is nothing more."""
    run = stream(llama, breaks_after(count, error), **ITERATED)
    with pytest.raises(type(error)):
        list(run)
    with pytest.raises(InputError, match=FAILED):
        list(run)
    list(run)
    assert [len(sequence.token_ids) for sequence in run.result().sequences] == [4] * count


@pytest.mark.parametrize("error", [OSError("gone"), InputError("line 3 is no JSON")])
def test_nor_what_an_asynchronous_one_had(llama, error):
    async def read_thrice():
        run = stream(llama, breaks_after_asynchronously(2, error), **ITERATED)
        with pytest.raises(type(error)):
            await all_of(run)
        with pytest.raises(InputError, match=FAILED):
            await all_of(run)
        await all_of(run)
        return run.result()

    assert [len(sequence.token_ids) for sequence in asyncio.run(read_thrice()).sequences] == [4, 4]


@pytest.mark.parametrize("use", [lambda run: run.submit([[1]]), list, lambda run: run.run_one_round()])
def test_an_iterator_that_uses_its_own_stream_is_told_so(llama, use):
    def prompts():
        yield PROMPTS[0]
        with pytest.raises(InputError, match="the prompts' iterator is asked for its next prompt just now"):
            use(run)
        yield PROMPTS[1]
        use(run)

    run = stream(llama, prompts(), **ITERATED)
    with pytest.raises(InputError, match="meanwhile its stream can cancel, and no more"):
        list(run)
    with pytest.raises(InputError, match=FAILED):
        list(run)
    list(run)
    assert [len(sequence.token_ids) for sequence in run.result().sequences] == [4, 4]


class Stumbles:
    """An iterator that goes on after its error."""

    def __init__(self):
        self.left = [PROMPTS[0], None, *PROMPTS[1:]]

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        if (prompt := self.left.pop(0)) is None:
            raise OSError("once")
        return prompt


class StumblesAsynchronously:
    """The same, asynchronous."""

    def __init__(self):
        self.source = Stumbles()

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self.source)
        except StopIteration:
            raise StopAsyncIteration from None


def test_an_iterator_that_goes_on_after_an_error_is_read_to_its_end(llama):
    run = stream(llama, Stumbles(), **ITERATED)
    with pytest.raises(OSError, match="once"):
        list(run)
    list(run)
    assert len(run.result().sequences) == 3


def test_so_is_an_asynchronous_one(llama):
    async def read_twice():
        run = stream(llama, StumblesAsynchronously(), **ITERATED)
        with pytest.raises(OSError, match="once"):
            await all_of(run)
        await all_of(run)
        return run.result()

    assert len(asyncio.run(read_twice()).sequences) == 3


def test_a_prompt_that_is_refused_last_is_no_error_of_the_iterator(llama):
    run = stream(llama, iter([[5], []]), **ITERATED)
    with pytest.raises(InputError, match="prompt 1 is empty"):
        list(run)
    list(run)
    assert len(run.result().sequences) == 1


@pytest.mark.parametrize("method", ["inplace", "paged", "exspec"])
def test_what_comes_in_the_middle_of_a_round_is_refused_and_the_run_goes_on(llama, monkeypatch, method):
    """From another thread, or from a handler of signals, which runs in the middle of whatever it stops."""
    settings = {"method": method, "batch_size": 2, "max_new_tokens": 10, "stop_token_ids": [], "max_model_len": 32}
    expected = [s.token_ids for s in generate(llama, PROMPTS, **settings).sequences]
    run, refused = stream(llama, PROMPTS, **settings), 0
    forward = CachedModel.forward

    def attempt():
        nonlocal refused
        left = [s.index for s in run._engine.sequences if not s.finished]
        for change in (lambda: run.cancel(left[0]), lambda: run.submit([[1]]), run.run_one_round):
            with pytest.raises(InputError, match="goes on"):
                change()
            refused += 1

    def forward_beside(self, *arguments):
        other = Thread(target=attempt)
        other.start()
        other.join()
        attempt()
        return forward(self, *arguments)

    monkeypatch.setattr(CachedModel, "forward", forward_beside)
    list(run)
    monkeypatch.undo()
    assert refused
    assert [s.token_ids for s in run.result().sequences] == expected
