"""Streams by example: who comes when, what is refused, what breaks. Histories of streams are judged elsewhere."""

import asyncio
from itertools import count, islice

import pytest

from refimpl import InputError, Request, generate, stream
from refimpl.decoding.cached import CachedModel
from refimpl.requests import SequenceMaker
from refimpl.scheduling import Scheduler
from refimpl.streaming import Stream
from simulator.engine_runs.parity import check_parity, replay_scenario
from simulator.service.simulation import simulate_once
from simulator.settings.traces import read_engine_trace
from tests.second_by_round import second_by_round

SETTINGS = {"batch_size": 3, "num_speculative_tokens": 3, "max_new_tokens": 9, "stop_token_ids": []}
OPEN = SETTINGS | {"max_model_len": 40}
ONE_BY_ONE = SETTINGS | {"batch_size": 2, "num_speculative_tokens": 0, "max_new_tokens": 2}


@pytest.fixture
def clock():
    with second_by_round() as clock:
        yield clock


def wanted(pair, prompts, **settings):
    return [s.token_ids for s in generate(pair, prompts, **SETTINGS, **settings).sequences]


def tokens_of(run):
    return [s.token_ids for s in run.result().sequences]


def test_the_result_of_a_stream_is_that_of_generate(llama, ragged_prompts):
    """However they come."""
    settings = {"temperature": 0.9, "top_p": 0.95, "stop_token_ids": [2], "logprobs": 1}
    expected = generate(llama, ragged_prompts, **SETTINGS | settings)
    for prompts in (ragged_prompts, iter(ragged_prompts)):
        run = stream(llama, prompts, **OPEN | settings)
        list(run)
        found = run.result()
        assert found.sequences == expected.sequences
        assert found.stats.acceptance == expected.stats.acceptance
        assert [record.rows for record in found.rounds] == [record.rows for record in expected.rounds]


def test_tokens_come_at_the_end_of_their_round(llama, clock):
    """Two rounds of the first request; the second comes at 10 and a third with it, nobody is there before."""
    requests = [Request([1]), Request([2], arrival_s=10.0), Request([3], arrival_s=10.0)]
    run = stream(llama, requests, **ONE_BY_ONE)
    assert [(event.index, event.time_s) for event in run] == [(0, 1), (0, 2), (1, 11), (2, 11), (1, 12), (2, 12)]
    assert clock.slept_s == [8]
    result = run.result()
    assert result.header["round_end_s"] == [1, 2, 11, 12]
    assert (result.header["arrival_s"], result.header["submitted_at"]) == ([0, 10, 10], [0, 2, 2])
    assert (result.stats.wall_s, result.stats.tokens_per_s) == (4, 6 / 4)


@pytest.mark.parametrize("reading_s", [0, 5])
def test_who_is_submitted_comes_at_that_moment(llama, clock, reading_s):
    run = stream(llama, [[1]], max_model_len=9, **ONE_BY_ONE)
    for event in run:
        if event.index == 0 and event.stop_reason:
            clock.now_s += reading_s
            run.submit([[2]])
    header, came_s = run.result().header, 2 + reading_s
    assert (header["arrival_s"], header["submitted_at"]) == ([0, came_s], [0, 2])
    assert header["round_end_s"] == [1, 2, came_s + 1, came_s + 2]
    assert run.result().stats.wall_s == 4


def test_who_comes_between_rounds_is_recorded_where_all_come_at_once(llama, clock):
    """Before the first round its arrival is 0, as that of the others."""
    run = stream(llama, [[1]], max_model_len=9, **ONE_BY_ONE)
    run.run_one_round()
    clock.now_s -= 1
    run.submit([[2]])
    list(run)
    assert (run.result().header["arrival_s"], run.result().header["submitted_at"]) == ([0, 0], [0, 1])


def test_a_trace_has_the_arrivals_of_the_run(llama, clock, tmp_path):
    """In rounds and in seconds; a replay that lets all in at once is another run."""
    path = tmp_path / "run.ndjson"
    run = stream(llama, [Request([3, i], arrival_s=i * 2) for i in range(4)], **SETTINGS)
    list(run)
    run.result().write_trace(path)
    log = simulate_once(replay_scenario(read_engine_trace(path), clock="seconds")).log
    assert [request.arrival_s for request in log.requests] == [0, 2, 4, 6]
    assert check_parity(path).exact
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"submitted_at"', '"elsewhere"'), *lines[1:]]))
    assert not check_parity(path).exact


