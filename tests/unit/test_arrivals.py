"""Requests that come while others run: the tokens are those of a run that knew them from the start."""

import asyncio
import time
from itertools import count, islice, product
from types import SimpleNamespace

import pytest

from refimpl import InputError, Request, generate, stream
from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.requests import prepare
from simulator.engine_runs.parity import check_parity, replay_scenario
from simulator.service.simulation import simulate_once
from simulator.settings.traces import read_engine_trace

METHODS = ["inplace", "eqspec", "exspec", "masked+fifo", "rollback", "paged", "paged+continuous", "inplace+continuous"]
RULES = [{}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.0, "acceptance": "rejection"}]
NEIGHBOURS_MATTER = [("rollback", RULES[2])]  # the tokens depend on who is there
SETTINGS = {"batch_size": 3, "num_speculative_tokens": 3, "max_new_tokens": 9}
OPEN = {"max_model_len": 40}


def wanted(pair, prompts, **settings):
    return [s.token_ids for s in generate(pair, prompts, **SETTINGS, **settings).sequences]


def tokens_of(run):
    """Tokens of the events, and of the result, which must agree."""
    found = {}
    for event in run:
        found.setdefault(event.index, []).extend(event.token_ids)
    assert [s.token_ids for s in run.result().sequences] == [found[i] for i in sorted(found)]
    return [found[i] for i in sorted(found)]


async def read(run, events):
    """Append the events of a run."""
    async for event in run:
        events.append(event)


def by_turns(pair, prompts, path=None, **settings):
    """Submit a prompt after every second round; write the trace."""
    run, rest = stream(pair, prompts[:2], **SETTINGS, **OPEN, **settings), list(prompts[2:])
    while rest or not run.done:
        for _ in range(2):
            if not run.done:
                run.run_one_round()
        if rest:
            run.submit([rest.pop(0)])
    if path:
        run.result().write_trace(path)
    return [s.token_ids for s in run.result().sequences]


@pytest.mark.parametrize(
    ("method", "rule"), [pair for pair in product(METHODS, RULES) if pair not in NEIGHBOURS_MATTER], ids=str
)
def test_who_comes_late_gets_the_same_tokens(llama, ragged_prompts, tmp_path, method, rule):
    """And the simulator decides as the engine did, round by round."""
    path = tmp_path / "run.ndjson"
    found = by_turns(llama, ragged_prompts, path, method=method, **rule)
    assert found == wanted(llama, ragged_prompts, method=method, **rule)
    parity = check_parity(path)
    assert parity.exact, parity.first_difference


def test_a_replay_that_lets_all_in_at_once_is_another_run(llama, ragged_prompts, tmp_path):
    path = tmp_path / "run.ndjson"
    by_turns(llama, ragged_prompts, path, method="paged")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"submitted_at"', '"elsewhere"'), *lines[1:]]))
    assert not check_parity(path).exact


def test_the_replay_in_seconds_has_the_engines_arrivals(llama, tmp_path):
    requests = [Request([3, i], arrival_s=i / 50) for i in range(4)]
    run = stream(llama, requests, **SETTINGS)
    tokens_of(run)
    path = tmp_path / "run.ndjson"
    run.result().write_trace(path)
    log = simulate_once(replay_scenario(read_engine_trace(path), clock="seconds")).log
    assert [request.arrival_s for request in log.requests] == [0.0, 0.02, 0.04, 0.06]


def test_a_result_stays_as_it_was_when_the_run_goes_on(llama, tmp_path):
    """And its trace is still that of the run until then."""
    run = stream(llama, [[1, 2]], **SETTINGS, **OPEN)
    run.run_one_round()
    run.submit([[3]])
    list(run)
    result = run.result()
    rounds, header = list(result.rounds), {key: str(value) for key, value in result.header.items()}
    run.submit([[4, 5]])
    list(run)
    assert (result.rounds, {key: str(value) for key, value in result.header.items()}) == (rounds, header)
    result.write_trace(tmp_path / "run.ndjson")
    assert check_parity(tmp_path / "run.ndjson").exact


