"""Wrong kernels before the claims: those of the engine's own fault zoo, and some more. Each must break a claim."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from inspect import isfunction
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import z3

from proofs.report import Verdict
from proofs.z3 import claims
from proofs.z3.obligation import Obligation, prove
from refimpl.core import kernels
from refimpl.faults import FAULTS

# Beside the zoo: name, kernel, and its wrong variant.
WRONG: dict[str, tuple[str, Callable]] = {
    "masked: rejected slots are not killed": ("masked_slot_position", lambda position, cached, after: position),
    "the round overruns the budget by one": (
        "draft_limit",
        lambda wished, remaining: kernels.minimum(wished, remaining),
    ),
    "the residual is not cut off at 0": ("residual", lambda p, q: p - q),
    "a token without target mass passes: u · q ≤ p": ("accepts", lambda u, p, q: u * q <= p),
}


def verdicts() -> Iterator[Verdict]:
    """Of the faults of `refimpl/faults` that are a wrong formula, and of those above."""
    for fault in FAULTS.values():
        if fault.owner is kernels:
            yield judge(f"zoo: {fault.name}", fault.injected())
    for name, (kernel, wrong) in WRONG.items():
        yield judge(name, patch.object(kernels, kernel, wrong))
    yield about_kernels()


def judge(name: str, injected: AbstractContextManager) -> Verdict:
    """Demand a counterexample to a claim about the kernels as they are inside.

    Claims that stay as they are hold, and are left out.
    """
    right = claims.obligations(kernels)
    with injected:
        changed = [
            now for now, before in zip(claims.obligations(kernels), right, strict=True) if not _same(now, before)
        ]
        proved = (prove(claim, second_opinion=False) for claim in changed)
        broken = next((v for v in proved if "z3: sat" in v.detail), None)
    if broken is None:
        return Verdict(name, False, "no claim notices")
    return Verdict(name, True, f"breaks «{broken.name}»: {broken.detail.removeprefix('z3: sat ')}")


def about_kernels() -> Verdict:
    """Demand that every claim is another one when all kernels may answer anything."""
    anything = SimpleNamespace(**{name: _anything(f) for name, f in vars(kernels).items() if isfunction(f)})
    both = zip(claims.obligations(kernels), claims.obligations(anything), strict=True)
    without = [claim.name for claim, other in both if _same(claim, other)]
    return Verdict("every claim has a kernel in it", not without, f"none in {without}")


def _anything(kernel: Callable) -> Callable:
    """A kernel whose answers are unknowns of the same kind."""

    def answer(*arguments: Any) -> z3.ExprRef:
        found = kernel(*arguments)
        return z3.FreshConst(found.sort() if isinstance(found, z3.ExprRef) else z3.IntSort())

    return answer


def _same(one: Obligation, other: Obligation) -> bool:
    terms, others = [*one.given, one.claim], [*other.given, other.claim]
    return len(terms) == len(others) and all(a.eq(b) for a, b in zip(terms, others, strict=True))
