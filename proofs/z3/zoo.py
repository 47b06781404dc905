"""The engine's own fault zoo before the claims: every fault that replaces a kernel must break one of them."""

from proofs.report import Verdict
from proofs.z3 import claims
from proofs.z3.obligation import Obligation, prove
from refimpl.core import kernels
from refimpl.faults import FAULTS, Fault


def kernel_faults() -> list[Fault]:
    """Faults of `refimpl/faults` that are a wrong formula."""
    return [fault for fault in FAULTS.values() if fault.owner is kernels]


def judge(fault: Fault) -> Verdict:
    """Inject a fault and demand a counterexample to a claim about the kernels as they then are.

    Claims that the fault does not change are left out: they hold.
    """
    right = claims.obligations(kernels)
    with fault.injected():
        changed = [
            now for now, before in zip(claims.obligations(kernels), right, strict=True) if not _same(now, before)
        ]
        verdicts = (prove(claim, second_opinion=False) for claim in changed)
        broken = next((v for v in verdicts if "z3: sat" in v.detail), None)
    if broken is None:
        return Verdict(f"zoo: {fault.name}", False, "no claim notices")
    return Verdict(f"zoo: {fault.name}", True, f"breaks «{broken.name}»: {broken.detail.removeprefix('z3: sat ')}")


def _same(one: Obligation, other: Obligation) -> bool:
    terms, others = [*one.given, one.claim], [*other.given, other.claim]
    return len(terms) == len(others) and all(a.eq(b) for a, b in zip(terms, others, strict=True))
