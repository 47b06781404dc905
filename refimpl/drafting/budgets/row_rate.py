"""Drafts by what the row has accepted so far."""

from collections.abc import Sequence as Seq

from refimpl.drafting.budgets.base import BudgetRow, DraftBudget, expected_tokens, own_rates


class RowRateBudget(DraftBudget):
    """As many drafts as give most tokens per second at the row's acceptance rate, see `own_rates`.

    The rate of all rows of the round stands in for what the row has not shown, so its drafts depend on its neighbours.

    Args:
        cost: seconds of one more draft, drawn and verified, over those of a round without drafts.
    """

    def __init__(self, cost: float):
        self.cost = cost

    def before(self, rows: Seq[BudgetRow]) -> list[int]:
        """The best number of each row."""
        return [self._best(row.draft_limit, rate) for row, rate in zip(rows, own_rates(rows), strict=True)]

    def _best(self, limit: int, rate: float) -> int:
        gains = [expected_tokens(rate, k) / (1 + self.cost * k) for k in range(limit + 1)]
        return gains.index(max(gains))
