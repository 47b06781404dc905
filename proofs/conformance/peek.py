"""Budgets that know too much for keyed numbers: one that peeks, and one that all rows share.

Under rollback a row may be cut before a draft that was accepted. With keyed numbers the same draft is drawn again in
the next round. A budget that looks at it before then, and lets its number of drafts depend on it, knows a number that
is still to be used: the law is off. With new numbers for every round it is exact, so only keys tell the difference.

A budget that weighs the drafts of all rows needs no rollback for that. Here three drafts fit into a round. The first
row's second draft decides whether its third one is verified or the second row's first, so how long the second row
becomes, and so whether the first row has a draft in the next round. If its first draft was rejected, that is the draft
that has decided: drawn again from the same number, it would be verified only where it is the unlikely token.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import PropertyMock, patch

from proofs.conformance import laws
from proofs.conformance.filtered import ROUNDING, logarithms
from proofs.conformance.laws import ROLLED_BACK, Job, Text
from proofs.conformance.perfect_memory import pair_of
from proofs.report import Verdict
from refimpl.core.drafting import DraftingConfig
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding import assembly, rounds
from refimpl.decoding.passes import EagerPasses
from refimpl.drafting.budgets import CapacityBudget, DraftBudget

METHOD, UNLUCKY = "rollback+static", 0
(SHAPE,) = ROLLED_BACK.values()
KNOWN = "2301/32768"
THREE = DraftingConfig(draft_budget="capacity:3")
SHARING = [Job((0,), 4, 3), Job((1,), 5, 3)]
EVEN, LIKELY, SURE = (0.5, 0.5), (0.875, 0.125), (1.0, 0.0)


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
    with patch.object(CapacityBudget, "shares", False):
        off = shared_distance()
    yield Verdict(f"expected failure: a shared budget with keyed numbers: total variation {off:.4f}", off > ROUNDING)
    tv = shared_distance()
    yield Verdict(
        "a shared budget with new numbers for every round: total variation below 2^-40", tv < ROUNDING, f"{tv}"
    )


def shared_distance() -> float:
    """Total variation of two rows that share a budget, of which the first rejects likely drafts."""

    def target(text: Text) -> tuple[float, ...]:
        return EVEN if len(text) + text[0] < 3 else SURE  # two tokens of the first row, one of the second

    def draft(text: Text) -> tuple[float, ...]:
        return LIKELY if text[0] == 0 and target(text) == EVEN else target(text)

    config = laws.config_of("inplace+fifo", "off", THREE, "rejection", laws.AS_IT_IS)
    law, _ = laws.engine_law(config, SHARING, pair_of(logarithms(target), logarithms(draft), len(EVEN)))
    return float(laws.total_variation(law, laws.autoregressive_law(SHARING, target)))


def check_fresh() -> Iterator[Verdict]:
    """Numbers of its own for every round: nothing is left of the bias."""
    found = distance(patch.object(EagerPasses, "_fresh", PropertyMock(return_value=True)))
    yield Verdict(f"with new numbers for every round it is exact: total variation {found}", found == "0")
