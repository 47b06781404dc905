"""The register of the proofs names what exists, and its table is that of its data."""

from dataclasses import replace

import pytest

from proofs import register
from refimpl.decoding.invariants import STATEMENTS

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
        ("claims", "z3/layouts.py: the moon is round"),
        ("claims", "z3/nowhere.py: rows are rectangular (INV-1)"),
        ("variants", "conformance/laws.py: the moon is round"),
        ("checks", "refimpl.decoding.invariants.check_moon"),
        ("checks", "refimpl.scheduling.BlockPool.check_moon"),
        ("tests", "tests/unit/test_fed.py::test_moon"),
        ("tests", "tests/unit/test_moon.py::test_a_gap_is_noticed"),
        ("faults", "moon-is-round"),
    ],
)
def test_a_name_that_is_gone_is_noticed(kind, name):
    first, *rest = ENTRIES
    broken = replace(first, **{kind: [*getattr(first, kind), name]})
    assert register.problems([broken, *rest]) == [f"INV-1: {name}"]


def test_an_invariant_without_a_fault_or_an_entry_is_noticed():
    first, _, *rest = ENTRIES
    assert register.problems([replace(first, faults=[]), *rest]) == ["INV-2 has no entry", "INV-1: faults"]
