"""Drafts by what the row has accepted so far."""

from collections.abc import Sequence as Seq

from refimpl.drafting.budgets.base import BudgetRow, DraftBudget, expected_tokens

PRIOR = 4.0  # drafts that the rate of all rows counts as


class RowRateBudget(DraftBudget):
    """As many drafts as give most tokens per second at the row's own acceptance rate.

    A draft after the first rejected one was not decided on, so the rate is accepted over evaluated, not over drafted.
    The rate of all rows of the round stands in for what a row has not shown.

    Args:
        cost: seconds of one more draft, drawn and verified, over those of a round without drafts.
    """

    def __init__(self, cost: float):
        self.cost = cost

    def before(self, rows: Seq[BudgetRow]) -> list[int]:
        """The best number of each row."""
        overall = (sum(row.num_accepted for row in rows) + 1) / (sum(row.num_evaluated for row in rows) + 2)
        return [self._best(row, (row.num_accepted + PRIOR * overall) / (row.num_evaluated + PRIOR)) for row in rows]

    def _best(self, row: BudgetRow, rate: float) -> int:
        gains = [expected_tokens(rate, k) / (1 + self.cost * k) for k in range(row.draft_limit + 1)]
        return gains.index(max(gains))
