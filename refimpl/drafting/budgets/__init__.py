"""How many drafts of each row are verified: one file for each budget. Pure Python, as the schedulers are."""

from collections.abc import Callable

from refimpl.core.drafting import DraftBudgetName, DraftingConfig
from refimpl.drafting.budgets.base import BudgetRow, CommittedRow, DraftBudget, Score
from refimpl.drafting.budgets.by_load import LoadBudget
from refimpl.drafting.budgets.capacity import CapacityBudget
from refimpl.drafting.budgets.confidence import ConfidenceBudget
from refimpl.drafting.budgets.goodput import GoodputBudget

BUDGETS: dict[DraftBudgetName, Callable[[DraftingConfig], DraftBudget]] = {
    "fixed": lambda config: DraftBudget(),
    "by_load": lambda config: LoadBudget(config.drafts_by_load),
    "capacity": lambda config: CapacityBudget(config.draft_capacity or 0, config.draft_score),
    "goodput": lambda config: GoodputBudget(config.draft_costs),
    "confidence": lambda config: ConfidenceBudget(config.draft_threshold),
}


def make_budget(config: DraftingConfig) -> DraftBudget:
    """The budget that a config asks for."""
    return BUDGETS[config.draft_budget](config)


__all__ = [
    "BUDGETS",
    "BudgetRow",
    "CapacityBudget",
    "CommittedRow",
    "ConfidenceBudget",
    "DraftBudget",
    "GoodputBudget",
    "LoadBudget",
    "Score",
    "make_budget",
]
