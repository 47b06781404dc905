"""Requests that arrive in real time: the metrics by hand, the command, and the simulator's prediction beside it."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from refimpl import InputError, Request
from refimpl.bench.serving import Waits, poisson_requests, require_rounds, serve
from refimpl.cli import main
from simulator.cli import main as simulate
from simulator.engine_runs.latency import measured_waits, predict
from simulator.settings.traces import EngineTrace, read_engine_trace
from tests.synthetic_inputs import HEADER, SYNTHETIC_META, synthetic_points, write_calibration, write_engine_trace

WAITS = ("first_token", "inter_token", "latency")


def test_gaps_are_exponential_and_prompts_come_in_turn():
    requests = poisson_requests([[1], [2], [3]], 4.0, 4000, seed=1)
    gaps = np.diff([request.arrival_s for request in requests])
    assert [request.prompt for request in requests[:4]] == [[1], [2], [3], [1]]
    assert requests[0].arrival_s == 0
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.06)  # four standard errors
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert requests == poisson_requests([[1], [2], [3]], 4.0, 4000, seed=1)


@pytest.mark.parametrize(
    ("rate", "count", "message"),
    [
        (float("nan"), 1, "rate must be at least 0.0001 requests"),
        (float("inf"), 1, "rate must be finite, not inf"),
        (1, 0, r"the number of requests must be an integer in \[1, 1000000\], not 0"),
        (1e-300, 2, "rate must be at least 0.0001 requests per second, not 1e-300"),
    ],
)
def test_impossible_streams(rate, count, message):
    with pytest.raises(InputError, match=message):
        poisson_requests([[1]], rate, count, 0)


@pytest.mark.parametrize(
    ("methods", "message"),
    [(["inplace", "nope"], "unknown method 'nope'"), (["inplace", "autoregressive"], "autoregressive has no rounds")],
    ids=str,
)
def test_every_method_is_checked_before_the_first_one_runs(methods, message):
    with pytest.raises(InputError, match=message):
        require_rounds(methods, {"batch_size": 2})


def test_a_served_run(llama):
    requests = [Request([1 + i, 2], arrival_s=0.02 * i) for i in range(5)]
    row, result = serve(llama, requests, "paged+continuous", batch_size=2, max_new_tokens=6)
    assert (row.requests, row.tokens) == (5, sum(len(s.token_ids) for s in result.sequences))
    assert row.tokens_per_s == row.tokens / row.seconds
    assert 0 < row.first_token.p50_s <= row.first_token.p90_s <= row.first_token.p99_s <= row.latency.p99_s
    assert row.seconds >= requests[-1].arrival_s
    assert 0 < row.busy_share <= 1


def test_waits_by_hand():
    """Request 0 comes at 0 and gets tokens at 1 and 3; request 1 comes at 0.5, and gets its only ones at 3."""
    rows = pd.DataFrame({"round": [0, 1, 1], "sequence": [0, 0, 1], "kept": [1, 2, 3]})
    header = HEADER | {"num_sequences": 2, "arrival_s": [0.0, 0.5], "round_end_s": [1.0, 3.0]}
    found = measured_waits(EngineTrace("run", header, rows))
    assert found["tokens_per_s"] == 2.0
    assert [found[f"{name}_p50_s"] for name in WAITS] == [1.75, 2.0, 2.75]
    assert Waits.of([]) == Waits(None, None, None)


def test_the_command_and_the_simulator_beside_it(monkeypatch, capsys, tmp_path):
    report = tmp_path / "report.json"
    words = "bench-serving --rate 50 --num-requests 4 --max-new-tokens 4 --methods inplace,paged+continuous --json"
    outputs = ["--traces", str(tmp_path / "runs"), "--output", str(report)]
    monkeypatch.setattr(sys, "argv", ["raggedspec", *words.split(), *outputs])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["inplace", "paged+continuous"]
    assert json.loads(report.read_text())["meta"]["rate_per_s"] == 50
    measured_on = ["--calibration", "cpu/tiny"]
    for method in ("inplace", "paged+continuous"):
        trace = tmp_path / "runs" / f"{method}.ndjson"
        assert simulate(["validate", str(trace)]) == 0
        capsys.readouterr()
        assert simulate(["validate", str(trace), *measured_on, "-n", "4", "--json"]) == 0
        printed = capsys.readouterr()
        table = json.loads(printed.out)[str(trace)]
        assert 0.1 < table["speed"] < 100
        assert f"costs times {table['speed']:.3f}: seconds of a reference pass" in printed.err
        assert {f"{name}_{label}_s" for name in WAITS for label in ("p50", "p90", "p99")} < set(table)
        assert table["tokens_per_s"]["low"] <= table["tokens_per_s"]["simulated"] <= table["tokens_per_s"]["high"]
        assert simulate(["validate", str(trace), *measured_on, "-n", "2", "--out", str(tmp_path / "table.json")]) == 0
        written = json.loads((tmp_path / "table.json").read_text())
        assert (written["calibration"], written["runs"][0]["method"]) == ("cpu/tiny", method)
        assert written["runs"][0]["metrics"]["tokens_per_s"]["measured"] == table["tokens_per_s"]["measured"]
        capsys.readouterr()
        measured = next(row for row in rows if row["method"] == method)
        assert table["first_token_p50_s"]["measured"] == pytest.approx(measured["first_token"]["p50_s"])


def test_costs_follow_the_speed_of_the_machine_during_the_run(capsys, tmp_path):
    """Twice the seconds of a reference pass: as if all costs had been measured twice as high. Arrivals stay."""
    meta = SYNTHETIC_META | {"reference_s": 1.0}
    header = HEADER | {"arrival_s": [0.0, 0.004], "round_end_s": [0.3, 0.6, 0.9]}
    twice = [(*point[:6], *(2 * seconds for seconds in point[6:])) for point in synthetic_points()]
    slow = read_engine_trace(write_engine_trace(tmp_path / "slow.ndjson", header | {"reference_s": 2.0}))
    silent = read_engine_trace(write_engine_trace(tmp_path / "silent.ndjson", header))
    once, dear = (str(write_calibration(tmp_path / n, meta, p)) for n, p in (("once", None), ("dear", twice)))
    found, wanted = predict(slow, once, 3), predict(silent, dear, 3)
    assert (found.speed, wanted.speed) == (2.0, None)
    pd.testing.assert_frame_equal(found.table, wanted.table)
    assert (
        found.table.loc["tokens_per_s", "simulated"] < predict(silent, once, 3).table.loc["tokens_per_s", "simulated"]
    )
    assert simulate(["validate", silent.path, "--calibration", once, "-n", "1"]) == 0
    assert f"costs at the mean speed of {once}: the trace has no reference_s" in capsys.readouterr().out


def test_where_nobody_waits_for_a_second_token_the_report_is_json(monkeypatch, capsys):
    """Requests of one token have no time between tokens."""
    arguments = ["--rate", "50", "--num-requests", "2", "--max-new-tokens", "1", "--methods", "inplace", "--json"]
    monkeypatch.setattr(sys, "argv", ["raggedspec", "bench-serving", *arguments])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out, parse_constant=pytest.fail)["rows"]
    assert row["inter_token"] == {"p50_s": None, "p90_s": None, "p99_s": None}
    assert "–/–/–" in printed.err


def test_a_run_without_arrivals_has_no_times(capsys, tmp_path):
    assert simulate(["validate", str(write_engine_trace(tmp_path / "run.ndjson")), "--calibration", "cpu/tiny"]) == 2
    assert "all requests were there at the start" in capsys.readouterr().err
