"""The published figures: what was fitted, what is predicted, and what is contradicted."""

import json
import os
import re
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.runner import simulate
from simulator.service.records import Request
from simulator.service.schedulers import end_padded
from simulator.studies.crossing import _range as crossing_range
from simulator.studies.crossing import find_crossings
from simulator.studies.published import (
    CONSTANTS,
    Constants,
    committed_lengths,
    load_constants,
    overhead_scenario,
    read_lengths,
)
from simulator.studies.reproduction import FITTED, Reproduction, fit_constants, make_row, to_frame
from simulator.studies.targets import read_targets

SPEC_BENCH = os.environ.get("SPEC_BENCH", "")
CONTRADICTED = "alignment_share_text.batch 16"


@pytest.fixture(scope="module")
def frame():
    frame = to_frame(list(Reproduction(replace(read_targets(), ratio=None), 6).rows()))
    print(frame)
    return frame


def test_constants_are_fitted_on_the_eqspec_row_alone():
    data = json.loads(CONSTANTS.read_text())
    assert data["fitted_on"] == "overhead_anatomy.eqspec"
    assert list(data["fitted"]) == [
        "acceptance_probability", "output_mean_tokens", "eager_pass_s", "eager_layer_s", "host_operation_s",
    ]  # fmt: skip
    assert list(data["chosen"]) == ["caption_output_tokens"]
    assert {item.name for item in fields(Constants)} == {*data["fitted"], *data["chosen"]}


def test_fitting_again_gives_the_committed_constants():
    committed = load_constants()
    again = fit_constants(read_targets().anatomy["eqspec"], committed, replications=4)
    for name, value in asdict(again).items():
        assert value == pytest.approx(getattr(committed, name), rel=0.06), name


def test_rows_say_what_was_fitted(frame):
    assert set(frame.index[frame["fitted"]]) == {f"overhead_anatomy.eqspec.{name}" for name in FITTED}
    assert not frame.loc["overhead_anatomy.eqspec.verify_calls", "fitted"]


@pytest.mark.parametrize("method", ["eqspec", "exspec"])
def test_calls_speed_and_groups_of_the_logs(frame, method):
    row = frame.loc[[name for name in frame.index if name.startswith(f"overhead_anatomy.{method}.")]]
    row.index = [name.rpartition(".")[2] for name in row.index]
    assert abs(row.loc["verify_calls", "relative_error"]) < 0.05
    assert abs(row.loc["tokens_per_s", "relative_error"]) < 0.10
    if method == "exspec":
        assert 0.5 < row.loc["grouped_rounds", "simulated"] / row.loc["grouped_rounds", "published"] < 2


def test_grouping_rates_and_shares(frame):
    points = (frame["simulated"] - frame["published"]).abs()
    assert (points[[name for name in frame.index if name.startswith("grouping_rate_all_mean")]] < 8).all()
    shares = points[[name for name in frame.index if name.startswith("alignment_share_text")]]
    assert list(shares.index[shares > 5]) == [CONTRADICTED]


def test_an_interval_holds_single_runs():
    row = make_row("x", 3.0, values := np.arange(1.0, 80.0))
    assert (row.low, row.simulated, row.high) == pytest.approx((2.0, 40.0, 78.0))
    assert row.inside
    assert not make_row("x", 1.5, values).inside


def test_the_command_compares_every_figure(monkeypatch, tmp_path, capsys):
    path = tmp_path / "targets.json"
    path.write_text('{"grouping_rate_all_mean": {"batch_size": [4], "percent": [50.0]}}')
    monkeypatch.setattr(read_targets, "__defaults__", (path,))
    assert main(["reproduce", "--replications", "2", "--json"]) == 0
    printed = capsys.readouterr()
    assert "low … high: holds 33.3 % of single runs, of the headline 33.3 %\n" in printed.err
    (row,) = json.loads(printed.out)["rows"]
    assert set(row) == {
        "target", "published", "simulated", "low", "high", "fitted", "relative_error", "inside",
    }  # fmt: skip
    assert (row["published"], row["inside"]) == (50.0, False)


def test_a_fit_is_to_the_figures_and_prompts_that_are_given():
    """Twice the seconds of aligning need about twice the seconds of an operation."""
    row = read_targets().anatomy["eqspec"]

    def fitted(**changes):
        return fit_constants(row | changes, load_constants(), 1, (12,) * 20).host_operation_s

    assert fitted(align_s=2 * row["align_s"]) == pytest.approx(2 * fitted(), rel=0.05)


