"""``python -m proofs.stages STAGE [PROGRAM]``: one stage of check.sh that is written in Python.

PROGRAM is what `proofs/coq/check.sh` has built for the stage.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from unittest.mock import patch

import torch

from proofs.conformance import (
    books,
    cohorts,
    drift,
    filtered,
    laws,
    numbers,
    peek,
    reach,
    renamed,
    replay,
    runs,
    scheduler_faults,
    schedulers,
    traces,
)
from proofs.report import EXPECTED, Verdict, report
from proofs.z3 import blocks, claims, faults, placements, zoo
from proofs.z3.obligation import prove, refute, run_all
from refimpl import placement
from refimpl.core import kernels
from refimpl.core.config import DecodeConfig
from refimpl.decoding.acceptance.records import DrawnMass
from refimpl.scheduling import BlockPool


def z3_claims() -> Iterator[Verdict]:
    """What must hold of kernels and placements."""
    return run_all([*claims.obligations(kernels), *placements.obligations(placement)], prove)


def z3_faults() -> Iterator[Verdict]:
    """Wrong uses of kernels and placements, and wrong kernels."""
    wrong = [*faults.obligations(kernels), *blocks.faults(kernels), *placements.faults(placement)]
    return chain(run_all(wrong, refute), zoo.verdicts())


def searches() -> Iterator[Verdict]:
    """Every transition of schedulers and cohorts, and what must be found out."""
    wrong = scheduler_faults.zoo_verdicts(), scheduler_faults.wrong_verdicts()
    return chain(schedulers.all_verdicts(), cohorts.check(), *wrong)


def exact_laws() -> Iterator[Verdict]:
    """Enumerations of runs, filters and numbers."""
    some = numbers.check(), laws.check(laws.SHAPES), laws.check_some(), filtered.check()
    return chain(*some, laws.check_faults(), peek.check())


STAGES: dict[str, Callable[..., Iterable[Verdict]]] = {
    "z3": z3_claims,
    "z3-faults": z3_faults,
    "schedulers": searches,
    "laws": exact_laws,
    "laws-long": lambda: chain(laws.check(laws.LONG_SHAPES), peek.check_fresh()),
    "reach": lambda: chain(reach.check(), reach.check_faults(), reach.refusals(), renamed.check()),
    "runs": lambda: (verdict for _, verdict, _ in runs.check()),
    "traces": traces.check,
    "replay": replay.check,
    "books": lambda replayer: chain(books.check(replayer), books.check_faults(replayer)),
    "drift": drift.check,
}


def broken_claim(stage: str) -> str:
    """The first claim of a stage that the engine breaks, empty if it breaks none. What it raises breaks no claim."""
    with unchecked():
        failed = (v for v in STAGES[stage]() if not (v.ok or v.raised or v.name.startswith(EXPECTED)))
        return next((f"{v.name}: {v.detail}" for v in failed), "")


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, engines check nothing, whatever their settings say: what they do is left to be judged."""
    with (
        patch.object(DecodeConfig, "check_level", lambda self, device_type: "off"),
        patch.object(DrawnMass, "require", lambda self, names: None),
        patch.object(BlockPool, "_refuse", lambda self, expected, found: None),
    ):
        yield


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, *program = sys.argv[1:]
    sys.exit(report(name, STAGES[name](*program), show_details=name == "z3-faults"))
