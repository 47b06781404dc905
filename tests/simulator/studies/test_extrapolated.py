"""Whatever simulates with a calibration says what lay outside of its points."""

import json

import pandas as pd
import pytest
import yaml

from simulator.cli import main
from simulator.runner import extrapolated_of, simulate
from simulator.service.table_cost import UNMEASURED
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario
from simulator.studies import overlap
from simulator.studies.attribution import attribute
from simulator.studies.capacity import find_capacity
from simulator.studies.overlap import Case
from simulator.studies.whatif import WhatIf, outlook
from tests.synthetic_inputs import HEADER, LINES, write_engine_trace

OUTSIDE = "verify: batch_size 9 is outside 1 … 8"


@pytest.fixture
def wide(calibration):
    """More rows than were measured."""
    return Scenario(
        study={"kind": "open", "num_requests": 40, "arrivals": {"kind": "poisson", "rate_per_s": 500.0}},
        engine={"batch_size": 9, "max_new_tokens": 16},
        workload={"output_tokens": {"kind": "fixed", "tokens": 16}},
        cost={"kind": "table", "calibration": str(calibration), "outside": "extrapolate"},
        service={"slo_first_token_s": 0.25},
    )


def told(capsys, *arguments):
    """Lines that say it, and what the JSON of a command has."""
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    return [line for line in printed.err.splitlines() if line.startswith("extrapolated: ")], json.loads(printed.out)


def test_capacity_says_it_of_all_rates(wide, capsys, tmp_path):
    found = find_capacity(wide, tolerance=0.5, replications=1)
    assert OUTSIDE in "\n".join(found.extrapolated)
    kept, broken = (
        simulate(wide.but({"study.arrivals.rate_per_s": rate}), 1).extrapolated
        for rate in (found.rate_per_s, found.broken_at_per_s)
    )
    assert {*kept, *broken} <= set(found.extrapolated)
    wide.save(tmp_path / "a.yaml")
    lines, data = told(capsys, "plan", str(tmp_path / "a.yaml"), "-n", "1", "--tolerance", "0.5")
    assert lines
    assert data["extrapolated"] == list(found.extrapolated)


def test_attribution_says_it_of_all_mixtures(wide, capsys, tmp_path):
    """Of a mixture, too, that is neither of the two: many rows with groups."""
    a, b = wide.but({"engine.batch_size": 4}), wide.but({"engine.scheduler": "static"})
    found = attribute(a, b, 2)
    assert OUTSIDE in "\n".join(found.extrapolated)
    assert not simulate(a, 2).extrapolated
    mixed = simulate(a.but({"engine.batch_size": 9}), 2).extrapolated
    assert set(mixed) <= set(found.extrapolated)
    assert list(found.extrapolated) == sorted(found.extrapolated)
    wide.save(tmp_path / "a.yaml")
    explained = "compare", str(tmp_path / "a.yaml"), "--attribute", "tokens_per_s"
    lines, data = told(capsys, *explained, "-n", "2", "-s", "engine.scheduler=static")
    assert lines
    assert any(OUTSIDE in what for what in data["extrapolated"])


def test_a_sweep_says_it_of_all_points(wide, capsys, tmp_path):
    wide.save(tmp_path / "a.yaml")
    spec = {"base": str(tmp_path / "a.yaml"), "replications": 1, "grid": {"engine.batch_size": [4, 9, 10]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(spec))
    lines, data = told(capsys, "sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"))
    assert lines
    each = [simulate(wide.but({"engine.batch_size": rows}), 1).extrapolated for rows in (4, 9, 10)]
    assert data["extrapolated"] == sorted({what for found in each for what in found})
    assert not each[0]


def test_a_trace_of_one_replication_says_it(wide, capsys, tmp_path):
    wide.save(tmp_path / "a.yaml")
    out = str(tmp_path / "trace.json")
    lines, data = told(capsys, "trace", str(tmp_path / "a.yaml"), "--out", out)
    assert any(OUTSIDE in line for line in lines)
    assert data["extrapolated"] == list(simulate(wide, 1).extrapolated)
    lines, data = told(capsys, "trace", str(tmp_path / "a.yaml"), "--out", out, "-s", "engine.batch_size=4")
    assert (lines, data["extrapolated"]) == ([], [])


def test_overlapped_execution_says_it_of_every_machine(calibration, capsys, monkeypatch):
    """Each cohort has as many rows as were measured; both together have more, and run in serial rounds."""
    table = Spec.of("table", calibration=str(calibration), outside="extrapolate")
    linear = Spec.of("linear", verify_base_s=0.02, draft_base_s=0.002)
    monkeypatch.setattr(overlap, "CASES", {"measured": Case(table, 10, 3.0), "known": Case(linear, 10, 3.0)})
    lines, data = told(capsys, "study", "overlap", "-n", "2")
    assert any(line.startswith("extrapolated: verify: batch_size 10 is outside") for line in lines)
    of_run = {(run["machine"], run["variant"]): run["extrapolated"] for run in data["runs"]}
    assert "batch_size" in of_run["measured", "equal"]
    assert "batch_size" not in of_run["measured", "half"]
    assert not any(of_run["known", variant] for variant in ("overlapped", "half", "equal"))
    assert {what for run in of_run.values() for what in run.split("; ") if what} == set(data["extrapolated"])


def test_budgets_of_a_roofline_have_nothing_to_say(capsys):
    lines, data = told(capsys, "study", "budgets", "--rate", "5", "--duration", "2", "-n", "2")
    assert (lines, data["extrapolated"]) == ([], [])


def test_what_points_of_a_sweep_share_is_said_once_and_whole():
    """One of the texts has a semicolon of its own."""
    frame = pd.DataFrame({"extrapolated": ["", f"{OUTSIDE}; {UNMEASURED}", UNMEASURED]})
    assert extrapolated_of(frame) == [UNMEASURED, OUTSIDE]


def test_a_prediction_of_waits_says_it(calibration, capsys, tmp_path):
    """The run has two rows of 8 tokens and less, which were measured; its prompts were not, beyond 255 tokens."""
    arrivals = {"arrival_s": [0.0, 0.0], "round_end_s": [0.3, 0.6, 0.9]}
    longer = [line | {"seq_len": line["seq_len"] + 600} for line in LINES]
    for name, header, lines in (
        ("short", HEADER, LINES),
        ("long", HEADER | {"prompt_lens": [604, 605]}, longer),
    ):
        trace = write_engine_trace(tmp_path / f"{name}.ndjson", header | arrivals, lines)
        table = tmp_path / f"{name}.json"
        arguments = ["validate", str(trace), "--calibration", str(calibration), "-n", "2", "--out", str(table)]
        lines, data = told(capsys, *arguments)
        found = data[str(trace)]["extrapolated"]
        assert bool(lines) == bool(found) == (name == "long")
        assert json.loads(table.read_text())["runs"][0]["extrapolated"] == found


def test_the_answer_to_a_question_names_the_components(wide):
    beyond = outlook(WhatIf(batch_size=9), wide, ("inplace", "masked"), 2)
    assert "; costs were extrapolated: " in repr(beyond)
    assert "verify" in repr(beyond).partition("extrapolated: ")[2]
    assert any(OUTSIDE in what for what in beyond.extrapolated)
    within = repr(outlook(WhatIf(batch_size=4), wide, ("inplace", "masked"), 2))
    assert within.endswith(" from an empty server")
