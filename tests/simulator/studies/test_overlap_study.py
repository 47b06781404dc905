"""Overlapped execution over serial: what passes let expect, what is simulated, and what the committed runs say."""

import json
from pathlib import Path

import pandas as pd
import pytest

from simulator.cli import main
from simulator.settings.fields import Spec
from simulator.studies import overlap
from simulator.studies.overlap import CASES, Case, expected_ratios, judge_overlap, run_overlap, variants

COMMITTED = Path(__file__).parents[3] / "docs" / "results" / "overlap.json"


def linear(base_s, per_token_s=0.0, draft_s=0.003):
    cost = Spec.of("linear", verify_base_s=base_s, verify_s_per_token=per_token_s, draft_base_s=draft_s)
    return Case(cost, 16, 20.0)


def test_the_baseline_has_half_of_the_rows():
    found = variants(linear(0.025))
    assert [(each.engine.execution, each.engine.batch_size) for each in found.values()] == [
        ("overlapped", 16), ("serial", 8), ("serial", 16),
    ]  # fmt: skip
    assert {each.study for each in found.values()} == {found["overlapped"].study}


def test_what_passes_let_expect():
    found = expected_ratios(linear(0.025))
    assert found == pytest.approx(
        {"draft_s": 0.015, "verify_s": 0.025, "fixed_s": 0.025, "expected_half": 40 / 25, "expected_equal": 40 / 50}
    )


@pytest.mark.parametrize("base_ms", [8, 18])
def test_it_pays_at_equal_rows_where_the_fixed_cost_is_below_drafting(monkeypatch, base_ms):
    """Drafting takes 15 ms for all rows, and verifying 30 ms, of which so much is fixed."""
    case = linear(base_ms / 1000, (0.030 - base_ms / 1000) / (16 * 6))
    monkeypatch.setitem(CASES, "this", case)
    (line,) = judge_overlap(run_overlap(["this"], 2)).to_dict(orient="records")
    assert (line["expected_equal"] > 1) == (base_ms < 15)
    assert line["equal"] == pytest.approx(line["expected_equal"], rel=0.03)
    assert line["half"] == pytest.approx(line["expected_half"], rel=0.03)


def test_runs_are_judged_pair_by_pair():
    speeds = {"overlapped": 1.5, "half": 1.0, "equal": 2.0}
    name = next(iter(CASES))
    lines = [(name, v, i, speed * day) for v, speed in speeds.items() for i, day in enumerate((0.5, 1.0, 3.0))]
    frame = pd.DataFrame(lines, columns=["machine", "variant", "replication", "tokens_per_s"])
    judged = judge_overlap(frame.sample(frac=1, random_state=1))  # lines in any order
    assert judged[["half", "half_low", "half_high"]].to_numpy() == pytest.approx(1.5)
    assert judged[["equal", "equal_low", "equal_high"]].to_numpy() == pytest.approx(0.75)


def test_the_command_writes_every_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(overlap, "CASES", {"this": linear(0.025)})
    path = tmp_path / "o.json"
    assert main(["study", "overlap", "-n", "2", "--out", str(path), "--json"]) == 0
    printed, data = json.loads(capsys.readouterr().out), json.loads(path.read_text())
    assert printed == data
    assert len(data["runs"]) == 6
    assert [line["machine"] for line in data["judged"]] == ["this"]


def test_the_committed_judgement_is_that_of_the_committed_runs():
    data = json.loads(COMMITTED.read_text())
    found = judge_overlap(pd.DataFrame(data["runs"]))
    pd.testing.assert_frame_equal(found, pd.DataFrame(data["judged"]), rtol=1e-9)


def test_the_committed_runs_say_what_the_page_says():
    lines = {line["machine"]: line for line in json.loads(COMMITTED.read_text())["judged"]}
    assert set(lines) == set(CASES)
    assert all(line["half_low"] > 1 for line in lines.values())
    gains = [name for name, line in lines.items() if line["equal_low"] > 1]
    assert gains[0] == "5 ms and 0.1 ms a token to verify, 3 ms a draft"
    published = lines["Qwen3 32B on 4 H100, 1.7B on one more"]
    assert published["half"] > 1.5 > 1.1 > published["equal"]
