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
from refimpl.pairs.random_pairs import random_pair
from simulator.cli import main
from simulator.engine_runs.parity import replay_scenario
from simulator.engine_runs.validation import META, WAITS, validate
from simulator.runner import simulate
from simulator.settings.calibration import META_FIELDS, load_calibration
from simulator.settings.fields import Spec
from simulator.settings.traces import read_engine_trace
from tests.tiny_calibration import HELD_OUT, PLAN, PROMPTS, folder_of


@pytest.fixture(scope="module")
def pair():
    return random_pair("llama", draft_noise=0.01)


@pytest.fixture(scope="module")
def data(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    calibrate(pair, PROMPTS, folder, pair_name="toy", plan=PLAN, command="tests")
    return folder


def test_what_the_engine_writes_the_simulator_reads(data):
    calibration = load_calibration(str(folder_of(data, "calibration")))
    assert set(META_FIELDS) <= set(calibration.meta)
    assert calibration.meta["origin"] == "measured"
    components = {component for component, _ in calibration.grids}
    assert components >= {"prefill", "draft", "verify", "concat", "split", "compact", "host"}
    free = {"draft_chunk", "draft"}  # of no tokens
    assert all((grid.mean_s > 0).all() for (name, _), grid in calibration.grids.items() if name not in free)
    assert all((grid.mean_s[:, -1] > 0).all() for (name, _), grid in calibration.grids.items() if name in free)
    for layout in ("any", "paged"):
        grid = calibration.grids["draft_chunk", layout]
        assert (grid.mean_s[:, 0] == 0).all()
        assert (grid.mean_s[:, 1] > 0).all()
        rows, tokens, starts = calibration.grids["mixed", layout].axes
        assert (rows.tolist(), tokens.tolist(), starts.tolist()) == ([1, 2], [0, 12], [0, 24])
    for component in ("even", "packed"):
        rows, tokens, widths = calibration.grids[component, "any"].axes
        assert (rows.tolist(), tokens.tolist(), widths.tolist()) == ([2], [1, 3], [2, 40])
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
    assert code == 0
    printed = capsys.readouterr()
    shown = json.loads(printed.out.splitlines()[-1])
    assert len(shown["runs"]) == len(found.table)
    assert {"drift_cv", "run_cv", "round_cv", "reference_cv", "coverage"} <= set(shown)
    assert "bands that hold 50 % of single replications cover " in printed.err
    assert shown["bands_hold"] == 0.5
    assert len(pd.read_csv(table)) == len(found.table)


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


def test_part_of_the_runs_is_judged_as_in_the_whole(data):
    calibration, runs = str(folder_of(data, "calibration")), folder_of(data, "validation")
    whole, part = (validate(calibration, runs, replications=3, runs=chosen) for chosen in (slice(None), slice(1, 2)))
    assert part.table.equals(whole.table.iloc[1:2])


@pytest.mark.parametrize("field", META)
def test_a_missing_field_of_the_validation_is_an_error(data, tmp_path, field, capsys):
    runs = folder_of(data, "validation")
    meta = json.loads((runs / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({key: value for key, value in meta.items() if key != field}))
    first = next(runs.glob("*.ndjson.gz"))
    (tmp_path / first.name).write_bytes(first.read_bytes())
    assert main(["validate", str(tmp_path), "--calibration", str(folder_of(data, "calibration"))]) == 2
    assert f"meta.json: missing {field}" in capsys.readouterr().err


def test_a_calibration_of_another_pair_is_refused(data, tmp_path, capsys):
    runs = folder_of(data, "validation")
    meta = json.loads((runs / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"pair": "other"}))
    first = next(runs.glob("*.ndjson.gz"))
    (tmp_path / first.name).write_bytes(first.read_bytes())
    assert main(["validate", str(tmp_path), "--calibration", str(folder_of(data, "calibration"))]) == 2
    assert "the calibration's is 'other'" in capsys.readouterr().err


def test_no_held_out_run_meets_a_prompt_that_calibrated(pair):
    measured = Calibration(pair, PROMPTS, PLAN, seed=3, minutes=None)
    held_out = measured.supply.deal(60, fitted=False)
    fitted = measured.supply.deal(60, fitted=True)
    assert not {tuple(p.ids) for p in held_out} & {tuple(p.ids) for p in fitted}


def test_a_run_that_was_interrupted_runs_again_and_says_so(pair, tmp_path, monkeypatch):
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
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


def test_too_little_time_or_too_few_prompts_or_passes_are_said_so(pair, tmp_path):
    with pytest.raises(InputError, match="--minutes is too short"):
        calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=PLAN, minutes=1e-6)
    with pytest.raises(InputError, match="at least 32 prompts, not 9"):
        calibrate(pair, PROMPTS[:9], tmp_path, pair_name="toy", plan=PLAN)
    for given in ({"passes": 1}, {"passes": 0}, {"repeats": 0}, {"threads": 0}, {"minutes": 0}):
        with pytest.raises(InputError, match=f"^{next(iter(given))} must be .*, not {next(iter(given.values()))}$"):
            calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=PLAN, **given)
    assert not list(tmp_path.iterdir())


def test_too_little_time_for_one_pass_is_refused_before_anything_is_measured(pair, tmp_path, monkeypatch):
    """A visit takes a minute on this clock; a warm-up of some tells that all of them do not fit."""
    clock, done = [0.0], []
    monkeypatch.setattr("refimpl.calibrate.run.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Visitor, "visit", lambda self, cell, index: clock.append(clock.pop() + 60.0))
    monkeypatch.setattr(Runner, "run", lambda self, *_: done.append("run"))
    cells = len(levels_of(PLAN.grids)[0])
    with pytest.raises(InputError, match=rf"--minutes is too short: a pass over .* takes about {cells}\.0 minutes"):
        calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=PLAN, minutes=cells)
    assert not done


def test_when_the_time_is_up_the_finished_levels_are_written(pair, tmp_path, monkeypatch):
    fine = Axes((1, 2, 3), (0, 1, 2), (2, 40), (2, 24), 2)
    plan = replace(PLAN, grids=(*PLAN.grids, fine))
    measured = Calibration(pair, PROMPTS, plan, seed=0, minutes=None)
    done = measured._do
    monkeypatch.setattr(measured, "_do", lambda jobs, label: label != "pass 3/4" and done(jobs, label))
    measured.measure()
    places = {place.tokens_per_row for place in measured.points().executions if place.component == "draft"}
    assert places == {2}
    assert len(measured.held_out) == PLAN.repeats * len(HELD_OUT), "held-out runs come before the finer levels"
