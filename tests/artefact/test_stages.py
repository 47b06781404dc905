"""What a stage of the proofs says of an altered engine: the first claim that fails, and not what the engine raised."""

import pytest
import torch

from proofs import stages
from proofs.conformance import runs
from proofs.report import FoundError, Verdict, ended_by
from refimpl.core.config import DecodeConfig
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding.acceptance.records import DrawnMass
from refimpl.scheduling import BlockPool

NO_CLAIM = [
    Verdict("equal", True),
    Verdict("equal", False, "IndexError: out of bounds", raised=True),
    Verdict("expected failure: a wrong mask: no run notices", False),
]


@pytest.mark.parametrize(("more", "said"), [([], ""), ([Verdict("equal", False, "3 wrong")], "equal: 3 wrong")])
def test_only_a_claim_that_fails_by_what_the_engine_did_counts(monkeypatch, more, said):
    monkeypatch.setitem(stages.STAGES, "runs", lambda: [*NO_CLAIM, *more])
    assert stages.broken_claim("runs") == said


def test_a_run_that_an_error_has_ended_is_no_wrong_run():
    def broken():
        raise IndexError("out of bounds")
        yield

    assert runs.verdict("a run", broken())[0].raised
    assert not ended_by(FoundError("a stream is shared"), "").raised


def test_the_engine_checks_nothing_itself():
    with stages.unchecked():
        assert DecodeConfig(checks="oracle").check_level("cpu") == "off"
        BlockPool(1, 1).give_back([0])  # nobody's
        one = torch.ones(1, 1, 1)
        DrawnMass.of("target", 0 * one, one[..., 0].long() - 1, one[0, 0].long()).require([0])
    with pytest.raises(InvariantViolation, match="INV-13"):
        BlockPool(1, 1).give_back([0])
