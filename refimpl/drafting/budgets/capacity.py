"""A number of drafts for the whole round, given to those most likely to survive."""

from collections.abc import Sequence as Seq
from typing import ClassVar

from refimpl.drafting.budgets.base import DraftBudget, Score, ranked


class CapacityBudget(DraftBudget):
    """Verifies the drafts of all rows that are most likely to survive, up to a number of them a round.

    Source: Wu et al. 2025 (TETRIS), where drafts are ranked by their own probabilities (``own_token``). That depends on
    what was drawn, so it changes the law of rejection sampling; ``expected`` does not.

    Args:
        capacity: drafts that a round verifies, over all rows.
        score: what ranks them.
    """

    shares: ClassVar[bool] = True

    def __init__(self, capacity: int, score: Score = "expected"):
        self.capacity, self.score = capacity, score

    def after(self, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        """Count each row's drafts among the best."""
        limits = [0] * len(lengths)
        for _, row in ranked(lengths, survival)[: self.capacity]:
            limits[row] += 1
        return limits
