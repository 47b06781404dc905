"""Prompts of an asynchronous iterator: read in turn with the rounds, by a reader who may leave and come back."""

import asyncio
from itertools import count

import pytest

from refimpl import InputError, Request, generate, stream

SETTINGS = {"batch_size": 3, "num_speculative_tokens": 3, "max_new_tokens": 9}
OPEN = {"max_model_len": 40}


def wanted(pair, prompts, **settings):
    return [s.token_ids for s in generate(pair, prompts, **SETTINGS, **settings).sequences]


async def read(run, events):
    """Append the events of a run."""
    async for event in run:
        events.append(event)


def test_prompts_from_an_asynchronous_iterator(llama, ragged_prompts):
    async def prompts():
        for prompt in ragged_prompts:
            yield prompt
            await asyncio.sleep(0.005)

    async def collect():
        run, found = stream(llama, prompts(), **SETTINGS, **OPEN), {}
        async for event in run:
            found.setdefault(event.index, []).extend(event.token_ids)
        return [found[i] for i in range(len(found))]

    assert asyncio.run(collect()) == wanted(llama, ragged_prompts)


@pytest.mark.parametrize("method", ["inplace", "exspec", "paged+continuous"])
def test_an_asynchronous_iterator_is_read_as_there_is_room(llama, ragged_prompts, method):
    """One that never waits, and never ends, is decoded all the same."""
    asked = []

    async def prompts():
        for i in count():
            asked.append(i)
            yield ragged_prompts[i % len(ragged_prompts)]

    async def first():
        await anext(aiter(stream(llama, prompts(), method=method, **SETTINGS, **OPEN)))
        return len(asked)

    assert asyncio.run(first()) == (12 if method == "exspec" else 3)


def test_what_is_submitted_while_an_iterator_is_silent_is_decoded(llama):
    """By another task, when all that came before has ended and the run waits."""

    async def collect():
        silent, waits, run = asyncio.Event(), asyncio.Event(), None

        async def prompts():
            yield [1, 2]
            await silent.wait()

        async def submit_later():
            await waits.wait()
            await asyncio.sleep(0.02)
            run.submit([[3]])

        run = stream(llama, prompts(), **SETTINGS, **OPEN)
        later, ended = asyncio.ensure_future(submit_later()), []
        async for event in run:
            ended += [event.index] if event.stop_reason else []
            if ended:
                waits.set()
            if ended == [0, 1]:
                silent.set()
        await later
        return [s.token_ids for s in run.result().sequences]

    assert asyncio.run(asyncio.wait_for(collect(), 60)) == wanted(llama, [[1, 2], [3]])


@pytest.mark.parametrize("method", ["inplace", "eqspec", "paged+continuous"])
def test_no_round_is_run_where_another_task_has_cancelled_all(llama, method):
    async def collect():
        run, cancelling = stream(llama, [[1, 2], [3]], method=method, **SETTINGS), None

        async def cancel():
            for index in (0, 1):
                run.cancel(index)

        async for _ in run:
            cancelling = cancelling or asyncio.ensure_future(cancel())
        await cancelling
        return [len(record.rows) for record in run.result().rounds]

    assert 0 not in asyncio.run(collect())


def test_who_leaves_and_comes_back_misses_no_prompt(llama, ragged_prompts):
    """One is left while it waits, and while a prompt that has come is not yet taken."""
    gates = [asyncio.Event() for _ in ragged_prompts]

    async def prompts():
        for gate, prompt in zip(gates, ragged_prompts, strict=True):
            await gate.wait()
            yield prompt

    async def collect():
        run, events = stream(llama, prompts(), **SETTINGS, **OPEN), []
        for gate in gates:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(run, events), 0.01)
            gate.set()
            await asyncio.sleep(0)
        await read(run, events)
        tokens = [[t for event in events if event.index == i for t in event.token_ids] for i in range(len(gates))]
        return tokens, [s.token_ids for s in run.result().sequences]

    assert asyncio.run(collect()) == (wanted(llama, ragged_prompts),) * 2


def test_a_stream_is_read_in_one_event_loop(llama):
    async def prompts():
        await asyncio.sleep(9)
        yield [1]

    async def briefly():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(run, []), 0.001)

    run = stream(llama, prompts(), **SETTINGS, **OPEN)
    asyncio.run(briefly())
    with pytest.raises(InputError, match="in one event loop"):
        asyncio.run(read(run, []))


def test_an_asynchronous_run_ends_with_its_prompts(llama):
    """Until then it is not done, though all that have come are."""

    async def prompts():
        yield [1, 2]
        await more.wait()
        yield [3]

    more = asyncio.Event()

    async def collect():
        run = stream(llama, prompts(), **SETTINGS, **OPEN)
        assert not run.done
        async for event in run:
            if event.index == 0 and event.stop_reason:
                break
        assert not run.done
        with pytest.raises(InputError, match="the stream has not come to its end"):
            run.result()
        with pytest.raises(InputError, match="the next prompt comes asynchronously: use `async for`"):
            run.run_one_round()
        more.set()
        await read(run, [])
        assert run.done
        return [s.token_ids for s in run.result().sequences]

    assert asyncio.run(collect()) == wanted(llama, [[1, 2], [3]])


def test_what_is_no_prompt_is_refused_from_an_asynchronous_iterator_too(llama):
    async def prompts():
        yield [1, 2]
        yield None
        yield Request([4], arrival_s=0.5)
        yield [3]

    async def collect():
        run, errors = stream(llama, prompts(), **SETTINGS, **OPEN), []
        while not run.done:
            try:
                await read(run, [])
            except InputError as error:
                errors.append(str(error))
        return [s.token_ids for s in run.result().sequences], errors

    tokens, errors = asyncio.run(collect())
    assert tokens == wanted(llama, [[1, 2], [3]])
    assert errors == [
        "prompts must be a list of texts or of lists of token ids: prompt 1 is None",
        "a request that is submitted, or given asynchronously, comes now: leave out its arrival_s",
    ]


def test_other_tasks_run_while_a_request_is_waited_for(llama):
    async def other(order):
        await asyncio.sleep(0.01)
        order.append("other")

    async def collect():
        order = []
        await asyncio.gather(read(stream(llama, [Request([1], arrival_s=0.3)], **SETTINGS), order), other(order))
        return order

    order = asyncio.run(collect())
    assert (order[0], len(order) > 1) == ("other", True)


def test_a_list_may_be_read_asynchronously(llama, ragged_prompts):
    async def collect():
        return [event async for event in stream(llama, ragged_prompts, **SETTINGS)]

    events = asyncio.run(collect())
    assert [t for e in events if e.index == 3 for t in e.token_ids] == wanted(llama, ragged_prompts)[3]