@pytest.mark.parametrize("method", ["inplace", "paged+continuous"])
def test_requests_come_at_their_time(llama, ragged_prompts, method):
    requests = [Request(prompt, arrival_s=0.03 * i) for i, prompt in enumerate(ragged_prompts)]
    began = time.perf_counter()
    run, first = stream(llama, requests, method=method, **SETTINGS), {}
    found = [[] for _ in requests]
    for event in run:
        first.setdefault(event.index, event.time_s)
        found[event.index] += event.token_ids
    assert found == wanted(llama, ragged_prompts, method=method)
    assert all(first[i] >= request.arrival_s for i, request in enumerate(requests))
    assert time.perf_counter() - began >= requests[-1].arrival_s
    assert run.result().header["arrival_s"] == [request.arrival_s for request in requests]


def test_what_passes_between_rounds_is_of_no_round(llama, ragged_prompts, monkeypatch):
    """The clock moves while tokens are read, and at no other time."""
    clock = SimpleNamespace(now_s=0.0)
    clock.perf_counter = lambda: clock.now_s
    for module in ("refimpl.streaming", "refimpl.decoding.timing"):
        monkeypatch.setattr(f"{module}.time", clock)
    run = stream(llama, ragged_prompts, **SETTINGS)
    for _ in run:
        clock.now_s += 1
    result = run.result()
    assert {seconds for record in result.rounds for seconds in record.stage_s.values()} == {0.0}
    assert result.stats.wall_s == 0


def test_generate_waits_for_arrivals_too(llama, ragged_prompts):
    requests = [Request(prompt, arrival_s=0.01 * i) for i, prompt in enumerate(ragged_prompts)]
    assert wanted(llama, requests) == wanted(llama, ragged_prompts)


def test_generate_reads_an_iterator_to_its_end(llama, ragged_prompts):
    assert wanted(llama, iter(ragged_prompts)) == wanted(llama, ragged_prompts)


@pytest.mark.parametrize("method", ["inplace", "masked", "paged+continuous"])
def test_a_run_that_has_ended_has_no_further_round(llama, method):
    run = stream(llama, [[1, 2]], method=method, **SETTINGS, **OPEN)
    list(run)
    num_rounds = len(run.result().rounds)
    with pytest.raises(InputError, match="the run has ended"):
        run.run_one_round()
    assert len(run.result().rounds) == num_rounds
    assert [run.submit([[3]]), {event.index for event in run}] == [[1], {1}]


def test_an_iterator_without_prompts_is_a_run_without_sequences(llama):
    run = stream(llama, iter([]), **SETTINGS, **OPEN)
    assert (list(run), run.result().sequences) == ([], [])


def test_prompts_from_an_iterator_are_asked_for_one_ahead(llama, ragged_prompts):
    asked = []

    def prompts():
        for i, prompt in enumerate(ragged_prompts):
            asked.append(i)
            yield Request(prompt, arrival_s=0.02 * i)

    run = stream(llama, prompts(), **SETTINGS, **OPEN)
    assert asked == []
    run.run_one_round()
    assert asked == [0, 1]
    list(run)
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, ragged_prompts)


@pytest.mark.parametrize("method", ["inplace", "masked", "exspec", "paged+continuous"])
def test_an_iterator_is_read_as_there_is_room(llama, ragged_prompts, tmp_path, method):
    """So it need not end; who waits is a window at most, and the rounds are those of a list."""
    asked = []

    def prompts():
        for i in count():
            asked.append(i)
            yield ragged_prompts[i % len(ragged_prompts)]

    run = stream(llama, islice(prompts(), 20), method=method, **SETTINGS, **OPEN)
    assert asked == []
    run.run_one_round()
    assert len(asked) == (12 if method == "exspec" else 3)
    list(run)
    expected = generate(llama, [ragged_prompts[i % len(ragged_prompts)] for i in range(20)], method=method, **SETTINGS)
    assert [record.rows for record in run.result().rounds] == [record.rows for record in expected.rounds]
    run.result().write_trace(tmp_path / "run.ndjson")
    assert check_parity(tmp_path / "run.ndjson").exact


