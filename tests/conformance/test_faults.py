"""The fault zoo: every fault is caught, by what its entry claims, and the committed matrix says so."""

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from refimpl.core.config import AcceptanceName
from refimpl.core.invariants import STATEMENTS
from refimpl.decoding import overlapped
from refimpl.decoding.passes import EagerPasses
from refimpl.faults import FAULTS, Fault, detection
from refimpl.faults.detection import DETECTORS, KitNotice, Notice, applies, detect, kit_notice
from refimpl.faults.law import LawTest, check_law
from refimpl.faults.matrix import (
    DOCS,
    HEALTHY,
    HIDDEN,
    NOT_ASKED,
    SEARCHES,
    about,
    fingerprint,
    first_invariant,
)
from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case

COMMITTED = json.loads((DOCS / "detection_matrix.json").read_text())
ROWS = {row["fault"]: row for row in COMMITTED["rows"]}
BEYOND_THE_KIT = {  # an engine under test is asked for no texts, for too few samples by default, after random prompts
    "stop-string-trims-text-only",
    "recovery-reuses-draft-noise",
    "own-token-score",
    "block-with-the-residual-of-a-token",
    "block-draws-with-old-numbers",
    "chunk-row-drafts",  # prompts of the kit fit into one chunk
    "chunk-border-skipped",
    "bonus-row-unmasked",  # its requests have no grammars
    "matcher-not-rolled-back",
}
BY_ERROR_ALONE = {  # the engine breaks off before it gives wrong tokens
    "no-aging",
    "pad-found-by-token-value",
    "draft-drawn-from-another-q",
    "shared-block-freed-with-its-first-owner",  # in most searches
    "draft-beyond-the-vocabulary",  # a penalty looks for the logit of the draft
}
BY_ENUMERATION = {  # they move the law by a percent or two: see tests/statistical/test_block_rule.py
    "block-with-the-residual-of-a-token",
    "block-draws-with-old-numbers",
}
DEAREST = 8  # examples that the test spends on one cell at most
DEAR_FOR_THE_KIT = {  # more than ten seconds
    "block-ends-at-the-first-rejection",
    "block-mass-is-not-capped",
    "free-slice-clamped",
    "looked-up-with-the-q-of-a-draw",
    "pad-found-by-token-value",
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


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_the_matrix_calls_blind_is_blind(fault: Fault) -> None:
    row = ROWS[fault.name]
    for detector, cell in row["cells"].items():
        assert cell is not None or detect(fault, detector) is None, detector
    assert row["kit"] or kit_notice(fault) is None


def test_a_row_is_stale_where_the_fault_has_changed() -> None:
    """Also where it is called the same in a class of the same name; the sentence about a fault is no part of it."""
    fault = FAULTS["stale-drafts-for-a-new-tenant"]
    (_, attribute, value), *_ = fault.conditions
    changed = [
        replace(fault, settings={"block_size": 3}),
        replace(fault, layouts=("paged",)),
        replace(fault, make=FAULTS["free-slice-clamped"].make),
        replace(fault, owner=overlapped._Ahead),
        replace(fault, attribute="numbers"),
        replace(fault, conditions=((EagerPasses, attribute, value),)),
    ]
    assert (fault.owner.__name__, fault.attribute) == ("_Ahead", "serves")
    assert len({fingerprint(fault), *map(fingerprint, changed)}) == 7
    assert fingerprint(replace(fault, summary="")) == fingerprint(fault)


def test_the_matrix_lists_the_faults_that_there_are() -> None:
    assert list(ROWS) == [HEALTHY, *FAULTS]
    for name, fault in FAULTS.items():
        assert about(fault).items() <= ROWS[name].items()
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in fault.sources)
        assert fault.symptom or not fault.sources, "who links to a report says what its users saw"


def test_the_museum_names_faults_that_there_are() -> None:
    told = (DOCS / "bugs.md").read_text().partition("## Seven mistakes")[2].partition("## What notices them")[0]
    assert set(re.findall(r"`([\w-]+)`", told)) <= set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_fault_is_caught_by_what_it_claims(fault: Fault) -> None:
    cells = ROWS[fault.name]["cells"]
    noticed = {name: cell["by"] for name, cell in cells.items() if isinstance(cell, dict)}
    assert first_invariant(cells) == fault.invariant
    said = [noticed.get(name) for name in ("output", "acceptance", "report")]
    if cells["output"] == NOT_ASKED and fault.effect == "output":  # of cancelled rows
        assert ROWS[fault.name]["kit"] == {"property": "serving_equals_reference", "error": ""}
    elif fault.effect == "output":
        assert noticed["output"] == "differs"
    elif fault.effect == "acceptance":
        assert "output" not in noticed, "a draft's fault never changes the output"
        assert noticed["acceptance"] == "differs"
    elif fault.effect == "crash":
        assert noticed["output"].startswith("crash")
    elif fault.effect == "law":
        assert ("sampling" in noticed) != (fault.name in BY_ENUMERATION)
    elif fault.effect == "report":
        assert "output" not in noticed
        assert noticed["report"] == "differs"
    else:
        assert fault.invariant is not None
        assert set(said) <= {None, fault.invariant}


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


