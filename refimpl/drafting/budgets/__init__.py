"""How many drafts of each row are verified: one file for each budget. Pure Python, as the schedulers are."""

from collections.abc import Callable
from typing import Any

from refimpl.core.drafting import DraftingConfig
from refimpl.drafting.budgets.base import BudgetRow, DraftBudget, Score
from refimpl.drafting.budgets.by_load import LoadBudget
from refimpl.drafting.budgets.capacity import CapacityBudget
from refimpl.drafting.budgets.confidence import ConfidenceBudget
from refimpl.drafting.budgets.goodput import GoodputBudget

BUDGETS: dict[str, Callable[[Any], DraftBudget]] = {  # by name, as a function of what stands behind it
    "fixed": lambda nothing: DraftBudget(),
    "by_load": LoadBudget,
    "capacity": CapacityBudget,
    "capacity_own_token": lambda capacity: CapacityBudget(capacity, "own_token"),
    "goodput": GoodputBudget,
    "confidence": ConfidenceBudget,
}


def make_budget(drafting: DraftingConfig) -> DraftBudget:
    """The budget that settings ask for."""
    return BUDGETS[drafting.budget_name](drafting.budget_argument)