def test_a_bad_prompt_of_an_iterator_does_not_end_the_run(llama):
    run = stream(llama, iter([None, [1, 2]]), **SETTINGS, **OPEN)
    with pytest.raises(InputError, match="prompt 0 is None"):
        list(run)
    assert tokens_of(run) == wanted(llama, [[1, 2]])


def test_refused_prompts_keep_their_numbers(llama):
    run, errors = stream(llama, iter([[1], None, [], [2], None]), **SETTINGS, **OPEN), []
    while not run.done:
        try:
            list(run)
        except InputError as error:
            errors.append(str(error))
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, [[1], [2]])
    assert [error.split("prompt ")[1][0] for error in errors] == ["1", "2", "4"]


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
    async def collect():
        silent, run = asyncio.Event(), None

        async def prompts():
            yield [1, 2]
            await silent.wait()

        async def submit_later():
            await asyncio.sleep(0.02)
            run.submit([[3]])

        run = stream(llama, prompts(), **SETTINGS, **OPEN)
        later, ended = asyncio.ensure_future(submit_later()), []
        async for event in run:
            ended += [event.index] if event.stop_reason else []
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


class Prompts:
    """An iterator that waits before each prompt, and is no generator: it can be asked again."""

    def __init__(self):
        self.left = [[1, 2], [3]]

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.sleep(0.02)
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop(0)


