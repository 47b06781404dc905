"""A budget whose answers are checked during a run."""

from collections.abc import Sequence as Seq
from copy import deepcopy

from refimpl.core.invariants import require_invariant
from refimpl.drafting.budgets import BudgetRow, DraftBudget


class CheckedBudget(DraftBudget):
    """Asks a budget again with the estimates that other drafts would have had (INV-20)."""

    def __init__(self, budget: DraftBudget):
        self._untouched = deepcopy(budget)
        self.budget, self.score = budget, budget.score
        self.stops, self.shares = budget.stops, budget.shares  # type: ignore[misc]

    @property
    def predictable(self) -> bool:
        """The budget's own."""
        return self.budget.predictable

    def before(self, rows: Seq[BudgetRow]) -> list[int]:
        """The budget's own; one that has seen no draft must give the same, from what is committed."""
        limits = self.budget.before(rows)
        want = deepcopy(self._untouched).before(rows)
        statement = f"drafts {want}, from what is committed alone"
        require_invariant(limits == want, "INV-20", row=None, expected=statement, found=limits)
        return limits

    def go_on(self, survival: Seq[float]) -> list[bool]:
        """The budget's own."""
        return self.budget.go_on(survival)

    def after(self, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        """The budget's own; whether draft d is verified must not change when estimates after the d-th do."""
        limits = self.budget.after(lengths, survival)
        if self.predictable:
            for row, length in enumerate(lengths):
                for depth in range(length):
                    self._require_same(lengths, survival, limits, row, depth)
        return limits

    def _require_same(
        self, lengths: Seq[int], survival: Seq[Seq[float]], limits: Seq[int], row: int, depth: int
    ) -> None:
        """The estimate of a draft reads the drafts before it, so those after `depth` are another draft's to change."""
        own = list(survival[row])
        for redrawn in (0.0, own[depth]):
            other = list(survival)
            other[row] = own[: depth + 1] + [redrawn] * (len(own) - depth - 1)
            found = self.budget.after(lengths, other)[row]
            require_invariant(
                (found > depth) == (limits[row] > depth),
                "INV-20",
                row=row,
                expected=f"draft {depth} verified or not, whatever it is: {limits[row] > depth}",
                found=f"{found > depth} had another one been drawn",
            )
