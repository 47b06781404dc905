"""The number of drafts that gives most tokens per second, by measured seconds and by what rows have accepted."""

from collections.abc import Sequence as Seq
from itertools import accumulate

from refimpl.drafting.budgets.base import BudgetRow, DraftBudget, own_rates


class GoodputBudget(DraftBudget):
    """One number of drafts for all rows of a round: the one with most expected tokens per second.

    What rows will accept is expected from what each has accepted so far, so the number is known before anything is
    drafted, and nothing is drafted in vain. Estimates of the drafts themselves come too late: they have been paid for.

    Source: Liu et al. 2024 (SmartSpec), with a rate for each row in place of one for all.

    Args:
        costs: pairs (rows, seconds): with so many rows or more, seconds of rounds with 1, 2, … drafts a row, over those
            of a round without drafts. Fewer rows than in any pair take the smallest.
    """

    def __init__(self, costs: Seq[tuple[int, Seq[float]]]):
        self.costs = sorted((rows, tuple(seconds)) for rows, seconds in costs)

    def before(self, rows: Seq[BudgetRow]) -> list[int]:
        """The best number, or what a row can use."""
        speeds = [tokens / s for tokens, s in zip(self._tokens(rows), self.seconds(len(rows)), strict=False)]
        best = speeds.index(max(speeds))
        return [min(best, row.draft_limit) for row in rows]

    def seconds(self, num_rows: int) -> list[float]:
        """Of rounds with 0, 1, … drafts a row, over those with none."""
        known = [seconds for rows, seconds in self.costs if rows <= num_rows]
        return [1.0, *(known[-1] if known else self.costs[0][1])]

    def _tokens(self, rows: Seq[BudgetRow]) -> list[float]:
        """Expected of rounds with 0, 1, … drafts a row."""
        rates = list(zip(own_rates(rows), [row.draft_limit for row in rows], strict=True))
        most = max([limit for _, limit in rates], default=0)
        return list(accumulate(sum([p**j for p, limit in rates if j <= limit]) for j in range(most + 1)))
