"""The engine's own fault zoo before the claims: every fault that replaces a kernel must break one of them."""

from proofs.report import Verdict
from proofs.z3 import claims
from proofs.z3.obligation import prove
from refimpl.core import kernels
from refimpl.faults import FAULTS, Fault


def kernel_faults() -> list[Fault]:
    """Faults of `refimpl/faults` that are a wrong formula."""
    return [fault for fault in FAULTS.values() if fault.owner is kernels]


def judge(fault: Fault) -> Verdict:
    """Inject a fault and demand a counterexample to a claim about the kernels as they then are."""
    with fault.injected():
        verdicts = (prove(claim, second_opinion=False) for claim in claims.obligations(kernels))
        broken = next((v for v in verdicts if "z3: sat" in v.detail), None)
    if broken is None:
        return Verdict(f"zoo: {fault.name}", False, "no claim notices")
    return Verdict(f"zoo: {fault.name}", True, f"breaks «{broken.name}»: {broken.detail.removeprefix('z3: sat ')}")
