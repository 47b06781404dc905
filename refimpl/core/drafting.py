"""What proposes tokens, and how many of them are verified: names, and what each needs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from refimpl.core.errors import InputError, did_you_mean, require, shown
from refimpl.core.values import MAX_SPECULATIVE_TOKENS

DrafterName = Literal["model", "ngram", "suffix", "hybrid", "head"]
Argument = Callable[[str], Any]  # what stands behind the colon, as the budget's class takes it


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What a drafter needs of a run.

    Attributes:
        runs_draft: the pair's draft model.
        lookup: name of the index that it looks tokens up in; None for none.
        draws: what draws its tokens from a distribution, ``"model"`` or ``"head"``; None for nothing.
    """

    runs_draft: bool = False
    lookup: str | None = None
    draws: str | None = None

    @property
    def has_probabilities(self) -> bool:
        """Whether every token is drawn from a distribution."""
        return self.draws is not None and self.lookup is None


DRAFTERS: dict[str, DrafterFacts] = {
    "model": DrafterFacts(runs_draft=True, draws="model"),
    "ngram": DrafterFacts(lookup="ngram"),
    "suffix": DrafterFacts(lookup="suffix"),
    "hybrid": DrafterFacts(runs_draft=True, lookup="ngram", draws="model"),
    "head": DrafterFacts(draws="head"),
}


def no_argument(text: str) -> None:
    """Of a budget that takes none."""
    if text:
        raise ValueError


def drafts(text: str) -> int:
    """A number of drafts."""
    number = int(text)
    require(number >= 0, f"drafts of draft_budget must be at least 0, not {number}")
    return number


def survival(text: str) -> float:
    """A probability that a draft survives; 0.4 unless given."""
    number = float(text or 0.4)
    require(0 <= number <= 1, f"the survival of draft_budget must be in 0 … 1, not {number}")
    return number


def drafts_by_rows(text: str) -> tuple[tuple[int, int], ...]:
    """Pairs (rows, drafts): with so many rows or more, at most so many drafts each."""
    table = _by_rows(text, int)
    right = all(0 <= most <= MAX_SPECULATIVE_TOKENS for _, most in table)
    require(right, f"drafts of draft_budget must be in 0 … {MAX_SPECULATIVE_TOKENS}, not {shown(text)}")
    return table


def seconds_by_rows(text: str) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """Pairs (rows, seconds): with so many rows or more, seconds of rounds with 1, 2, … drafts over those without."""
    table = _by_rows(text, lambda cell: tuple(map(float, cell.split("/"))))
    right = all(0 < second < math.inf for _, seconds in table for second in seconds)
    require(right, f"seconds of draft_budget must be finite and above 0, not {shown(text)}")
    return table


def _by_rows(text: str, value: Callable[[str], Any]) -> tuple[tuple[int, Any], ...]:
    pairs = [part.split("=") for part in text.split(",")]
    table = tuple((int(rows), value(cell)) for rows, cell in pairs)
    right = len(dict(table)) == len(table) and min(dict(table)) >= 1
    require(right, f"numbers of rows of draft_budget must be at least 1, each another, not {shown(text)}")
    return table


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """What a draft budget is written like, and whether it reads the draft's probabilities."""

    argument: Argument = no_argument
    example: str = ""
    reads_probabilities: bool = False


DRAFT_BUDGETS: dict[str, BudgetFacts] = {
    "fixed": BudgetFacts(),
    "by_load": BudgetFacts(drafts_by_rows, "1=7,4=5,16=2"),
    "capacity": BudgetFacts(drafts, "16", reads_probabilities=True),
    "capacity_own_token": BudgetFacts(drafts, "16", reads_probabilities=True),
    "goodput": BudgetFacts(seconds_by_rows, "1=1.2/1.4,8=1.3/1.7"),
    "confidence": BudgetFacts(survival, "0.4", reads_probabilities=True),
}


@dataclass(frozen=True, slots=True)
class DraftingConfig:
    """What proposes tokens, and how many are verified. Greedy and coupled outputs depend on neither.

    Raises:
        InputError: an unknown name, an argument that the budget does not take, or a budget that reads probabilities
            beside a drafter that does not always have them.
    """

    drafter: str = "model"
    draft_budget: str = "fixed"

    def __post_init__(self) -> None:
        name = self.budget_name
        message = f"draft_budget must be one of {', '.join(DRAFT_BUDGETS)}, not {shown(self.draft_budget)}"
        require(name in DRAFT_BUDGETS, message + did_you_mean(name, tuple(DRAFT_BUDGETS)))
        known = isinstance(self.drafter, str) and self.drafter in DRAFTERS
        require(known, f"drafter must be one of {', '.join(DRAFTERS)}, not {shown(self.drafter)}")
        _ = self.budget_argument
        require(
            not self.reads_probabilities or DRAFTERS[self.drafter].has_probabilities,
            f"draft_budget {name!r} reads the draft's probabilities, which drafter {self.drafter!r} does "
            "not always have: choose drafter 'model' or 'head'",
        )

    @property
    def budget_name(self) -> str:
        """Of the draft budget."""
        return str(self.draft_budget).partition(":")[0]

    @property
    def budget_argument(self) -> Any:
        """What stands behind the name of the draft budget, as its class takes it."""
        facts, text = DRAFT_BUDGETS[self.budget_name], self.draft_budget.partition(":")[2]
        try:
            return facts.argument(text)
        except InputError:
            raise
        except ValueError:
            usage = ":".join(filter(None, [self.budget_name, facts.example]))
            raise InputError(f"draft_budget must look like {usage}, not {shown(self.draft_budget)}") from None

    @property
    def uses_draft(self) -> bool:
        """Whether the pair's draft runs."""
        return DRAFTERS[self.drafter].runs_draft

    @property
    def reads_probabilities(self) -> bool:
        """Whether the budget asks how likely the draft's tokens are."""
        return DRAFT_BUDGETS[self.budget_name].reads_probabilities

    @property
    def lookup(self) -> str | None:
        """Name of the index that finds drafts; None where nothing is looked up."""
        return DRAFTERS[self.drafter].lookup

    @property
    def draws(self) -> str | None:
        """What draws drafts, ``"model"`` or ``"head"``; None where nothing is drawn."""
        return DRAFTERS[self.drafter].draws

    @property
    def fixed(self) -> bool:
        """Whether each row is offered as many drafts of the pair's draft as it can use."""
        return (self.drafter, self.budget_name) == ("model", "fixed")

    @property
    def recordable(self) -> bool:
        """Whether a round can be recorded: the host looks nothing up, and chooses nothing once drafts are drawn."""
        return self.drafter == "model" and not self.reads_probabilities
