"""Events of a stream add up to generate's output; a consumer may cancel, and the place is filled."""

import pytest

from refimpl import InputError, Request, generate, stream

SETTINGS = {"temperature": 0.9, "top_p": 0.95, "max_new_tokens": 10, "batch_size": 3, "checks": "host"}
PROMPTS = [[1], [2, 3], [4, 5, 6], [7], [8, 9, 10, 11], [12, 13]]
METHODS = ["eqspec", "exspec", "masked", "rollback", "inplace", "speculative"]


@pytest.mark.parametrize("method", METHODS)
def test_events_concatenate_to_the_output_of_generate(llama, method):
    settings = SETTINGS | {"method": method, "stop_token_ids": [2], "logprobs": 1}
    expected = generate(llama, PROMPTS, **settings).sequences
    events = list(stream(llama, PROMPTS, **settings))
    for sequence in expected:
        mine = [event for event in events if event.index == sequence.index]
        assert [token for event in mine for token in event.token_ids] == sequence.token_ids
        assert tuple(entry for event in mine for entry in event.logprobs) == sequence.logprobs
        assert [event.stop_reason for event in mine] == [None] * (len(mine) - 1) + [sequence.stop_reason]
        assert all(event.token_ids for event in mine)


@pytest.mark.parametrize("method", METHODS)
def test_the_result_of_a_stream_is_that_of_generate(llama, method):
    settings = SETTINGS | {"method": method, "stop_token_ids": [2], "logprobs": 1}
    run = stream(llama, PROMPTS, **settings)
    with pytest.raises(InputError, match="has not come to its end"):
        run.result()
    for _ in run:
        pass
    expected, found = generate(llama, PROMPTS, **settings), run.result()
    assert found.sequences == expected.sequences
    assert found.stats.acceptance == expected.stats.acceptance
    assert [record.rows for record in found.rounds] == [record.rows for record in expected.rounds]
    assert found.stats.wall_s > 0


def test_a_result_tells_what_was_cancelled(llama):
    run = stream(llama, PROMPTS, method="inplace", **SETTINGS)
    for event in run:
        run.cancel(event.index)
    assert {sequence.stop_reason for sequence in run.result().sequences} == {"cancelled"}
    assert all(0 < len(sequence.token_ids) < 10 for sequence in run.result().sequences)


def test_tokens_come_as_rounds_commit_them(llama):
    events = iter(stream(llama, PROMPTS, method="inplace", **SETTINGS))
    first = [next(events) for _ in range(3)]
    assert [event.index for event in first] == [0, 1, 2]
    assert all(len(event.token_ids) < 10 for event in first)


@pytest.mark.parametrize("method", METHODS)
def test_a_cancelled_sequence_leaves_the_others_alone(llama, method):
    expected = [s.token_ids for s in generate(llama, PROMPTS, method=method, **SETTINGS).sequences]
    run = stream(llama, PROMPTS, method=method, **SETTINGS)
    found: dict[int, list[int]] = {index: [] for index in range(len(PROMPTS))}
    for event in run:
        found[event.index] += event.token_ids
        if event.index == 0 and len(found[0]) < 10:
            run.cancel(0)
            run.cancel(5)  # still in the waiting line, but where the window is large
    assert found[0] == expected[0][: len(found[0])]
    assert 0 < len(found[0]) < 10
    assert found[5] == []
    assert [found[index] for index in (1, 2, 3, 4)] == expected[1:5]


def test_the_pool_refills_in_the_round_after_a_cancellation(llama):
    run = stream(llama, PROMPTS, method="inplace", **SETTINGS)
    events = iter(run)
    seen = [next(events).index for _ in range(3)]
    run.cancel(1)
    assert (seen, sorted(next(events).index for _ in range(3))) == ([0, 1, 2], [0, 2, 3])


def test_a_cancelled_sequence_has_no_further_events(llama):
    run = stream(llama, PROMPTS, method="eqspec", **SETTINGS)
    events = iter(run)
    next(events)
    run.cancel(1)  # its first tokens are pending
    run.cancel(1)
    assert 1 not in {event.index for event in events}


def test_who_has_ended_by_itself_keeps_its_last_event(llama):
    """It is cancelled when the last tokens of both are there, and only those of the other have been seen."""
    run, found = stream(llama, PROMPTS[:2], method="inplace", **SETTINGS), {0: [], 1: []}
    for event in run:
        found[event.index] += event.token_ids
        if run.done:
            run.cancel(1)
    assert [found[i] for i in (0, 1)] == [s.token_ids for s in run.result().sequences]
    assert {s.stop_reason for s in run.result().sequences} == {"length"}


def test_who_has_finished_in_a_static_batch_counts(llama):
    run = stream(llama, [Request([1], max_new_tokens=1), Request([2], max_new_tokens=9)], method="eqspec")
    run.run_one_round()
    assert (run.num_finished, run.done) == (1, False)


def test_everything_can_be_cancelled(llama):
    run = stream(llama, PROMPTS, method="exspec", **SETTINGS)
    events = iter(run)
    next(events)
    for index in range(len(PROMPTS)):
        run.cancel(index)
    assert list(events) == []


@pytest.mark.parametrize("index", [-1, 6])
def test_cancelling_what_is_not_there(llama, index):
    with pytest.raises(InputError, match=f"there is no sequence {index}: 6 have come, numbered from 0"):
        stream(llama, PROMPTS, **SETTINGS).cancel(index)


def test_who_is_still_to_come_cannot_be_cancelled_yet(llama):
    run = stream(llama, [[1, 2], Request([3], arrival_s=0.3)], **SETTINGS)
    with pytest.raises(InputError, match="sequence 1 is still to come: cancel it when it has"):
        run.cancel(1)
    for event in run:
        run.cancel(event.index)
    assert [s.stop_reason for s in run.result().sequences] == ["cancelled"] * 2


def test_the_oracle_has_no_rounds_to_stream(llama):
    with pytest.raises(InputError, match="autoregressive has no rounds to stream"):
        stream(llama, PROMPTS, method="autoregressive")
