"""What a draft budget is asked, and what it answers."""

from collections.abc import Sequence as Seq
from typing import ClassVar, Literal, Protocol, runtime_checkable

Score = Literal["expected", "own_token", "confidence"]


@runtime_checkable
class BudgetRow(Protocol):
    """What a budget may know of a row before a round; nothing of what was offered and cut."""

    @property
    def draft_limit(self) -> int:
        """Drafts that it can use."""

    @property
    def num_evaluated(self) -> int:
        """Drafts so far that the target has decided on, among committed positions."""

    @property
    def num_accepted(self) -> int:
        """Those of them that it accepted."""


class DraftBudget:
    """How many drafts of each row are verified: as many as the row can use, unless a subclass says otherwise.

    A budget is lossless under rejection sampling only if it is predictable: whether a draft is verified may depend on
    the row's tokens before it and on other rows, not on the draft itself or on what follows it (INV-20).

    Attributes:
        score: estimate of the drafts' survival that `go_on` and `after` read; None for none. ``expected``: product of
            the probabilities of the drafts before, times the expected probability of the draft itself.
            ``own_token``: the same with the draft's own probability, which depends on the draft. ``confidence``:
            product of the largest probabilities.
        stops: whether `go_on` is asked.
        shares: whether a row's drafts are weighed against those of other rows, whose own rounds then depend on them.
        predictable: whether the answers depend on nothing that rejection sampling must not know.
    """

    score: Score | None = None
    stops: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    @property
    def predictable(self) -> bool:
        """Whether no draft is judged by a score that reads it."""
        return self.score != "own_token"

    def before(self, rows: Seq[BudgetRow]) -> list[int]:
        """Drafts to propose for each row of a round, at most its limit."""
        return [row.draft_limit for row in rows]

    def go_on(self, survival: Seq[float]) -> list[bool]:
        """Whether each row is to be offered the next draft, which has not been drawn."""
        return [True] * len(survival)

    def after(self, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        """Drafts of each row to verify, at most the `lengths` proposed; `survival` has an estimate for each draft."""
        return list(lengths)


PRIOR = 4.0  # drafts that the rate of all rows counts as


def own_rates(rows: Seq[BudgetRow]) -> list[float]:
    """How often the target accepts a draft of each row if it has accepted those before it, by what it has shown.

    A draft after the first rejected one was not decided on, so the rate is accepted over evaluated, not over drafted.
    The rate of all rows of the round stands in for what a row has not shown. Where none has shown anything, drafts
    count as right: they are tried, and then known.
    """
    overall = (sum([row.num_accepted for row in rows]) + 1) / (sum([row.num_evaluated for row in rows]) + 1)
    return [(row.num_accepted + PRIOR * overall) / (row.num_evaluated + PRIOR) for row in rows]


def ranked(lengths: Seq[int], survival: Seq[Seq[float]]) -> list[tuple[float, int]]:
    """Estimate and row of every draft, best first; a row's drafts come in their order.

    A deeper draft survives no more often than those before it, whatever the estimates say.
    """
    found = []
    for row, length in enumerate(lengths):
        least = 1.0
        for depth in range(length):
            least = min(least, survival[row][depth])
            found.append((-least, depth, row))
    return [(-worst, row) for worst, _, row in sorted(found)]
