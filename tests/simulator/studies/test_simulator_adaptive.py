"""Draft budgets over load: what the study derives from costs, how it judges, and what the committed runs say."""

import json
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from refimpl.core.independent import tokens_per_round
from simulator.cli import main
from simulator.service.roofline import RooflineCost
from simulator.studies.adaptive import (
    base_scenario,
    cost_table,
    find_budgets,
    judge_budgets,
    load_table,
    round_s,
    round_table,
    row_steps,
)

COMMITTED = Path(__file__).parents[3] / "docs" / "results" / "budgets-h100.json"
BASE = base_scenario("h100", "qwen3-8b", "qwen3-0.6b", 64, 2.0)


def test_the_table_of_by_load_takes_the_fastest_number_and_never_more_in_a_crowd():
    cost = RooflineCost(BASE.cost, None)
    rounds = round_table(cost, row_steps(256))
    table = load_table([(rows, [tokens_per_round(0.7, k) / seconds[k] for k in range(9)]) for rows, seconds in rounds])
    rows, drafts = zip(*table, strict=True)
    assert rows[0] == 1
    assert list(rows) == sorted(set(rows))
    assert list(drafts) == sorted(set(drafts), reverse=True)
    assert drafts[0] >= 3 > drafts[-1]


def test_the_table_of_by_load_has_a_line_where_fewer_drafts_are_faster():
    assert load_table([(1, [1.0, 1.5, 1.9]), (8, [1.0, 1.3, 1.4])]) == []  # as many as there may be
    assert load_table([(1, [1.0, 1.3, 1.2]), (8, [1.0, 1.2, 1.5])]) == [(1, 1)]
    assert load_table([(1, [1.0, 1.1, 1.2]), (8, [1.0, 0.9, 0.8])]) == [(8, 0)]


def test_a_budget_has_its_table_also_where_the_most_drafts_are_fastest_at_any_load():
    base = base_scenario("a100-80", "vicuna-7b", "vicuna-68m", 1, 1.0)
    settings = find_budgets(base)["by_load"]
    assert settings["engine.draft_budget"] == "by_load:1=8"
    assert base.but(settings).engine.num_speculative_tokens == 8


def test_the_table_of_goodput_has_the_seconds_of_each_round():
    cost = RooflineCost(BASE.cost, None)
    table = dict(cost_table(round_table(cost, row_steps(64))))
    assert list(table) == [1, *range(8, 65, 8)]
    assert table[64][2] == pytest.approx(round_s(cost, 64, 3) / round_s(cost, 64, 0), abs=1e-4)
    assert all(1 < few < many for few, many in pairwise(table[64]))
    assert table[64][0] > table[1][0]


def test_every_budget_is_a_scenario():
    budgets = find_budgets(BASE)
    assert list(budgets) == ["fixed 0", "fixed 1", "fixed 3", "fixed 5", "fixed 8", "by_load", "goodput"]
    names = [BASE.but(settings).engine.drafting.budget_name for settings in budgets.values()]
    assert names[-3:] == ["fixed", "by_load", "goodput"]


@pytest.mark.parametrize(("fixed", "best", "gain"), [(2.0, "fixed 3", 0.9), (0.5, "fixed 0", 1.8)])
def test_budgets_are_judged_pair_by_pair_against_the_best_and_none(fixed, best, gain):
    lines = [
        (name, 1.0, index, speed * machine, 1 / (speed * machine))
        for name, speed in {"fixed 0": 1.0, "fixed 3": fixed, "by_load": 1.8}.items()
        for index, machine in enumerate((0.5, 1.0, 2.0))
    ]
    frame = pd.DataFrame(lines, columns=["budget", "rate_per_s", "replication", "tokens_per_s", "per_token_mean_s"])
    judged = judge_budgets(frame.sample(frac=1, random_state=1)).set_index("over")  # lines in any order
    assert list(judged.index) == [f"best, {best}", "fixed 0"]
    for column in ("throughput", "throughput_low", "throughput_high", "token_speed", "token_speed_low"):
        assert judged[column].tolist() == pytest.approx([gain, 1.8])


def test_rates_at_which_no_request_finishes_are_told(capsys):
    assert main(["study", "budgets", "--rate", "0.001", "--duration", "0.1", "-n", "2"]) == 2
    assert "no request that yields two tokens finishes at 0.001 requests/s: run longer" in capsys.readouterr().err


def test_the_command_writes_every_run(capsys, tmp_path):
    path = tmp_path / "b.json"
    arguments = ["--rate", "30", "--duration", "1", "-n", "2", "--out", str(path), "--json"]
    assert main(["study", "budgets", *arguments]) == 0
    printed, data = json.loads(capsys.readouterr().out), json.loads(path.read_text())
    assert printed["judged"] == data["judged"]
    assert len(data["runs"]) == 7 * 2
    assert set(data["environment"]) >= {"commit", "command", "utc_time"}


def test_the_committed_runs_say_what_the_page_says():
    """Both budgets keep up with the best fixed number below the crossing, and with no drafts above it."""
    data = json.loads(COMMITTED.read_text())
    runs = pd.DataFrame(data["runs"])
    again = judge_budgets(runs).to_dict(orient="records")
    assert [line["throughput"] for line in again] == pytest.approx([line["throughput"] for line in data["judged"]])
    assert {line["budget"] for line in data["judged"]} == {"by_load", "goodput"}
    assert all(line["throughput"] > 0.98 for line in data["judged"])
