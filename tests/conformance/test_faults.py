"""The fault zoo: every fault is caught, by what its entry claims, and the committed matrix says so."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from refimpl.decoding.invariants import STATEMENTS
from refimpl.faults import FAULTS, Fault
from refimpl.faults.detection import DETECTORS, Notice, detect, example, kit_property
from refimpl.faults.law import check_law
from refimpl.faults.matrix import DOCS, HEALTHY, NOT_ASKED, about, as_markdown, first_invariant
from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case

COMMITTED = json.loads((DOCS / "detection_matrix.json").read_text())
ROWS = {row["fault"]: row for row in COMMITTED["rows"]}
BEYOND_THE_KIT = {  # an engine under test is asked for no texts, for too few samples by default, after random prompts
    "stop-string-trims-text-only",
    "recovery-reuses-draft-noise",
    "looked-up-with-the-q-of-a-draw",
    "own-token-score",
    "block-with-the-residual-of-a-token",
    "block-draws-with-old-numbers",
    "chunk-row-drafts",  # prompts of the kit fit into one chunk
    "chunk-border-skipped",
}
BY_ENUMERATION = {  # they move the law by a percent or two: see tests/statistical/test_block_rule.py
    "block-with-the-residual-of-a-token",
    "block-draws-with-old-numbers",
}
DEAREST = 8  # examples that the test spends on one cell at most
DEAR_FOR_THE_KIT = {
    "block-ends-at-the-first-rejection",
    "block-mass-is-not-capped",
    "free-slice-clamped",
    "ratio-of-the-raw-draft",
    "stop-and-drop",
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_matrix_is_what_a_run_gives(fault: Fault) -> None:
    row = ROWS[fault.name]
    for detector in DETECTORS:
        cell = row["cells"][detector]
        if cell == NOT_ASKED:
            continue
        if cell is None and detector != "sampling":
            assert detect(fault, detector, 1) is None, detector
        elif cell is not None and cell["examples"] <= DEAREST:
            assert detect(fault, detector, cell["examples"]) == Notice(**cell), detector


def test_the_matrix_lists_the_faults_that_there_are() -> None:
    assert list(ROWS) == [HEALTHY, *FAULTS]
    for name, fault in FAULTS.items():
        assert about(fault).items() <= ROWS[name].items()


def test_the_table_is_that_of_the_data() -> None:
    assert (DOCS / "detection_matrix.md").read_text() == as_markdown(COMMITTED) + "\n"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_fault_is_caught_by_what_it_claims(fault: Fault) -> None:
    cells = ROWS[fault.name]["cells"]
    noticed = {name: cell["by"] for name, cell in cells.items() if isinstance(cell, dict)}
    assert first_invariant(cells) == fault.invariant
    if fault.effect == "output":
        assert "output" in noticed
    elif fault.effect == "acceptance":
        assert noticed.get("output") != "differs", "a draft's fault never changes the output"
        assert "acceptance" in noticed
    elif fault.effect == "law":
        assert ("sampling" in noticed) != (fault.name in BY_ENUMERATION)
    elif fault.effect == "report":
        assert "output" not in noticed
        assert "report" in noticed
    else:
        assert fault.invariant is not None


def test_the_healthy_engine_raises_no_alarm() -> None:
    assert set(ROWS[HEALTHY]["cells"].values()) == {None}
    assert all(detect(None, detector, 3) is None for detector in DETECTORS)


def test_every_invariant_is_the_first_to_catch_a_fault() -> None:
    assert set(STATEMENTS) <= {row["first"] for row in ROWS.values()}


def test_a_fault_leaves_no_trace() -> None:
    case = Case((Row((1, 2, 3), 9, 3, None, (False, True, True, False)), Row((4,), 7, 2)), batch_size=2)
    wanted = oracle_outputs(case)
    for fault in FAULTS.values():
        with fault.injected():
            pass
        assert run_case(case, checks="device").outputs == wanted, fault.name


@pytest.mark.parametrize("fault", [fault for fault in FAULTS.values() if fault.conditions], ids=lambda f: f.name)
def test_the_conditions_of_a_fault_break_nothing(fault: Fault) -> None:
    for number in range(1, 6):
        case = example(fault, number)
        wanted = oracle_outputs(case)
        with replace(fault, make=lambda original: original).injected():
            assert run_case(case, checks="host").outputs == wanted


def test_sources_are_named_as_repository_and_number() -> None:
    sources = [fault.source for fault in FAULTS.values() if fault.source]
    assert len(sources) >= 13
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in sources)


@pytest.mark.parametrize(("layout", "top_k"), [("inplace", 0), ("rollback", 3)])
def test_the_healthy_engine_samples_the_targets_law(layout: str, top_k: int) -> None:
    assert not check_law(layout, top_k=top_k, seed=5).rejected


def kit_rows() -> list[Any]:
    """Faults that the kit fails; those that take it more than ten seconds are for the night."""
    names = [name for name, row in ROWS.items() if row["kit"]]
    return [pytest.param(name, marks=[pytest.mark.nightly] * (name in DEAR_FOR_THE_KIT)) for name in names]


@pytest.mark.parametrize("name", kit_rows())
def test_the_kit_fails_what_the_matrix_says(name: str) -> None:
    wanted = ROWS[name]["kit"]
    assert kit_property(FAULTS[name], [wanted]) == wanted


def test_the_kit_lets_pass_what_changes_no_output() -> None:
    blind = {name for name, row in ROWS.items() if not row["kit"] and name not in (HEALTHY, *BEYOND_THE_KIT)}
    assert {FAULTS[name].effect for name in blind} <= {"acceptance", "report", "nothing"}
    assert not ROWS[HEALTHY]["kit"]
