"""The face from Python: files and mappings for scenarios, several compared, sweeps in memory, bars, tables, traces."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import simulator
from refimpl.core.errors import InputError
from simulator import Comparisons, Scenario, Spec, build_sweep, compare, export_trace, simulate, sweep
from simulator.cli import main
from simulator.engine_runs.validation import validate
from simulator.runner import run_parallel
from simulator.settings.fields import Range
from simulator.settings.scenario import load_scenario
from simulator.settings.tables import read_provenance
from simulator.studies.attribution import attribute
from simulator.studies.designs import load_sweep
from simulator.studies.whatif_grid import answer_grid

ROOT = Path(__file__).parents[3]
SMALL = Scenario(
    study={"num_requests": 6},
    workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 4, "high_tokens": 20}},
    engine={"method": "eqspec", "batch_size": 2, "max_new_tokens": 12},
    cost={"kind": "linear", "verify_base_s": 0.02, "realign_base_s": 0.01},
)


# --- several scenarios -------------------------------------------------------------------------------------------


def test_each_of_several_scenarios_is_compared_with_the_first():
    others = {name: SMALL.but(method=name) for name in ("exspec", "inplace")}
    found = compare({"eqspec": SMALL, **others}, replications=3)
    assert isinstance(found, Comparisons)
    for name, other in others.items():
        pd.testing.assert_frame_equal(found[name].table, compare(SMALL, other, 3).table)
    assert list(found.to_frame().loc["inplace"].index) == list(found["inplace"].table.index)
    assert list(found.of("tokens_per_s").index) == ["exspec", "inplace"]
    assert "inplace" in repr(found)
    assert "\n" not in repr(found)


NO_SENSE = [
    (lambda: compare(SMALL), "compare needs two scenarios, or a mapping of names to two or more"),
    (lambda: compare({"a": SMALL, "b": SMALL}, SMALL), "two scenarios or one mapping, not both"),
    (lambda: compare(SMALL, 10), "give a Scenario or the path of a YAML file, not 10"),
    (lambda: simulate(SMALL, 3, precision=0.1, max_replications=2), "max_replications 2 is less than replications 3"),
    (lambda: simulate(SMALL, 1).to_frame("request"), "table must be one of summary, metrics, requests, rounds, rows"),
    (lambda: simulate(SMALL, 1).frame("metrics"), "frame must be one of requests, rounds, rows, not 'metrics'"),
    (lambda: simulate(SMALL, 1, keep_frames=False).to_frame("rounds"), "the tables were not kept"),
    (lambda: export_trace(SMALL, "t.json", replication=-1), "replication must be an integer ≥ 0, not -1"),
]


@pytest.mark.parametrize(("call", "message"), NO_SENSE)
def test_what_makes_no_sense_is_one_line(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_file_stands_for_its_scenario(tmp_path):
    path = tmp_path / "s.yaml"
    SMALL.save(path)
    assert simulate(str(path), 1).metrics.equals(simulate(SMALL, 1).metrics)
    assert compare(path, SMALL, 2).table.loc["tokens_per_s", "difference"] == 0
    assert build_sweep(path, grid={"seed": [0]}).tasks[0].scenario == SMALL


# --- sweeps ------------------------------------------------------------------------------------------------------


def test_a_sweep_in_memory_gives_what_a_folder_keeps(tmp_path):
    spec = build_sweep(SMALL, replications=2, grid={"engine.batch_size": [1, 2], "method": ["eqspec", "inplace"]})
    in_memory = sweep(spec)
    pd.testing.assert_frame_equal(in_memory, sweep(spec, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_grids_take_ranges_arrays_and_specs():
    axes = {
        "engine.batch_size": range(1, 3),
        "acceptance": [Spec.of("iid", probability=0.5), {"kind": "iid", "probability": 0.6}],
        "cost.verify_base_s": np.linspace(0.01, 0.02, 2),
        "study.num_requests": (3, np.int64(4)),
    }
    spec = build_sweep(SMALL, replications=1, grid=axes)
    assert len(spec.tasks) == 16
    assert len({task.key for task in spec.tasks}) == 16
    lists = {name: [simulator.settings.fields.as_data(v) for v in axis] for name, axis in axes.items()}
    again = build_sweep(SMALL, replications=1, grid=lists | {"cost.verify_base_s": [0.01, 0.02]})
    assert [task.settings for task in spec.tasks] == [task.settings for task in again.tasks]
    assert [task.key for task in spec.tasks] == [task.key for task in again.tasks]
    ranges = {"engine.batch_size": np.array([1, 3]), "acceptance.probability": (np.float64(0.2), 0.4)}
    points = build_sweep(SMALL, latin={"samples": 3, "ranges": ranges}).tasks
    assert {type(task.settings["engine.batch_size"]) for task in points} == {int}


# --- progress ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "last"),
    [
        (lambda told: simulate(SMALL, 2, progress=told), "replications: 2 of 2"),
        (lambda told: compare(SMALL, SMALL, 2, progress=told), "replications: 4 of 4"),
        (lambda told: attribute(SMALL, SMALL.but(method="inplace"), 2, progress=told), "replications: 8 of 8"),
        (
            lambda told: sweep(build_sweep(SMALL, replications=1, grid={"seed": [0, 1]}), progress=told),
            "scenarios: 2 of 2",
        ),
    ],
)
def test_true_draws_and_a_function_is_told_the_same(capsys, monkeypatch, call, last):
    monkeypatch.setattr("refimpl.core.progress.SECONDS_A_LINE", -1.0)
    call(True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == last
    seen = []
    call(lambda *told: seen.append(told))
    assert [f"{last.partition(':')[0]}: {done} of {planned}" for done, planned in seen] == lines
    call(None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "call",
    [
        lambda told: simulate(SMALL, 2, progress=told),
        lambda told: compare(SMALL, SMALL, 2, progress=told),
        lambda told: attribute(SMALL, SMALL.but(method="inplace"), 2, progress=told),
        lambda told: sweep(build_sweep(SMALL, replications=1, grid={"seed": [0, 1]}), progress=told),
        lambda told: validate("cpu/tiny", replications=1, runs=slice(2), progress=told),
        lambda told: answer_grid(SMALL, axes={"deviation": (0.1,)}, progress=told),
    ],
)
def test_processes_are_let_go_at_an_error(call):
    with pytest.raises(ZeroDivisionError) as error:
        call(lambda *_: 1 / 0)
    held = [value for frame in error.traceback for value in frame.frame.f_locals.values()]
    runs = [value for value in held if getattr(value, "gi_code", None) is run_parallel.__code__]
    assert runs
    assert all(each.gi_frame is None for each in runs)


# --- tables and traces -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["summary", "metrics", "requests", "rounds", "rows"])
def test_every_table_goes_through_parquet(tmp_path, table):
    results = simulate(SMALL, 2, keep_rows=True)
    results.to_parquet(tmp_path / "t.parquet", table)
    expected = results.to_frame(table)
    read = pd.read_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read, expected.reset_index() if table == "summary" else expected)
    meta = read_provenance(tmp_path / "t.parquet")
    assert simulator.settings.scenario.from_data(meta["scenario"]) == SMALL
    assert {"seed", "inputs", "replications", "commit", "utc_time", "libraries"} <= set(meta)


def test_tables_of_studies_go_through_parquet(tmp_path):
    for number, found in enumerate((compare(SMALL, SMALL, 2), compare({"a": SMALL, "b": SMALL}, None, 2))):
        found.to_parquet(tmp_path / f"{number}.parquet")
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{number}.parquet"), found.to_frame().reset_index())


def test_results_and_scenarios_are_traced_as_their_simulation_is(tmp_path):
    results = simulate(SMALL, 2, keep_frames=False)
    sources = [results, SMALL, simulator.simulate_once(SMALL, 1, keep_rows=True)]
    for number, source in enumerate(sources):
        assert export_trace(source, tmp_path / f"{number}.json", replication=1) > 0
    first, *others = [(tmp_path / f"{number}.json").read_text() for number in range(3)]
    assert all(other == first for other in others)
    assert json.loads(first)["traceEvents"]


# --- the example -------------------------------------------------------------------------------------------------


def test_the_example_needs_no_checkout(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "example", "-n", "1"]) == 0
    assert "requests to a small server" in capsys.readouterr().out
    for kind, load in (("scenario", load_scenario), ("sweep", load_sweep)):
        assert main(["init", kind]) == 0
        (tmp_path / f"{kind}.yaml").write_text(capsys.readouterr().out)
        assert load(tmp_path / f"{kind}.yaml") == load("example")
    Scenario(name="mine").save("example")
    assert load_scenario("example").name == "mine"


# --- studies that would not end ----------------------------------------------------------------------------------


def closed(duration_s):
    study = {"kind": "closed", "clients": 3, "duration_s": duration_s}
    return SMALL.but({"cost.verify_base_s": 1e-6, "cost.realign_base_s": 0.0, "engine.max_new_tokens": 1}, study=study)


def test_clients_that_would_ask_without_end_are_refused(monkeypatch):
    assert simulate(closed(0.02), 1)["completed"] > 20_000
    monkeypatch.setattr("simulator.service.simulation.REQUESTS", Range(1, most=20_000))
    with pytest.raises(
        InputError, match=r"^study\.duration_s 0\.02 brings about .* requests; at most 20000: 8192 were"
    ):
        simulate(closed(0.02), 1)
    assert simulate(closed(0.005), 1)["completed"] < 20_000
