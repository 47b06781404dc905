"""Passes of a calibration: what each feeds, that nothing is committed, and the stages their seconds belong to."""

from functools import partial

import pytest

from refimpl import InputError
from refimpl.calibrate.passes import PassBench

ROWS, PROMPT, START = [[5, 3, 8], [4, 1, 9, 2, 7], [6, 2]], list(range(1, 20)), 6
COUNTS = [2, 4, 1]


def passes_of(pair, layout):
    return PassBench(pair, f"{layout}+continuous", ROWS, PROMPT, START, num_speculative_tokens=3, checks="device")


@pytest.fixture
def fed(llama, monkeypatch):
    """Tokens that each pass of the target has fed, pads included."""
    numbers = []

    def count(run, block, num_logits):
        numbers.append(block.tokens.numel())
        return run(block, num_logits)

    for name in ("forward", "forward_packed"):
        monkeypatch.setattr(llama.target, name, partial(count, getattr(llama.target, name)))
    return numbers


@pytest.mark.parametrize("layout", ["inplace", "paged"])
def test_passes_feed_what_they_say(llama, fed, layout):
    passes = passes_of(llama, layout)
    del fed[:]
    runs = [
        partial(passes.rectangle, COUNTS),
        partial(passes.packed, COUNTS),
        partial(passes.mixed, COUNTS, 5),
        partial(passes.mixed, [4, 4, 4], 0),
        partial(passes.chunk, passes.target, 5),
        partial(passes.of_round, [4, 4, 4], 5),
    ]
    assert all(sum(passes.stages(run)) > 0 for run in runs)
    assert fed == [12, 7, 12, 12, 5, 17]


@pytest.mark.parametrize("layout", ["inplace", "paged"])
def test_nothing_is_committed(llama, layout):
    passes = passes_of(llama, layout)
    for _ in range(3):
        passes.stages(partial(passes.of_round, COUNTS, 5))
    assert [row.token_ids for row in passes.rows] == ROWS
    assert [row.target_cached for row in passes.rows] == [len(row) - 1 for row in ROWS]
    assert (passes.prompt.target_cached, passes.prompt.draft_cached) == (START, START)


def test_a_pass_over_rows_and_a_chunk_includes_the_drafts_pass(llama, monkeypatch):
    passes, drafted, forward = passes_of(llama, "inplace"), [], llama.draft.forward_packed
    monkeypatch.setattr(
        llama.draft, "forward_packed", lambda block, n: (drafted.append(block.tokens.numel()), forward(block, n))[1]
    )
    chunk_s, verify_s = passes.stages(partial(passes.of_round, COUNTS, 5))
    assert drafted == [5]
    assert min(chunk_s, verify_s) > 0
    assert passes.stages(partial(passes.mixed, COUNTS, 5))[0] == 0


def test_a_target_without_packed_passes_is_refused(llama, monkeypatch):
    monkeypatch.setattr(llama.target, "forward_packed", None)
    with pytest.raises(InputError, match="runs no packed passes"):
        passes_of(llama, "inplace")
