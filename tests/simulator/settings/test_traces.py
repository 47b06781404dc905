"""What a trace says about its run, where its header does not."""

import pandas as pd

from refimpl.core.formats import TRACE_SCHEMA
from simulator.settings.traces import EngineTrace

HEADER = {
    "schema": TRACE_SCHEMA,
    "num_speculative_tokens": 3,
    "max_new_tokens": 20,
    "num_sequences": 3,
    "prompt_lens": [2, 4, 1],
}


def trace(rows: list[tuple[int, int, int, int, int]], **header: object) -> EngineTrace:
    """A trace of (sequence, seq_len, drafted, accepted, kept)."""
    frame = pd.DataFrame(rows, columns=["sequence", "seq_len", "drafted", "accepted", "kept"])
    return EngineTrace("made up", HEADER | header, frame)


def test_output_lengths_add_up_what_was_kept():
    assert trace([(0, 2, 3, 3, 4), (2, 1, 3, 1, 2), (0, 6, 3, 0, 1)]).output_lens == [5, 0, 2]


def test_a_comparison_is_known_up_to_the_first_wrong_draft():
    found = trace([(0, 2, 3, 1, 2), (0, 4, 3, 3, 4)])
    assert found.match_bits(0)[:6].tolist() == [1, 0, 1, 1, 1, -1]
    assert set(found.match_bits(1)) == {-1}
