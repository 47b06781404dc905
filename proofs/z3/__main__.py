"""``python -m proofs.z3 [claims|faults]``: discharge the obligations on the kernels and the placements."""

import sys

from proofs.report import report
from proofs.z3 import blocks, claims, faults, placements
from proofs.z3.obligation import prove, refute, run_all
from refimpl import placement
from refimpl.core import kernels


def main(which: str) -> int:
    if which == "faults":
        from proofs.z3 import zoo  # loads the whole engine, which the claims do without

        own = run_all([*faults.obligations(kernels), *blocks.faults(kernels), *placements.faults(placement)], refute)
        return report("z3 faults", [*own, *zoo.verdicts()], show_details=True)
    return report("z3 claims", run_all([*claims.obligations(kernels), *placements.obligations(placement)], prove))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["claims"]))
