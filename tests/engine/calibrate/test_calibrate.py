"""From the engine to the simulator and back: calibrate a random pair on a small grid, validate on its held-out runs."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from refimpl.calibrate.grid import Axes, levels_of
from refimpl.calibrate.run import Calibration, calibrate
from refimpl.calibrate.runs import Runner, write_run
from refimpl.calibrate.visits import Visitor
from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.engine_runs.parity import replay_scenario
from simulator.engine_runs.validation import META, WAITS, validate
from simulator.runner import simulate
from simulator.settings.calibration import META_FIELDS, load_calibration
from simulator.settings.fields import Spec
from simulator.settings.traces import read_engine_trace
from tests.tiny_calibration import HELD_OUT, PLAN, PROMPTS, folder_of


@pytest.fixture(scope="module")
def data(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    calibrate(llama, PROMPTS, folder, pair_name="toy", plan=PLAN, command="tests")
    return folder


def test_what_the_engine_writes_the_simulator_reads(data):
    calibration = load_calibration(str(folder_of(data, "calibration")))
    assert set(META_FIELDS) <= set(calibration.meta)
    assert calibration.meta["origin"] == "measured"
    components = {component for component, _ in calibration.grids}
    assert components >= {"prefill", "draft", "verify", "concat", "split", "compact", "host"}
    for (name, _), grid in calibration.grids.items():
        if name in ("draft_chunk", "draft"):
            assert (grid.mean_s[:, 0] == 0).all(), "of no tokens"
        assert (grid.mean_s[:, -1] > 0).all()
    axes = {
        ("mixed", "any"): [[1, 2], [0, 12], [0, 24]], ("mixed", "paged"): [[1, 2], [0, 12], [0, 24]],
        ("even", "any"): [[2], [1, 3], [2, 40]], ("packed", "any"): [[2], [1, 3], [2, 40]],
    }  # fmt: skip
    assert {place: [axis.tolist() for axis in calibration.grids[place].axes] for place in axes} == axes
    for component in ("draft", "verify"):  # of a paged engine
        assert calibration.grid(component, "paged_scattered") is calibration.grids[component, "paged"]
    for component in ("draft", "verify", "host"):  # of recorded rounds, as a run of them is
        assert calibration.grids[component, "inplace_recorded"].axes[0].tolist() == [1, 2, 3]
    headers = {p.name: read_engine_trace(p).header for p in folder_of(data, "validation").glob("*.ndjson.gz")}
    recorded = {name for name, header in headers.items() if header.get("cuda_graphs")}
    assert recorded == {"inplace-recorded-0.ndjson.gz", "inplace-recorded-1.ndjson.gz"}
    assert calibration.meta["round_cv"] > 0
    assert calibration.meta["run_cv"] > 0


def test_held_out_runs_are_judged_and_decided_alike(data, capsys):
    calibration, runs = str(folder_of(data, "calibration")), folder_of(data, "validation")
    found = validate(calibration, runs, replications=5)
    assert found.parity == 1
    assert len(found.table) == PLAN.repeats * len(HELD_OUT)
    assert len(found.studies) == len(HELD_OUT)
    assert (found.table["scheduler_error"] == 0).all()
    assert np.isfinite(found.table[[f"{name}_error" for name in WAITS]]).all(axis=None)
    both = (1 + found.table["cost_error"]) * (1 + found.table["acceptance_error"])
    assert (both - 1 - found.table["makespan_error"]).abs().max() < 1e-9
    width = {name: found.table[f"{name}_high_s"] - found.table[f"{name}_low_s"] for name in ("band", "cost_band")}
    assert all((values > 0).all() for values in width.values())
    table = str(runs / "validation.csv")
    code = main(["validate", str(runs), "--calibration", calibration, "-n", "3", "--out", table, "--json"])
    printed = capsys.readouterr()
    shown = json.loads(printed.out.splitlines()[-1])
    assert (code, len(shown["runs"]), shown["bands_hold"]) == (0, len(found.table), 0.5)
    assert {"drift_cv", "run_cv", "round_cv", "reference_cv", "coverage"} <= set(shown)
    assert "bands that hold 50 % of single replications cover " in printed.err
    assert len(pd.read_csv(table)) == len(found.table)
    part = validate(calibration, runs, replications=5, runs=slice(1, 2))
    assert part.table.equals(found.table.iloc[1:2]), "judged as in the whole"


def test_bands_of_few_replications_go_from_the_least_to_the_greatest(data):
    """The run's own acceptance and its speed are known: four replications and their ends are simulated again."""
    calibration, runs = str(folder_of(data, "calibration")), folder_of(data, "validation")
    found = validate(calibration, runs, replications=4, runs=slice(1))
    (run,) = found.table.index
    trace = read_engine_trace(runs / f"{run}.ndjson.gz")
    again = replay_scenario(trace, Spec.of("table", calibration=calibration), None).but({"noise": True})
    seconds = found.table.loc[run, "speed"] * simulate(again, 4).metrics["makespan_s"]
    ends = found.table.loc[run, ["cost_band_low_s", "cost_band_high_s"]]
    assert ends.tolist() == pytest.approx([seconds.min(), seconds.max()])
    assert found.share_held == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("changes", "words"), [*(({field: ...}, f"meta.json: missing {field}$") for field in META),
                           ({"pair": "other"}, "the calibration's is 'other'")],
)  # fmt: skip
def test_runs_beside_other_facts_are_refused(data, tmp_path, changes, words):
    runs = folder_of(data, "validation")
    meta = json.loads((runs / "meta.json").read_text()) | changes
    (tmp_path / "meta.json").write_text(json.dumps({key: value for key, value in meta.items() if value is not ...}))
    first = next(runs.glob("*.ndjson.gz"))
    (tmp_path / first.name).write_bytes(first.read_bytes())
    with pytest.raises(InputError, match=words):
        validate(str(folder_of(data, "calibration")), tmp_path, replications=1)


