"""The register of the proofs names what exists, and its table is that of its data."""

from dataclasses import replace

import pytest

from proofs import register
from refimpl.core.invariants import STATEMENTS

ENTRIES = register.entries()


def test_every_name_exists():
    assert register.problems(ENTRIES) == []


def test_every_invariant_has_an_entry():
    assert [entry.id for entry in ENTRIES] == list(STATEMENTS)


def test_the_table_is_that_of_the_data():
    assert register.README.read_text() == register.page(ENTRIES)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("theorems", "round_exactly"),
        ("claims", "moon: rows are rectangular (INV-1)"),
        ("variants", "z3/layouts.py: rows are rectangular (INV-1)"),
        ("checks", "refimpl.decoding.invariants.check_moon"),
        ("checks", "refimpl.scheduling.BlockPool.check_moon"),
        ("tests", "tests/engine/decoding/test_fed.py::test_moon"),
        ("tests", "tests/unit/test_moon.py::test_a_gap_is_noticed"),
        ("faults", "moon-is-round"),
    ],
)
def test_a_name_that_is_gone_is_noticed(kind, name):
    first, *rest = ENTRIES
    broken = replace(first, **{kind: [*getattr(first, kind), name]})
    assert register.problems([broken, *rest]) == [f"INV-1: {name}"]


def test_a_claim_that_no_stage_has_made_or_that_did_not_hold_is_noticed(tmp_path):
    (tmp_path / "z3.out").write_text("  ok    left-padded: rows are rectangular (INV-1)\n  FAIL  pads are masked\n")
    some = ["z3: rows are rectangular (INV-1)", "z3: pads are masked", "z3: the moon is round", "spin: no log of it"]
    entry = replace(ENTRIES[0], claims=some, variants=[])
    assert register.not_claimed([entry], tmp_path) == ["INV-1: z3: pads are masked", "INV-1: z3: the moon is round"]


def test_a_claim_that_only_an_expected_failure_quotes_is_noticed(tmp_path):
    quoted = "expected failure: the youngest first: grouped, pool 4: a row waits too long"
    (tmp_path / "schedulers.out").write_text(f"  ok    {quoted}\n")
    variants = [f"schedulers: {quoted}", "schedulers: the youngest first"]
    entry = replace(ENTRIES[0], claims=["schedulers: grouped, pool 4"], variants=variants)
    assert register.not_claimed([entry], tmp_path) == ["INV-1: schedulers: grouped, pool 4"]


def test_claims_of_stages_that_were_left_out_are_not_told_as_held(tmp_path, monkeypatch, capsys):
    entry = replace(ENTRIES[0], claims=["z3: rows are rectangular (INV-1)", "spin: no log of it"], variants=[])
    monkeypatch.setattr(register, "entries", lambda: [entry])
    (tmp_path / "z3.out").write_text("  ok    left-padded: rows are rectangular (INV-1)\n")
    assert register.main(str(tmp_path)) == 0
    assert "was made and held, but for 1 of stages that were left out\n" in capsys.readouterr().out
    (tmp_path / "spin.out").write_text("  ok    no log of it\n")
    assert register.main(str(tmp_path)) == 0
    assert "was made and held\n" in capsys.readouterr().out


def test_an_invariant_without_a_fault_or_an_entry_is_noticed():
    first, _, *rest = ENTRIES
    assert register.problems([replace(first, faults=[]), *rest]) == ["INV-2 has no entry", "INV-1: faults"]
