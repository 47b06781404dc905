"""The published figures: what was fitted, what is predicted, and what is contradicted."""

import json
import os
from dataclasses import asdict, fields

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.runner import simulate
from simulator.service.records import Request
from simulator.service.schedulers import end_padded
from simulator.studies.published import (
    CONSTANTS,
    Constants,
    committed_lengths,
    load_constants,
    overhead_scenario,
    read_lengths,
)
from simulator.studies.reproduction import FITTED, Reproduction, fit_constants, make_row, read_targets, to_frame

SPEC_BENCH = os.environ.get("SPEC_BENCH", "")
CONTRADICTED = "alignment_share_text.batch 16"


@pytest.fixture(scope="module")
def frame():
    targets = {name: value for name, value in read_targets().items() if name != "headline"}
    frame = to_frame(list(Reproduction(targets, 6).rows()))
    print(frame)
    return frame


def test_constants_are_fitted_on_the_eqspec_row_alone():
    data = json.loads(CONSTANTS.read_text())
    assert data["fitted_on"] == "overhead_anatomy.eqspec"
    assert list(data["fitted"]) == [
        "acceptance_probability", "output_mean_tokens", "eager_pass_s", "eager_layer_s", "host_operation_s",
    ]  # fmt: skip
    assert list(data["stated"]) == ["caption_output_tokens"]
    assert {item.name for item in fields(Constants)} == {*data["fitted"], *data["stated"]}


def test_fitting_again_gives_the_committed_constants():
    committed = load_constants()
    again = fit_constants(read_targets()["overhead_anatomy"]["eqspec"], committed, replications=4)
    for name, value in asdict(again).items():
        assert value == pytest.approx(getattr(committed, name), rel=0.06), name


def test_rows_say_what_was_fitted(frame):
    assert set(frame.index[frame["fitted"]]) == {f"overhead_anatomy.eqspec.{name}" for name in FITTED}
    assert frame.loc["overhead_anatomy.eqspec.verify_calls", "fitted"] is not True


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
    row = make_row("x", 3.0, values := np.arange(101.0))
    assert (row.low, row.simulated, row.high) == (2.5, 50.0, 97.5)
    assert row.inside
    assert not make_row("x", 2.0, values).inside


def test_targets_of_one_s_own(tmp_path, capsys):
    path = tmp_path / "targets.json"
    path.write_text('{"grouping_rate_all_mean": {"batch_size": [4], "percent": [50.0]}}')
    assert main(["reproduce", "--targets", str(path), "--replications", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["rows"][0]) == {
        "target", "published", "simulated", "low", "high", "fitted", "relative_error", "inside",
    }  # fmt: skip
    assert (data["rows"][0]["published"], data["rows"][0]["inside"]) == (50.0, False)
    path.write_text('{"headlines": {}}')
    with pytest.raises(InputError, match="holds none of overhead_anatomy"):
        read_targets(path)


def test_each_behaviour_is_changed_on_the_same_requests(capsys):
    assert main(["explain", "--replications", "2", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    speeds = [step["tokens_per_s"] for step in steps]
    assert [step["gain"] for step in steps[1:]] == pytest.approx(np.diff(speeds).tolist())
    refill, launched, grouping = (step["gain"] for step in steps[1:4])
    assert refill > launched > 5 * grouping  # where the published gain comes from
    assert [step["alone"] is None for step in steps] == [True] * 4 + [False] * 8


def test_drafts_pay_longest_where_arithmetic_is_cheap(capsys):
    assert main(["crossing", "--device", "h100", "--device", "l40s", "--acceptance", "0.7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["crossings"]
    sizes = {(line["device"], line["context_tokens"]): line["batch_size"] for line in found}
    assert sizes["l40s", 256] > sizes["h100", 256] > sizes["h100", 16384] > 0
    assert all(line["low"] <= line["batch_size"] <= line["high"] for line in found)
    assert all(line["batch_size"] <= min(line["any_drafts"], line["fits"]) for line in found)


def test_rows_wait_for_their_prefill_where_mixed_caches_are_dropped():
    """The first round of a static batch pays for it; no later round does."""
    scenario = overhead_scenario("eqspec", 4, load_constants(), (60,) * 8).but(noise=False)
    rounds = simulate(scenario, 1).frame("rounds")
    assert (rounds["prefill_s"] > 0).sum() == 2


def test_a_padded_row_ends_where_the_pad_means_the_end():
    long, short = (
        Request(0, (length, 99, 99), lambda tile: [0] * 64, lambda start, stop: 0, 0.0) for length in (12, 7)
    )
    for row in (long, short):
        row.generated = row.last_kept = 1
    end_padded([long, short], 5.0)
    assert (long.finished, short.finished, short.output_len, short.finished_s) == (False, True, 1, 5.0)


@pytest.mark.skipif(not SPEC_BENCH, reason="set SPEC_BENCH to Spec-Bench's question.jsonl")
def test_the_committed_lengths_are_those_of_spec_bench():
    assert read_lengths(SPEC_BENCH) == committed_lengths()