def test_a_run_that_was_interrupted_runs_again_and_says_so(llama, tmp_path, monkeypatch):
    measured = Calibration(llama, PROMPTS, PLAN, seed=0, minutes=None)
    once, seen = Runner._run, []

    def interrupted_at_first(self, study, prompts, seed):
        found = once(self, study, prompts, seed)
        for record in found.records:
            record.stage_s["round_s"] = record.stage_s["prefill_s"] + 1.0
        found.records[1].stage_s["round_s"] += 0 if seen else 1000.0
        seen.append(study.name)
        return found

    monkeypatch.setattr(Runner, "_run", interrupted_at_first)
    run = measured.runner.run(HELD_OUT[0], measured.supply.deal(6, fitted=False), 5)
    write_run(tmp_path / "run.ndjson.gz", run)
    header = read_engine_trace(str(tmp_path / "run.ndjson.gz")).header
    assert (len(seen), header["attempts"], header["interrupted_rounds"]) == (2, 2, 0)


@pytest.mark.parametrize(
    ("prompts", "given", "words"),
    [
        (80, {"minutes": 1e-6}, "--minutes is too short"),
        (9, {}, "at least 32 prompts, not 9"),
        (80, {"passes": 1}, "^passes must be .*, not 1$"),
        (80, {"repeats": 0}, "^repeats must be .*, not 0$"),
        (80, {"threads": 0}, "^threads must be .*, not 0$"),
        (80, {"minutes": 0}, "^minutes must be .*, not 0$"),
        *((80, {"pair_name": name}, "pair_name must be the name of a folder, not") for name in ("", ".", "..", "a/b")),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(llama, tmp_path, prompts, given, words):
    """Without a name, it would replace the folder of all calibrations of its device."""
    with pytest.raises(InputError, match=words):
        calibrate(llama, PROMPTS[:prompts], tmp_path, **{"pair_name": "toy", "plan": PLAN} | given)
    assert not list(tmp_path.iterdir())


def test_too_little_time_for_one_pass_is_refused_before_anything_is_measured(llama, tmp_path, monkeypatch):
    """A visit takes a minute on this clock; a warm-up of some tells that all of them do not fit."""
    clock, done = [0.0], []
    monkeypatch.setattr("refimpl.calibrate.run.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Visitor, "visit", lambda self, cell, index: clock.append(clock.pop() + 60.0))
    monkeypatch.setattr(Runner, "run", lambda self, *_: done.append("run"))
    cells = len(levels_of(PLAN.grids)[0])
    with pytest.raises(InputError, match=rf"--minutes is too short: a pass over .* takes about {cells}\.0 minutes"):
        calibrate(llama, PROMPTS, tmp_path, pair_name="toy", plan=PLAN, minutes=cells)
    assert not done


def test_when_the_time_is_up_the_finished_levels_are_written(llama, tmp_path, monkeypatch):
    grids = (Axes((1, 2), (2,), (2, 40), (2, 24), 2), Axes((1, 2), (1, 2), (2, 40), (2, 24), 2))
    plan = replace(PLAN, grids=grids, studies=replace(PLAN.studies, held_out=HELD_OUT[:1]))
    measured = Calibration(llama, PROMPTS, plan, seed=0, minutes=None)
    done = measured._do
    monkeypatch.setattr(measured, "_do", lambda jobs, label: label != "pass 3/4" and done(jobs, label))
    measured.measure()
    places = {place.tokens_per_row for place in measured.points().executions if place.component == "draft"}
    assert places == {2}
    assert len(measured.held_out) == PLAN.repeats, "held-out runs come before the finer levels"
