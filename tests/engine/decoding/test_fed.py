"""The books of what a model was fed."""

import pytest

from refimpl.core.invariants import InvariantViolation
from refimpl.core.sequence import Sequence
from refimpl.decoding.fed import FedTokens
from refimpl.decoding.invariants import check_counts, check_draft_lag, check_target_lag


def row(num_tokens: int, **cached: int) -> Sequence:
    return Sequence(0, list(range(num_tokens)), 9, **cached)


def after_a_round(tokens_before: int, k: int, kept: int) -> tuple[FedTokens, Sequence]:
    """A row of which the target is fed the last token and k drafts."""
    fed, sequence = FedTokens("INV-5"), row(tokens_before)
    fed.prefilled(sequence, tokens_before - 1)
    fed.feed([sequence], -1, k + 1)
    sequence.token_ids += [0] * kept
    return fed, sequence


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_what_was_rejected_does_not_count(kept):
    fed, sequence = after_a_round(4, k=2, kept=kept)
    assert fed.settle(sequence, 0) == 3 + kept
    assert fed.settle(sequence, 0) == 3 + kept


def test_a_gap_is_noticed():
    fed, sequence = FedTokens("INV-5"), row(5)
    fed.prefilled(sequence, 3)
    with pytest.raises(InvariantViolation, match=r"INV-5 in row 0: .*expected 3 or less, found 4"):
        fed.feed([sequence], -1, 1)
    fed.feed([sequence], -2, 1)  # a token that was not cached yet
    fed.feed([sequence], -2, 2)  # again, and the next


def test_what_is_not_seen_is_taken_as_it_is_claimed():
    fed, sequence = after_a_round(4, k=2, kept=1)
    fed.unseen([sequence])
    assert fed.settle(sequence, 4) == 4


@pytest.mark.parametrize(
    ("check", "cached", "fed", "invariant"),
    [
        (check_target_lag, {"target_cached": 4}, 3, "INV-5"),
        (check_target_lag, {"target_cached": 5}, 4, "INV-5"),
        (check_draft_lag, {"draft_cached": 4}, 3, "INV-6"),
        (check_draft_lag, {"draft_cached": 2}, 2, "INV-6"),
    ],
)
def test_a_count_that_was_not_fed_is_noticed(check, cached, fed, invariant):
    check(row(5, **dict.fromkeys(cached, 4)), 4)
    with pytest.raises(InvariantViolation, match=invariant):
        check(row(5, **cached), fed)


def test_drafts_behind_a_cut_are_not_counted():
    sequence = row(3)
    sequence.extend([1])
    sequence.note_drafts(3, 3, 1)
    check_counts(sequence)
    sequence.note_drafts(3, 3, 4)
    with pytest.raises(InvariantViolation, match=r"INV-20 in row 0: .*found 4 ≤ 4 ≤ 1"):
        check_counts(sequence)