SURROUNDINGS = {repr((f.layouts, f.schedulers, f.settings, f.conditions)): f for f in FAULTS.values()}


@pytest.mark.parametrize("fault", SURROUNDINGS.values(), ids=lambda fault: fault.name)
def test_what_surrounds_a_fault_raises_no_alarm(fault: Fault) -> None:
    """The right function in its place, under its settings and conditions."""
    for detector in DETECTORS:
        if applies(fault, detector):
            assert detect(fault.repaired, detector, 2) is None, detector


def test_a_fault_that_does_not_fit_the_engine_is_not_noticed_but_raised() -> None:
    """A function where a static method was gets one argument too many."""
    misfit = replace(FAULTS["block-matched-by-hash-alone"], make=lambda original: lambda before, content: 0)
    with pytest.raises(TypeError):
        detect(misfit, "output")
    with pytest.raises(TypeError):
        kit_notice(misfit, ["equals_reference"])


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if applies(fault, "sampling")])
def test_the_law_is_that_of_the_rule_and_the_execution_that_a_fault_breaks(name: str, monkeypatch: Any) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(detection, "check_law", lambda layout, **settings: asked.update(settings) or LawTest(1.0))
    assert detect(FAULTS[name], "sampling") is None
    assert asked == {setting: value for setting, value in FAULTS[name].settings.items() if setting != "temperature"}


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
@pytest.mark.parametrize(("layout", "top_k"), [("inplace", 0), ("rollback", 3)])
def test_the_healthy_engine_samples_the_targets_law(rule: AcceptanceName, layout: str, top_k: int) -> None:
    assert not check_law(layout, acceptance=rule, top_k=top_k, seed=5).rejected


def kit_rows(every_day: Collection[str] = FAULTS.keys() - DEAR_FOR_THE_KIT) -> list[Any]:
    """Faults that the kit fails; the others are for the night."""
    names = [name for name, row in ROWS.items() if row["kit"]]
    return [pytest.param(name, marks=[pytest.mark.nightly] * (name not in every_day)) for name in names]


@pytest.mark.parametrize("name", kit_rows())
def test_the_kit_fails_what_the_matrix_says(name: str) -> None:
    """In one of the searches at least: what a fault does first in each depends on the version of Hypothesis."""
    wanted = KitNotice(**ROWS[name]["kit"])
    assert wanted in (kit_notice(FAULTS[name], [wanted.property], seed=seed) for seed in range(SEARCHES))


@pytest.mark.parametrize("name", kit_rows(every_day=("lookup-counts-as-passes",)))
def test_nearly_all_seeds_find_a_fault(name: str) -> None:
    """With five of six in the 20 cases that are asked by default, not with a lucky one."""
    notices = [kit_notice(FAULTS[name], [ROWS[name]["kit"]["property"]], seed=seed) for seed in range(1, 7)]
    assert len(notices) - notices.count(None) >= 5


def test_the_kit_lets_pass_what_changes_no_output() -> None:
    blind = {name for name, row in ROWS.items() if not row["kit"] and name not in (HEALTHY, *BEYOND_THE_KIT)}
    assert {FAULTS[name].effect for name in blind} <= set(HIDDEN)
    assert not ROWS[HEALTHY]["kit"]


def test_the_kit_sees_a_wrong_answer_where_a_run_ends_without_an_error() -> None:
    """What only an error of this engine gives away says nothing of other engines."""
    by_error = {name for name, row in ROWS.items() if row["kit"] and row["kit"]["error"]}
    assert {FAULTS[name].effect for name in by_error - BY_ERROR_ALONE} == {"crash"}


def test_readme_counts_what_answers_show_and_what_only_errors_do() -> None:
    errors = [bool(row["kit"]["error"]) for row in ROWS.values() if row["kit"]]
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    told = re.search(r"(\d+) by their wrong answers\D+ (\d+) ", readme)
    assert told
    assert told.groups() == (str(errors.count(False)), str(errors.count(True)))
