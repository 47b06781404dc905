"""The suffix automaton finds what a search of the whole row finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.drafting import SuffixIndex
from refimpl.drafting.suffix import MOST_NOTED

ROWS = st.lists(st.integers(0, 2), max_size=50)  # no row of so few tokens has more than MOST_NOTED suffixes


def index_of(row):
    index = SuffixIndex()
    index.read(row)
    return index


def slow_lookup(row, limit):
    """The longest suffix of at least two tokens that ends before the row does, at its latest place."""
    for length in range(len(row) - 1, 1, -1):
        for end in range(len(row) - 1, length - 1, -1):
            if row[end - length : end] == row[-length:]:
                return [row[end + i % (len(row) - end)] for i in range(min(limit, length))]
    return []


@pytest.mark.parametrize(
    ("row", "limit", "found"),
    [
        ([], 3, []),
        ([1], 3, []),
        ([1, 2, 3], 3, []),
        ([1, 2, 1, 3, 1], 2, []),  # a single token is no match
        ([7, 1, 2, 9, 8, 7, 1, 2], 9, [9, 8, 7]),  # three tokens agree
        ([7, 1, 2, 9, 8, 7, 1, 2], 1, [9]),
        ([1, 2, 3, 4, 9, 2, 3, 4, 8, 1, 2, 3, 4], 9, [9, 2, 3, 4]),  # the longest match, not the latest
        ([2, 3, 9, 2, 3, 8, 1, 2, 3], 1, [8]),  # of two places the later one
        ([6, 6, 5, 6, 5, 5, 5], 9, [5, 5]),  # two tokens agree, and as many are proposed
        ([5, 6, 5, 6, 5, 6, 5, 6], 5, [5, 6, 5, 6, 5]),  # beyond the end of the row it goes on with itself
    ],
)
def test_what_followed_the_longest_match_is_proposed(row, limit, found):
    assert index_of(row).propose(limit) == slow_lookup(row, limit) == found


@given(row=ROWS, limit=st.integers(1, 8))
def test_equal_to_a_search_of_the_row(row, limit):
    assert len(row) < MOST_NOTED
    assert index_of(row).propose(limit) == slow_lookup(row, limit)


@given(row=ROWS, cuts=st.lists(st.integers(0, 50), max_size=5))
def test_reading_in_pieces_finds_the_same(row, cuts):
    piecewise = SuffixIndex()
    for end in [*sorted(cuts), len(row)]:
        piecewise.read(row[:end])
        assert piecewise.propose(8) == slow_lookup(row[:end], 8)


def test_a_row_of_one_token():
    """It has as many suffixes as tokens; only some of them are noted, and any place will do."""
    assert index_of([4] * 5000).propose(8) == [4] * 8