async def briefly(run, events):
    """Read until a prompt that was asked for has not come for a while."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(run, events), 0.001)


def test_a_prompt_that_was_cancelled_with_its_event_loop_is_asked_for_again(llama):
    run = stream(llama, Prompts(), **SETTINGS, **OPEN)
    asyncio.run(briefly(run, []))
    asyncio.run(read(run, []))
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, [[1, 2], [3]])


def test_a_generator_that_was_closed_with_its_event_loop_has_not_ended(llama):
    async def prompts():
        async for prompt in Prompts():
            yield prompt

    for asked in (briefly, lambda run, events: anext(aiter(run))):  # while a prompt comes, and while none is asked for
        run = stream(llama, prompts(), **SETTINGS, **OPEN)
        asyncio.run(asked(run, []))
        for _ in range(2):
            with pytest.raises(InputError, match="the prompts' iterator was closed with its event loop"):
                asyncio.run(read(run, []))
        assert not run.done


def test_two_event_loops_cannot_read_the_same_prompts(llama):
    run = stream(llama, Prompts(), **SETTINGS, **OPEN)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        first.run_until_complete(briefly(run, []))
        with pytest.raises(InputError, match="the next prompt comes in another event loop"):
            second.run_until_complete(read(run, []))
        first.run_until_complete(read(run, []))
    finally:
        first.close()
        second.close()


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


def test_a_bad_request_is_left_out_and_the_others_go_on(llama, ragged_prompts):
    good = [Request(prompt, arrival_s=0.01) for prompt in ragged_prompts[:3]]
    prompts = [good[0], Request([5] * 80, arrival_s=0.01), good[1], Request([4], arrival_s=0.0), good[2]]
    run, errors, events = stream(llama, iter(prompts), **SETTINGS, **OPEN), [], []
    while True:
        try:
            events += list(run)
            break
        except InputError as error:
            errors.append(str(error))
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, ragged_prompts[:3])
    assert errors == [
        "prompt 1 has 80 tokens: with 9 new ones it does not fit max_model_len 40 (see max_prompt_tokens)",
        "arrivals go backwards: prompt 3 comes at 0.0 s, after one at 0.01 s",
    ]


def test_what_the_run_was_not_built_for_is_refused_and_nothing_is_lost(llama, ragged_prompts):
    run = stream(llama, ragged_prompts[:2], **SETTINGS, **OPEN)
    run.run_one_round()
    for request, message in [
        (Request([1] * 32), "does not fit max_model_len 40"),
        (
            Request([1], num_speculative_tokens=4),
            "asks for 4 drafts a round: with max_model_len, num_speculative_tokens 3",
        ),
        (Request([61]), "outside the vocabulary"),
        (Request([1], arrival_s=0.5), "comes now: leave out its arrival_s"),
        ("text", "has no tokenizer"),
    ]:
        with pytest.raises(InputError, match=message):
            run.submit([[7, 7], request])
    assert run.submit([ragged_prompts[2]]) == [2]
    assert {event.index for event in run} == {0, 1, 2}
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, ragged_prompts[:3])


def test_samples_of_a_request_come_together(llama):
    settings = {"temperature": 0.9, **SETTINGS}
    run = stream(llama, [[1, 2]], **settings, **OPEN)
    assert [run.submit([Request([3], n=2)]), run.submit([[4], [5]])] == [[1, 2], [3, 4]]
    assert tokens_of(run) == wanted(llama, [[1, 2], Request([3], n=2), [4], [5]], temperature=0.9)


def test_random_numbers_of_who_was_there_are_taken(llama):
    run = stream(llama, [Request([1], sequence_id=7)], temperature=0.9, **SETTINGS, **OPEN)
    with pytest.raises(InputError, match="share seed 0 and sequence id 7"):
        run.submit([Request([2], sequence_id=7)])
    run.submit([Request([2], sequence_id=8)])
    with pytest.raises(InputError, match="share seed 0 and sequence id 8"):
        run.submit([Request([3], sequence_id=8)])


def test_a_run_that_knows_all_its_prompts_takes_no_others(llama):
    run = stream(llama, [[1, 2]], **SETTINGS)
    with pytest.raises(InputError, match="give max_model_len, so that more may come"):
        run.submit([[3]])
    with pytest.raises(InputError, match="prompts that come one by one need max_model_len"):
        stream(llama, iter([[1, 2]]), **SETTINGS)
    late = stream(llama, [[1], Request([2], arrival_s=9.0)], **SETTINGS, **OPEN)
    with pytest.raises(InputError, match="requests of a list or an iterator are still to come"):
        late.submit([[3]])


def test_who_comes_asynchronously_is_awaited(llama):
    async def prompts():
        yield [1]

    with pytest.raises(InputError, match="use `async for`"):
        next(iter(stream(llama, prompts(), **SETTINGS, **OPEN)))


@pytest.mark.parametrize("arrival_s", [-1, float("nan"), float("inf"), 1e300, "1", True, None])
def test_an_arrival_is_a_number_of_seconds(arrival_s):
    with pytest.raises(InputError, match="arrival_s must be a number of seconds in"):
        Request([1], arrival_s=arrival_s)


def test_arrivals_do_not_go_backwards(llama):
    with pytest.raises(InputError, match=r"prompt 1 comes at 0.5 s, after one at 1.0 s"):
        generate(llama, [Request([1], arrival_s=1.0), Request([2], arrival_s=0.5)])


@pytest.mark.parametrize("length", [0, 1, 2.5, "64", True])
def test_a_longest_sequence_is_a_number_of_tokens(llama, length):
    with pytest.raises(InputError, match="max_model_len must be an integer at least 2"):
        generate(llama, [[1]], max_model_len=length)


def test_the_longest_sequence_must_fit_the_models(llama):
    context = llama.target.max_positions
    with pytest.raises(InputError, match=f"max_model_len {context + 1} is more than the context of {context}"):
        generate(llama, [[1]], max_model_len=context + 1)


def test_an_engine_takes_sequences_between_rounds(llama, ragged_prompts):
    config = make_config(method="paged", **SETTINGS)
    sequences = prepare(llama, ragged_prompts, config).sequences
    engine = Engine(llama, sequences[:2], config, expected=sequences[2:])
    for i, _ in enumerate(engine.rounds()):
        if i < 9:
            engine.submit([sequences[2 + i]])
    assert [s.generated for s in engine.sequences] == wanted(llama, ragged_prompts, method="paged")
    assert engine.submitted_at == [0, 0, *range(1, 10)]