def test_each_behaviour_is_changed_on_the_same_requests(capsys):
    assert main(["reproduce", "--explain", "--replications", "2", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    speeds = [step["tokens_per_s"] for step in steps]
    assert [step["gain"] for step in steps[1:]] == pytest.approx(np.diff(speeds).tolist())
    refill, launched, grouping = (step["gain"] for step in steps[1:4])
    assert refill > launched > 5 * grouping  # where the published gain comes from
    assert [step["alone"] is None for step in steps] == [True] * 4 + [False] * 9


def test_drafts_pay_longest_where_arithmetic_is_cheap(capsys):
    assert main(["study", "crossing", "--device", "h100", "--device", "l40s", "--json"]) == 0
    printed = capsys.readouterr()
    assert re.search(
        r" 5 drafts pay up to +5 % +95 % +best number pays up to +rows that fit +gain at batch 1\n", printed.err
    )
    assert "drafts pay up to: so many rows, of the batch sizes 1, 2, 4, " in printed.err
    found = json.loads(printed.out)["crossings"]
    sizes = {(line["device"], line["context_tokens"]): line["batch_size"] for line in found}
    assert sizes["l40s", 256] > sizes["h100", 256] > sizes["h100", 16384] > 0
    assert all(line["low"] <= line["batch_size"] <= line["high"] for line in found)
    assert all(line["batch_size"] <= min(line["any_drafts"], line["fits"]) for line in found)


def test_a_crossing_needs_a_draft_and_a_probability(capsys):
    pair = {"target": "qwen3-8b", "draft": "qwen3-0.6b"}
    with pytest.raises(InputError, match=r"acceptance_probability must be a number in \[0, 1\], not 2.0"):
        next(find_crossings(pair, ["h100"], 2.0))
    assert main(["study", "crossing", "--device", "h100", "--draft", ""]) == 2
    assert "a crossing needs a draft" in capsys.readouterr().err
    assert main(["study", "budgets", "--draft", ""]) == 2
    assert "runs a draft, and cost has none" in capsys.readouterr().err


def test_rows_wait_for_their_prefill_where_mixed_caches_are_dropped():
    """The first round of a static batch pays for it; no later round does."""
    scenario = overhead_scenario("eqspec", 4, load_constants(), (60,) * 8).but(noise=False)
    rounds = simulate(scenario, 1).frame("rounds")
    assert (rounds["prefill_s"] > 0).sum() == 2


def test_a_padded_row_ends_where_the_pad_means_the_end():
    long, short = (
        Request(0, (length, 99, 99), lambda index, tile: [0] * 64, lambda *span: 0, 0.0) for length in (12, 7)
    )
    for row in (long, short):
        row.generated = row.last_kept = 1
    end_padded([long, short], 5.0)
    assert (long.finished, short.finished, short.output_len, short.finished_s) == (False, True, 1, 5.0)


def test_an_output_that_a_pad_has_ended_is_not_cut_at_the_budget_and_its_row_says_so():
    """The first request is half as long; the second row is padded in the first round, and ends there."""
    scenario = overhead_scenario("exspec", 2, load_constants(), (60, 30)).but(
        {
            "switches.pad_ends": True,
            "workload.output_tokens": {"kind": "fixed", "tokens": 50},
            "engine.max_new_tokens": 20,
        }
    )
    results = simulate(scenario, 1, keep_rows=True)
    requests, rows = results.frame("requests"), results.frame("rows")
    assert requests["cut"].tolist() == [True, False]
    assert results["cut_outputs"] == 1
    assert rows.groupby("sequence")["finished"].last().tolist() == [True, True]


@pytest.mark.skipif(not SPEC_BENCH, reason="set SPEC_BENCH to Spec-Bench's question.jsonl")
def test_the_committed_lengths_are_those_of_spec_bench():
    assert read_lengths(SPEC_BENCH) == committed_lengths()


def test_a_range_of_crossings_holds_90_percent_of_single_draws():
    """Of 20 draws, all but what lies beyond the least and the greatest; sizes are those that were tried."""
    assert crossing_range([1, *[64] * 18, 512]) == (1, 512)
    assert crossing_range([1, *[64] * 38, 512]) == (64, 64)
    assert crossing_range([0, 4, *[64] * 17, 96]) == (0, 96)
