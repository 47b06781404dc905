"""Kernels where they turn: at equality, at zero."""

from itertools import product

import pytest

from refimpl.core import kernels
from refimpl.layouts.spans import FULL, Span


@pytest.mark.parametrize(("key", "seen"), [(0, False), (1, True), (3, True), (4, False)])
def test_a_left_padded_query_sees_from_its_first_token_to_itself(key, seen):
    assert bool(kernels.visible_left_padded(key, 3, 1)) is seen


@pytest.mark.parametrize(("slot", "seen"), [(-1, False), (0, True), (3, True), (4, False)])
def test_a_query_sees_positions_up_to_its_own(slot, seen):
    assert bool(kernels.visible_by_position(slot, 3)) is seen


def test_a_window_and_a_chunk_are_the_positions_they_name():
    """A window of 3 at position 7 is 5, 6 and 7; chunks of 3 are 0 to 2, 3 to 5, 6 to 8."""
    assert [slot for slot in range(9) if kernels.in_window(slot, 7, 3) and slot <= 7] == [5, 6, 7]
    assert [[slot for slot in range(9) if kernels.in_chunk(slot, query, 3)] for query in (2, 3, 8)] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8],
    ]  # fmt: skip


@pytest.mark.parametrize(("span", "first"), [(FULL, 0), (Span("window", 3), 5), (Span("chunk", 3), 6)])
def test_a_span_begins_at_the_first_position_that_it_reaches(span, first):
    assert span.start(7) == first


@pytest.mark.parametrize(
    ("inside", "start"), [(kernels.in_window, kernels.window_start), (kernels.in_chunk, kernels.chunk_start)]
)
def test_nothing_in_front_of_a_start_is_seen_from_a_query_on_and_the_start_is(inside, start):
    for size, query in product(range(1, 6), range(12)):
        seen = {slot for later in range(query, query + 12) for slot in range(later + 1) if inside(slot, later, size)}
        assert min(seen) == max(0, start(query, size))


@pytest.mark.parametrize(
    ("u", "p", "q", "accepted"), [(0.0, 0.0, 0.5, False), (0.5, 0.25, 0.5, False), (0.0, 0.1, 1.0, True)]
)
def test_a_draft_is_accepted_strictly_below_the_ratio(u, p, q, accepted):
    """A token without mass under the target is never accepted, not even by the smallest number."""
    assert kernels.accepts(u, p, q) is accepted


@pytest.mark.parametrize(("position", "claimed"), [(-1, -1), (1, -1), (2, 2), (4, 4), (5, -1)])
def test_a_slot_claims_its_position_from_the_first_that_is_new_to_the_last_that_is_kept(position, claimed):
    assert kernels.masked_slot_position(position, 2, 5) == claimed
