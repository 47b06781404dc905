"""The table of planted errors: the page is that of its data, each error can still be planted, nothing goes unseen."""

import ast
import json
from dataclasses import replace

import pytest
import torch

from proofs import layer_claims, layers
from proofs.conformance import runs
from proofs.layer_errors import RENEW, Error, engine, errors
from proofs.report import FoundError, Verdict, ended_by
from refimpl.core.config import DecodeConfig
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding.acceptance.records import DrawnMass
from refimpl.scheduling import BlockPool

ERRORS = errors()


@pytest.fixture(scope="module")
def rows():
    """Not at collection: a text that is gone fails the tests that need it, and no others."""
    return layers.read_rows()


def test_the_page_is_that_of_the_data(rows):
    assert layers.PAGE.read_text() == layers.as_markdown(rows)


def test_names_are_distinct_and_rows_are_stored_in_their_order():
    names = [error.name for error in ERRORS]
    assert len(names) == len(set(names)) >= 48
    stored = [row["error"] for row in json.loads(layers.DATA.read_text())]
    assert stored == [name for name in names if name in stored], RENEW


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_an_error_can_be_planted(error):
    mutant = error.mutant()
    assert mutant.source != engine()[mutant.file]
    ast.parse(mutant.source)


def test_every_error_is_measured_and_seen(rows):
    assert list(rows) == [error.name for error in ERRORS], RENEW
    assert [name for name, cells in rows.items() if not any(map(layers.seen, cells.values()))] == []


def test_as_many_are_seen_by_a_proof_stage_as_the_page_says(rows):
    seen = sum(map(layers.by_proof, rows.values()))
    assert seen == len(rows) - sum(bool(error.why) for error in ERRORS) >= 0.9 * len(rows)
    page = " ".join((layers.HERE / "README.md").read_text().split())
    assert f"says which layer sees which planted error: a proof stage sees {seen} of {len(rows)}" in page


def test_there_is_a_reason_for_each_error_that_no_proof_stage_sees_and_for_no_other(rows):
    by_proofs = {name for name, cells in rows.items() if layers.by_proof(cells)}
    measured = [error for error in ERRORS if error.name in rows]
    assert [error.name for error in measured if bool(error.why) == (error.name in by_proofs)] == []


def test_a_text_that_is_gone_is_noticed():
    with pytest.raises(ValueError, match="moon: 'the moon is round' is in the engine 0 times, not once"):
        Error("moon", "the moon is round", "").mutant()


def test_a_further_text_that_is_gone_is_noticed():
    error = next(error for error in ERRORS if error.then)
    with pytest.raises(ValueError, match=rf"^{error.name}: 'the moon is round' is not in {error.file()};"):
        replace(error, then=[*error.then, ["the moon is round", ""]]).mutant()


def test_a_row_of_another_text_does_not_count(tmp_path, monkeypatch):
    first, second, *_ = ({"error": e.name, "digest": e.digest(), "cells": {}} for e in ERRORS)
    data = tmp_path / "layers.json"
    data.write_text(json.dumps([first, second | {"digest": "of the text before"}]))
    monkeypatch.setattr(layers, "DATA", data)
    assert list(layers.read_rows()) == [first["error"]]


def raising(error):
    def layer():
        raise error

    return layer


def test_what_the_engine_raises_counts_for_its_checks_and_proves_nothing():
    assert layers.asked(raising(IndexError("out of bounds"))) == "raised IndexError: out of bounds"
    assert layers.asked(lambda: None) is None
    unasked = dict.fromkeys(layers.LAYERS, layers.NOT_ASKED)
    cells = unasked | layers.with_refusals({"runs": "raised ValueError: wrong", "replay": None})
    assert cells["checks"] == "raised ValueError: wrong"
    assert not layers.by_proof(cells)
    assert "| ! | · | ✓ |" in layers.as_markdown({ERRORS[0].name: cells})
    assert layers.by_proof(cells | {"replay": "paged+grouped: fault 98"})


def wrong(detail, raised):
    return lambda: [Verdict("equal", False, detail, raised)]


def test_a_claim_that_fails_is_told_before_what_the_engine_raised():
    refused, off = wrong("IndexError: out of bounds", True), wrong("3 wrong", False)
    assert layer_claims.first_seen([refused, raising(ValueError("wrong")), off]) == "equal: 3 wrong"
    assert layer_claims.first_seen([raising(ValueError("wrong")), refused]) == "raised ValueError: wrong"
    assert layer_claims.first_seen([refused, raising(TimeoutError())]) == "raised equal: IndexError: out of bounds"
    assert layer_claims.first_seen([raising(TimeoutError())]) == layers.ENDLESS
    assert layer_claims.first_seen([lambda: [Verdict("equal", True)]]) is None


def test_a_run_that_an_error_has_ended_is_no_wrong_run():
    def broken(error):
        raise error
        yield

    assert runs.verdict("a run", broken(IndexError("out of bounds")))[0].raised
    assert not ended_by(FoundError("a stream is shared"), "").raised


def test_the_runs_of_the_proofs_are_unchecked():
    with layer_claims.unchecked():
        assert DecodeConfig(checks="oracle").check_level("cpu") == "off"
        BlockPool(1, 1).give_back([0])  # nobody's
        one = torch.ones(1, 1, 1)
        DrawnMass.of("target", 0 * one, one[..., 0].long() - 1, one[0, 0].long()).require([0])
    with pytest.raises(InvariantViolation, match="INV-13"):
        BlockPool(1, 1).give_back([0])


@pytest.mark.parametrize("kind", [ImportError, NameError, AttributeError, TypeError, SystemExit])
def test_a_layer_that_cannot_be_asked_has_seen_nothing(kind):
    with pytest.raises(kind):
        layers.asked(raising(kind("does not fit")))


def test_a_layer_that_does_not_end_has_a_sign_of_its_own(monkeypatch):
    def endless():
        while True:
            pass

    monkeypatch.setattr(layers, "LIMIT_S", 0.05)
    assert layers.asked(endless) == layers.ENDLESS
    cells = dict.fromkeys(layers.LAYERS, layers.NOT_ASKED) | {"runs": layers.ENDLESS}
    assert "| ∞ |" in layers.as_markdown({ERRORS[0].name: cells})
