"""A budget that peeks: what keyed numbers do not allow, and the engine's own guard against it.

Under rollback a row may be cut before a draft that was accepted. With keyed numbers the same draft is drawn again in
the next round. A budget that looks at it before then, and lets its number of drafts depend on it, knows a number that
is still to be used: the law is off. With new numbers for every round it is exact, so only keys tell the difference.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import PropertyMock, patch

from proofs.conformance import laws
from proofs.conformance.laws import ROLLED_BACK
from proofs.report import Verdict
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding import assembly, rounds
from refimpl.decoding.passes import EagerPasses
from refimpl.drafting.budgets import DraftBudget

METHOD, UNLUCKY = "rollback+static", 0
(SHAPE,) = ROLLED_BACK.values()
KNOWN = "2301/32768"


class PeekingBudget(DraftBudget):
    """No drafts for a row whose next token, offered in the round before and cut off, is `UNLUCKY`."""

    def __init__(self) -> None:
        self.cut: list[int | None] = []  # of each running row

    def before(self, rows: Any) -> list[int]:
        """By the row's own limit, and what was cut off."""
        cut = [*self.cut, *[None] * len(rows)]
        return [0 if token == UNLUCKY else row.draft_limit for row, token in zip(rows, cut, strict=False)]


@contextmanager
def peeking() -> Iterator[None]:
    """Runs get such a budget, and it is told what no committed text tells."""
    budgets: list[PeekingBudget] = []
    commit = rounds._commit

    def told(context: Any, members: Any, verified: Any, decision: Any) -> Any:
        live = [i for i, member in enumerate(members) if not member.finished]
        kept = min(decision.accepted[i] + 1 for i in live)
        budgets[-1].cut = [decision.emitted[i][kept] if decision.accepted[i] >= kept else None for i in live]
        return commit(context, members, verified, decision)

    def make_budget(_: Any) -> PeekingBudget:
        budgets.append(PeekingBudget())
        return budgets[-1]

    with patch.object(rounds, "_commit", told), patch.object(assembly, "make_budget", make_budget):
        yield


def distance(numbers: AbstractContextManager) -> str:
    """Total variation between the law of runs with the budget and the autoregressive one."""
    with ExitStack() as stack:
        stack.enter_context(peeking())
        stack.enter_context(numbers)
        return str(laws.distance(METHOD, *SHAPE, checks="off")[0])


def check() -> Iterator[Verdict]:
    """The bias with keys, and that the engine refuses such a budget."""
    found = distance(nullcontext())
    name = f"expected failure: a budget that peeks at an offered token: total variation {found}"
    yield Verdict(name, found == KNOWN, f"expected {KNOWN}")
    try:
        with peeking():
            laws.distance(METHOD, *SHAPE, checks="device")
        refused = ""
    except InvariantViolation as violation:
        refused = violation.invariant
    yield Verdict("expected failure: the engine's own guard refuses it (INV-20)", refused == "INV-20", refused)


def check_fresh() -> Iterator[Verdict]:
    """Numbers of its own for every round: nothing is left of the bias."""
    found = distance(patch.object(EagerPasses, "_fresh", PropertyMock(return_value=True)))
    yield Verdict(f"with new numbers for every round it is exact: total variation {found}", found == "0")
