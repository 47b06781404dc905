"""Fewer drafts in a crowd."""

from collections.abc import Sequence as Seq

from refimpl.drafting.budgets.base import BudgetRow, DraftBudget


class LoadBudget(DraftBudget):
    """At most so many drafts, by the number of rows in the round.

    Args:
        table: pairs (rows, drafts): with that many rows or more, at most that many drafts each.
    """

    def __init__(self, table: Seq[tuple[int, int]]):
        self.table = table

    def before(self, rows: Seq[BudgetRow]) -> list[int]:
        """The smallest limit of the pairs that apply."""
        most = [drafts for least, drafts in self.table if len(rows) >= least]
        return [min([row.draft_limit, *most]) for row in rows]
