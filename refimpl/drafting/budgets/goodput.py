"""As many drafts as still raise the tokens per second of the round."""

from collections.abc import Sequence as Seq
from typing import ClassVar

from refimpl.drafting.budgets.base import DraftBudget, Score, ranked


class GoodputBudget(DraftBudget):
    """Verifies drafts, the likeliest to survive first, until one more would lower the expected tokens per second.

    It stops at the first decline. The best of all numbers may lie beyond it, but to know that one must have seen
    estimates that read the very drafts to be verified.

    Args:
        cost: seconds of one more draft verified, over those of a round without drafts.
        tile: drafts that cost as much as one of them: a pass is computed in tiles.
    """

    score: Score | None = "expected"
    shares: ClassVar[bool] = True

    def __init__(self, cost: float, tile: int = 1):
        self.cost, self.tile = cost, tile

    def seconds(self, drafts: int) -> float:
        """Of a round, relative to one without drafts."""
        return 1 + self.cost * self.tile * -(-drafts // self.tile)

    def after(self, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        """Take drafts while they pay."""
        limits, tokens = [0] * len(lengths), float(len(lengths))
        for count, (estimate, row) in enumerate(ranked(lengths, survival), start=1):
            if (tokens + estimate) / self.seconds(count) < tokens / self.seconds(count - 1):
                break
            limits[row] += 1
            tokens += estimate
        return limits
