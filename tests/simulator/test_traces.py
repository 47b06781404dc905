"""What a trace says about its run, where its header does not."""

import pandas as pd

from simulator.settings.trace_checks import ENGINE_SCHEMA
from simulator.settings.traces import EngineTrace

HEADER = {
    "schema": ENGINE_SCHEMA,
    "num_speculative_tokens": 3,
    "max_new_tokens": 20,
    "num_sequences": 3,
    "prompt_lens": [2, 4, 1],
}


def trace(rows: list[tuple[int, int, int, int, int]], **header: object) -> EngineTrace:
    """A trace of (sequence, seq_len, drafted, accepted, kept)."""
    frame = pd.DataFrame(rows, columns=["sequence", "seq_len", "drafted", "accepted", "kept"])
    return EngineTrace("made up", HEADER | header, frame)


def test_a_row_that_drafts_less_than_it_might_tells_its_budget():
    """Two tokens of a prompt, five generated, one draft more: seven tokens in all."""
    found = trace([(0, 2, 3, 3, 4), (0, 7, 1, 1, 2), (1, 4, 3, 0, 1), (2, 1, 0, 0, 1)])
    assert found.budgets == [7, 20, 1]


def test_budgets_of_the_header_count_first():
    assert trace([(0, 7, 1, 1, 2)], max_new_tokens_each=[9, 8, 7]).budgets == [9, 8, 7]


def test_output_lengths_add_up_what_was_kept():
    assert trace([(0, 2, 3, 3, 4), (2, 1, 3, 1, 2), (0, 6, 3, 0, 1)]).output_lens == [5, 0, 2]


def test_a_comparison_is_known_up_to_the_first_wrong_draft():
    found = trace([(0, 2, 3, 1, 2), (0, 4, 3, 3, 4)])
    assert found.match_bits(0)[:6].tolist() == [1, 0, 1, 1, 1, -1]
    assert set(found.match_bits(1)) == {-1}
