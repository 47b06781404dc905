"""What proposes tokens, and how many of them are verified: the settings of drafting."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from refimpl.core.errors import require, shown
from refimpl.core.values import MAX_SPECULATIVE_TOKENS, is_list, is_number, require_int, use_plain_numbers

DrafterName = Literal["model", "ngram", "suffix", "hybrid", "head"]
DraftBudgetName = Literal["fixed", "by_load", "capacity", "goodput", "confidence"]
RankingScore = Literal["expected", "own_token"]


class Parts(NamedTuple):
    """What a drafter is made of: the name of a lookup, and of what draws tokens where it finds none; empty for none."""

    lookup: str = ""
    draws: str = ""


DRAFTER_PARTS: dict[DrafterName, Parts] = {
    "model": Parts(draws="model"),
    "ngram": Parts("ngram"),
    "suffix": Parts("suffix"),
    "hybrid": Parts("ngram", "model"),
    "head": Parts(draws="head"),
}
DRAFTERS: tuple[str, ...] = tuple(DRAFTER_PARTS)
DRAFT_BUDGETS: tuple[str, ...] = get_args(DraftBudgetName)
RANKING_SCORES: tuple[str, ...] = get_args(RankingScore)
# drafters that a pair without a draft can have
WITHOUT_MODEL: tuple[str, ...] = tuple(name for name, parts in DRAFTER_PARTS.items() if parts.draws != "model")
# drafters that draw each token from a distribution
WITH_PROBABILITIES: tuple[str, ...] = tuple(name for name, parts in DRAFTER_PARTS.items() if not parts.lookup)
OF_PROBABILITIES: tuple[str, ...] = ("capacity", "confidence")  # budgets that read the probabilities of the draft


@dataclass(frozen=True, slots=True)
class DraftingConfig:
    """What proposes tokens, and how many are verified. Greedy and coupled outputs depend on neither.

    Attributes:
        drafter: ``"model"``: the pair's draft. ``"ngram"``: what followed the row's last tokens where they occurred
            before, in the prompt or in the output (prompt lookup); no draft is loaded or run. ``"suffix"``:
            what followed the longest earlier match of the row's end, at most as many tokens as agree; no draft either.
            ``"hybrid"``: as ngram; where some row finds nothing, the draft goes on from what the rows have found.
            ``"head"``: a small network on the target's last hidden state, trained for that target; no draft either. A
            row's first round has no drafts.
        draft_budget: drafts to verify, num_speculative_tokens a row at most. ``"fixed"``: that many. ``"by_load"``:
            fewer in a crowd. ``"capacity"``: a number for the whole round, for the likeliest to survive.
            ``"goodput"``: by what rows have accepted and rounds cost. ``"confidence"``: as long as the draft is sure; a
            row stops before the first draft that it is not sure of.
        drafts_by_load: for by_load, pairs (rows, drafts): with so many rows or more, at most so many drafts each.
        draft_capacity: for capacity: drafts of a round, over all rows.
        draft_score: for capacity: what ranks drafts: ``"expected"``, or ``"own_token"`` as published, which is not
            lossless under rejection sampling and refused there.
        draft_costs: for goodput, pairs (rows, seconds): with so many rows or more, seconds of rounds with 1, 2, …
            drafts a row, over those of a round without drafts. No more drafts a row than numbers.
        draft_threshold: for confidence: least estimated survival of a draft, in 0 … 1.
    """

    drafter: DrafterName = "model"
    draft_budget: DraftBudgetName = "fixed"
    drafts_by_load: Seq[tuple[int, int]] = ()
    draft_capacity: int | None = None
    draft_score: RankingScore = "expected"
    draft_costs: Seq[tuple[int, Seq[float]]] = ()
    draft_threshold: float = 0.4

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        for name, known in (
            ("drafter", DRAFTERS), ("draft_budget", DRAFT_BUDGETS), ("draft_score", RANKING_SCORES),
        ):  # fmt: skip
            value = getattr(self, name)
            require(value in known, f"{name} must be one of {', '.join(known)}, not {shown(value)}")
        self._check_table()
        self._check_costs()
        self._check_numbers()
        require(
            self.drafter in WITH_PROBABILITIES or not self.reads_probabilities,
            f"draft_budget {self.draft_budget!r} reads the draft's probabilities, which drafter {self.drafter!r} does "
            "not always have: choose drafter 'model' or 'head'",
        )

    def _check_table(self) -> None:
        _check_pairs("drafts_by_load", self.drafts_by_load, "drafts")
        for _, drafts in self.drafts_by_load:
            require_int("drafts of drafts_by_load", drafts, 0, MAX_SPECULATIVE_TOKENS)
        require(
            (self.draft_budget == "by_load") == bool(self.drafts_by_load),
            "draft_budget 'by_load' and drafts_by_load go together",
        )

    def _check_costs(self) -> None:
        _check_pairs("draft_costs", self.draft_costs, "seconds")
        for _, seconds in self.draft_costs:
            right = is_list(seconds) and len(seconds) > 0 and all(is_number(s) and 0 < s < math.inf for s in seconds)
            message = f"seconds of draft_costs must be a list of at least one finite number > 0, not {shown(seconds)}"
            require(right, message)
        require(
            (self.draft_budget == "goodput") == bool(self.draft_costs),
            "draft_budget 'goodput' and draft_costs go together",
        )

    def _check_numbers(self) -> None:
        least = self.draft_threshold
        require(is_number(least) and 0 <= least <= 1, f"draft_threshold must be in 0 … 1, not {shown(least)}")
        if self.draft_capacity is not None:
            require_int("draft_capacity", self.draft_capacity, 0)
        require(
            (self.draft_budget == "capacity") == (self.draft_capacity is not None),
            "draft_budget 'capacity' and draft_capacity go together",
        )

    @property
    def uses_draft(self) -> bool:
        """Whether the pair's draft runs."""
        return self.drawn_by == "model"

    @property
    def reads_probabilities(self) -> bool:
        """Whether the budget asks how likely the draft's tokens are."""
        return self.draft_budget in OF_PROBABILITIES

    @property
    def looks(self) -> bool:
        """Whether drafts are looked up."""
        return bool(self.lookup)

    @property
    def lookup(self) -> str:
        """Name of the lookup that finds drafts; empty where nothing is looked up."""
        return DRAFTER_PARTS[self.drafter].lookup

    @property
    def drawn_by(self) -> str:
        """Name of what draws drafts; empty where none are drawn."""
        return DRAFTER_PARTS[self.drafter].draws

    @property
    def recordable(self) -> bool:
        """Whether a round's drafts can be recorded: nothing is looked up or decided on the host."""
        return self.drafter == "model" and self.draft_budget == "fixed"


def _check_pairs(name: str, table: Any, what: str) -> None:
    """Raise InputError unless a setting is a list of pairs that begin with numbers of rows, each another."""
    require(is_list(table), f"{name} must be pairs (rows, {what}), not {shown(table)}")
    for pair in table:
        require(is_list(pair) and len(pair) == 2, f"{name} must be pairs (rows, {what}), not {shown(pair)}")
        require_int(f"rows of {name}", pair[0], 1)
    require(len({rows for rows, *_ in table}) == len(table), f"{name} has a number of rows twice: {shown(table)}")
