"""``python -m proofs.conformance.search``: every transition of schedulers and cohorts, and what must be found out."""

import itertools
import sys

from proofs.conformance import cohorts, scheduler_faults, schedulers
from proofs.report import report

if __name__ == "__main__":
    expected = scheduler_faults.zoo_verdicts(), scheduler_faults.wrong_verdicts()
    sys.exit(report("schedulers", itertools.chain(schedulers.all_verdicts(), *expected, cohorts.check())))