def test_a_result_stays_as_it_was_when_the_run_goes_on(llama, tmp_path):
    """And its trace is still that of the run until then."""
    run = stream(llama, [[1, 2]], **OPEN)
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


@pytest.mark.parametrize("method", ["inplace", "exspec"])
def test_an_iterator_is_read_as_there_is_room(llama, ragged_prompts, method):
    """So it need not end; a window waits at most, and the rounds are those of a list."""
    asked = []

    def prompts():
        for i in count():
            asked.append(i)
            yield ragged_prompts[i % len(ragged_prompts)]

    run = stream(llama, islice(prompts(), 20), method=method, **OPEN)
    assert asked == []
    run.run_one_round()
    assert len(asked) == (12 if method == "exspec" else 3)
    list(run)
    expected = generate(llama, [ragged_prompts[i % len(ragged_prompts)] for i in range(20)], method=method, **SETTINGS)
    assert [record.rows for record in run.result().rounds] == [record.rows for record in expected.rounds]


def test_bad_requests_of_an_iterator_are_left_out_and_the_others_go_on(llama):
    """An error names the place among all that were given."""
    prompts = [[1], None, [], [5] * 80, Request([2], arrival_s=0.01), Request([4], arrival_s=0.0)]
    run, errors = stream(llama, iter(prompts), **OPEN), []
    for _ in range(5):
        try:
            list(run)
        except InputError as error:
            errors.append(str(error))
    assert [error.split("prompt ")[1][0] for error in errors] == ["1", "2", "3", "5"]
    assert errors[-1] == "arrivals go backwards: prompt 5 comes at 0.0 s, after one at 0.01 s"
    assert tokens_of(run) == wanted(llama, [[1], [2]])
    nothing = stream(llama, iter([]), **OPEN)
    assert (list(nothing), tokens_of(nothing)) == ([], [])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([1] * 32), "does not fit max_model_len 40"),
        (Request([1], num_speculative_tokens=4), "with max_model_len, num_speculative_tokens 3"),
        (Request([61]), "outside the vocabulary"),
        (Request([1], arrival_s=0.5), "comes now: leave out its arrival_s"),
        (Request([2], sequence_id=7), "share seed 0 and sequence id 7"),
        ("text", "has no tokenizer"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_lost(llama, request_, message):
    prompts = [Request([1, 2], sequence_id=7), [3]]
    run = stream(llama, prompts, temperature=0.9, **OPEN)
    run.run_one_round()
    with pytest.raises(InputError, match=message):
        run.submit([[7, 7], request_])
    with pytest.raises(InputError, match="there is no sequence 2: 2 have come, numbered from 0"):
        run.cancel(2)
    assert run.submit([[4]]) == [2]
    list(run)
    assert tokens_of(run) == wanted(llama, [*prompts, [4]], temperature=0.9)


def test_runs_that_take_no_others(llama):
    run = stream(llama, [[1, 2]], **SETTINGS)
    with pytest.raises(InputError, match="give max_model_len, so that more may come"):
        run.submit([[3]])
    with pytest.raises(InputError, match="has not come to its end"):
        run.result()
    with pytest.raises(InputError, match="prompts that come one by one need max_model_len"):
        stream(llama, iter([[1, 2]]), **SETTINGS)
    with pytest.raises(InputError, match="autoregressive has no rounds to stream"):
        stream(llama, [[1]], method="autoregressive")


def test_samples_of_a_request_come_together_each_with_a_key_that_is_free(llama):
    run = stream(llama, [Request([1], sequence_id=1)], temperature=0.9, **OPEN)
    assert [run.submit([Request([2], n=2)]), run.submit([[3], [4]])] == [[1, 2], [3, 4]]
    run.submit([Request([5], seed=7)])  # another seed has all of its places
    list(run)
    keyed = [*(Request([token], sequence_id=key) for token, key in [(1, 1), (2, 2), (2, 3), (3, 4), (4, 5)])]
    assert tokens_of(run) == wanted(llama, [*keyed, Request([5], seed=7, sequence_id=5)], temperature=0.9)


def test_who_has_finished_in_a_static_batch_counts(llama):
    run = stream(llama, [Request([1], max_new_tokens=1), Request([2], max_new_tokens=9)], method="eqspec")
    run.run_one_round()
    assert (run.num_finished, run.done) == (1, False)


def test_other_tasks_run_between_rounds_and_may_submit_and_cancel(llama, clock):
    """No empty round is run where they cancel all that is left."""
    seen = []

    async def other(run):
        while len(seen) < 3:
            await asyncio.sleep(0)
        run.submit([Request([3], max_new_tokens=30)])
        while run.num_finished < 2:
            await asyncio.sleep(0)
        run.cancel(2)

    async def both():
        run = stream(llama, [[1, 2], [3]], **OPEN)
        task = asyncio.ensure_future(other(run))
        async for event in run:
            seen.append(event)
        await task
        return run.result()

    assert [s.stop_reason for s in asyncio.run(both()).sequences] == ["length", "length", "cancelled"]
    assert all(record.rows for record in clock.records)


def test_the_longest_sequence_must_fit_the_models(llama):
    """One may fill what there is, and not one token more."""
    context = llama.target.max_positions
    with pytest.raises(InputError, match=f"max_model_len {context + 1} is more than the context of {context}"):
        generate(llama, [[1]], max_model_len=context + 1)
    for settings, most in ((OPEN, 40), (SETTINGS, context)):
        (sequence,) = generate(llama, [[1] * (most - 9)], **settings, checks="off").sequences
        assert len(sequence.token_ids) == 9
        with pytest.raises(InputError, match=f"it does not fit .* {most}"):
            generate(llama, [[1] * (most - 8)], **settings)


@pytest.mark.parametrize("method", ["inplace", "autoregressive"])
def test_progress_counts_sequences_not_prompts(llama, method):
    """A prompt of several samples is as many; the last call says that all have finished."""
    calls = []
    generate(llama, [Request([1], n=2), [2]], method=method, progress=lambda *n: calls.append(n), **ONE_BY_ONE)
    assert {whole for _, whole in calls} == {3}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[0][0] < calls[-1][0] == 3


def interrupt_call(monkeypatch, owner, name, number, after):
    """Interrupt a call of a function by its number, before its work or after it."""
    original, calls = getattr(owner, name), []

    def interrupted(*arguments, **named):
        calls.append(1)
        done = original(*arguments, **named) if after or len(calls) != number else None
        if len(calls) == number:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(owner, name, interrupted)


def require_broken(run):
    for use in [run.result, run.run_one_round, lambda: list(run), lambda: run.submit([[1]]), lambda: run.cancel(0)]:
        with pytest.raises(InputError, match="in the middle of a round, or was interrupted"):
            use()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [(CachedModel, "forward", 1), (CachedModel, "forward", 4), (Scheduler, "submit", 3), (SequenceMaker, "note", 2),
     (Stream, "_event_of", 2), (Scheduler, "cancel", 1)],
)  # fmt: skip
def test_an_interrupt_in_the_middle_of_a_change_breaks_the_stream(llama, monkeypatch, owner, name, number, after):
    """A new one of the same pair is right."""
    prompts = [[5, 6, 7], [8], [9, 4, 3, 2]]
    expected, run = wanted(llama, prompts), stream(llama, iter(prompts), **OPEN)
    interrupt_call(monkeypatch, owner, name, number, after)
    with pytest.raises(KeyboardInterrupt):
        list(map(run.cancel, (event.index for event in run)))
    monkeypatch.undo()
    require_broken(run)
    assert wanted(llama, prompts) == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("gone"), InputError("line 3 is no JSON")])
def test_an_error_of_the_prompts_iterator_breaks_the_stream(llama, error):
    def breaks():
        yield [5, 6, 7]
        raise error

    run = stream(llama, breaks(), **OPEN)
    with pytest.raises(type(error)):
        list(run)
    require_broken(run)
