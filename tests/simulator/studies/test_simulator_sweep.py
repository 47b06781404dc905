import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
import yaml

from refimpl.core import provenance
from refimpl.core.errors import InputError
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from simulator.settings.tables import read_provenance
from simulator.studies.designs import build_sweep, load_sweep, sobol_indices
from simulator.studies.sweeps import sweep, table_of_points

BASE = Scenario(
    study=Study(num_requests=6),
    workload=Workload(prompt_tokens=Spec.of("fixed", tokens=8), output_tokens=Spec.of("fixed", tokens=12)),
    engine=Engine(layout="realigned", scheduler="grouped", batch_size=2, max_new_tokens=12),
)


def grid(values=(2, 4, 8), replications=2):
    return build_sweep(BASE, replications=replications, grid={"engine.window_size": list(values), "seed": [0, 1]})


def test_a_grid_gives_every_combination_once(tmp_path):
    frame = sweep(grid(), tmp_path)
    assert len(frame) == 3 * 2 * 2
    assert frame["key"].nunique() == 6
    assert set(frame["engine.window_size"]) == {2, 4, 8}
    metas = [read_provenance(path) for path in (tmp_path / "scenarios").glob("*.parquet")]
    assert all({"seed", "inputs", "replications", "commit", "utc_time", "libraries"} <= set(meta) for meta in metas)
    assert sorted(meta["scenario"]["engine"]["window_size"] for meta in metas) == [2, 2, 4, 4, 8, 8]


def test_workers_and_dask_give_the_same_numbers(tmp_path):
    one = sweep(grid(), tmp_path / "one")
    two = sweep(grid(), tmp_path / "two", workers=2)
    dask = sweep(grid(), tmp_path / "dask", dask="local", workers=2)
    assert one.equals(two)
    assert one.equals(dask)


def test_a_sweep_resumes_where_it_was(tmp_path):
    spec = grid()
    whole = sweep(spec, tmp_path / "whole")
    seen = []
    sweep(grid((2, 4)), tmp_path / "part")
    resumed = sweep(spec, tmp_path / "part", progress=lambda done, all_: seen.append((done, all_)))
    assert seen == [(5, 6), (6, 6)]
    assert resumed.equals(whole)
    sweep(spec, tmp_path / "part", progress=lambda done, all_: pytest.fail("done twice"))


def test_results_of_another_commit_are_not_taken_over(tmp_path, monkeypatch):
    sweep(grid((2,)), tmp_path)
    monkeypatch.setattr("refimpl.core.provenance.commit", lambda: "another")
    seen = []
    frame = sweep(grid((2,)), tmp_path, workers=2, progress=lambda done, all_: seen.append((done, all_)))
    assert seen == [(1, 2), (2, 2)]
    files = {path.stem: read_provenance(path)["commit"] for path in (tmp_path / "scenarios").glob("*.parquet")}
    assert {files[key] for key in frame["key"]} == {"another"}
    assert len(files) == 4


def test_killed_in_the_middle_nothing_is_lost_or_done_twice(tmp_path):
    config = {"replications": 3, "grid": {"seed": list(range(60)), "engine.window_size": [2, 8]}}
    BASE.save(tmp_path / "base.yaml")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": "base.yaml", **config}))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "simulator", "sweep", str(tmp_path / "sweep.yaml"), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(out.glob("scenarios/*.parquet"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("scenarios/*.parquet")}
    assert 5 <= len(before) < 120
    frame = sweep(load_sweep(tmp_path / "sweep.yaml"), out)
    assert len(frame) == 120 * 3
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    assert frame.equals(sweep(load_sweep(tmp_path / "sweep.yaml"), tmp_path / "fresh"))


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing", None])
def test_a_broken_file_of_a_finished_scenario_is_computed_anew(tmp_path, content):
    whole = sweep(grid((2, 4)), tmp_path)
    broken = sorted((tmp_path / "scenarios").glob("*.parquet"))[1]
    broken.write_bytes(broken.read_bytes()[:-100] if content is None else content)
    seen = []
    assert sweep(grid((2, 4)), tmp_path, progress=lambda *told: seen.append(told)).equals(whole)
    assert seen == [(4, 4)]


def test_another_sweep_leaves_the_scenarios_and_joins_its_own(tmp_path):
    sweep(grid((2, 4)), tmp_path)
    frame = sweep(grid((8,)), tmp_path)
    assert pd.read_parquet(tmp_path / "results.parquet").equals(frame)
    sweep(grid((2, 4, 8)), tmp_path, progress=lambda *_: pytest.fail("done twice"))


def test_the_paths_of_a_sweep_are_sought_beside_its_file(tmp_path):
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("tokens\n5\n")
    prompts, outputs = ({"kind": "file", "path": name, "column": "tokens"} for name in ("a.csv", "c.csv"))
    base = {"workload": {"prompt_tokens": prompts, "output_tokens": outputs}}
    data = {"base": base, "grid": {"workload.prompt_tokens.path": ["a.csv", "b.csv"]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(data))
    workloads = [task.scenario.workload for task in load_sweep(tmp_path / "sweep.yaml").tasks]
    assert [w.prompt_tokens["path"] for w in workloads] == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert {w.output_tokens["path"] for w in workloads} == {str(tmp_path / "c.csv")}


def test_latin_hypercube_fills_every_stratum():
    ranges = {"acceptance.probability": [0.5, 0.9], "engine.window_size": [2, 9]}
    spec = build_sweep(BASE, replications=1, latin={"samples": 8, "seed": 3, "ranges": ranges})
    values = sorted(task.settings["acceptance.probability"] for task in spec.tasks)
    assert [int((v - 0.5) / 0.05) for v in values] == list(range(8))
    assert sorted(task.settings["engine.window_size"] for task in spec.tasks) == list(range(2, 10))


def test_sobol_finds_what_matters(tmp_path):
    ranges = {"acceptance.probability": [0.1, 0.9], "workload.output_tokens.tokens": [11, 12]}
    spec = build_sweep(BASE, replications=1, sobol={"samples": 16, "ranges": ranges})
    frame = sweep(spec, tmp_path)
    indices = sobol_indices(spec, frame, "makespan_s")
    assert indices.loc["acceptance.probability", "total"] > 3 * indices.loc["workload.output_tokens.tokens", "total"]
    assert (sobol_indices(spec, frame, "warmup_s")["total"] == 0).all()  # it is the same at all points
    with pytest.raises(InputError, match="metric must be a column of the sweep that holds numbers, not 'origin'"):
        sobol_indices(spec, frame, "origin")


def test_sobol_indices_need_the_metric_at_every_point():
    """Without drafts there is no share of them that is accepted."""
    ranges = {"acceptance.probability": [0.1, 0.9], "engine.num_speculative_tokens": [0, 1]}
    spec = build_sweep(BASE, replications=1, sobol={"samples": 4, "ranges": ranges})
    frame = sweep(spec)
    without = sum(task.scenario.engine.num_speculative_tokens == 0 for task in spec.tasks)
    assert 0 < without < 16
    with pytest.raises(InputError, match=f"draft_acceptance_rate has no value at {without} of 16 points"):
        sobol_indices(spec, frame, "draft_acceptance_rate")


BAD = [  # what a sweep's file holds beside its base
    ("grid: {engine.windowsize: [1]}", "engine.windowsize: no such setting; allowed: batch_size"),
    ("grid: {engine.window_size: [1]}", "at engine.window_size=1: engine.window_size 1 is smaller"),
    ("grid: {engine.window_size: [1]}\nskip_invalid: true", "every point of the sweep is impossible"),
    ("grid: {seed: []}", "grid: every path needs a list of values"),
    ("grid: {seed: [3, 4, 3]}", "grid: seed has a value twice, whose runs would count twice"),
    ("grid: [seed]", r"grid must be a mapping, not \['seed'\]"),
    ("grid: {seed: [0]}\nskip_invalid: 'no'", "skip_invalid must be true or false, not 'no'"),
    ("grid: {seed: [0]}\nreplications: 2.5", "must be an integer ≥ 1, not 2.5"),
    ("replications: 2", "give exactly one of grid, latin, sobol"),
    ("gird: {}", r"unknown key gird; allowed: base, replications.* \(did you mean grid\?\)"),
    ("sobol: {samples: 10, ranges: {seed: [0, 9]}}", "sobol.samples must be a power of two"),
    ("sobol: {samples: 2, seed: -3, ranges: {seed: [0, 1]}}", "sobol.seed must be an integer"),
    ("sobol: {samples: 2, ranges: {seed: [1, 4]}}\nskip_invalid: true", "skip_invalid does not go with sobol"),
    ("latin: {samples: 2, ranges: {seed: [0, x]}}", r"latin\.ranges\.seed must be \[low, high\]"),
    ("latin: {sample: 2, ranges: {seed: [0, 1]}}", r"latin: unknown key sample; .* \(did you mean samples\?"),
    ("grid: {seed: [0", "not YAML: while parsing a flow sequence, .* line 2"),
    ("grid: \udcff", "cannot be read: it is not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_sweeps(tmp_path, text, message):
    BASE.save(tmp_path / "base.yaml")
    (tmp_path / "sweep.yaml").write_bytes(f"base: base.yaml\n{text}".encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message) as error:
        load_sweep(tmp_path / "sweep.yaml")
    assert str(error.value).startswith(f"{tmp_path / 'sweep.yaml'}: ")
    assert "\n" not in str(error.value)


def test_points_that_come_to_one_scenario_each_have_their_lines(tmp_path):
    first = build_sweep(BASE, replications=2, grid={"engine.scheduler": ["fifo", "static"]})
    sweep(first, tmp_path)
    second = build_sweep(BASE, replications=2, grid={"method": ["eqspec", "realigned+static"]})
    frame = sweep(second, tmp_path, progress=lambda done, all_: pytest.fail("simulated again"))
    assert list(frame["method"]) == ["eqspec"] * 2 + ["realigned+static"] * 2
    assert frame["key"].nunique() == 1
    assert "engine.scheduler" not in frame
    assert frame["tokens_per_s"][:2].tolist() == frame["tokens_per_s"][2:].tolist()


def test_a_point_that_is_drawn_twice_is_no_further_run():
    """Its lines, repeated, would narrow the interval over replications."""
    drawn = build_sweep(BASE, replications=2, latin={"samples": 8, "ranges": {"engine.batch_size": [1, 2]}})
    assert len(drawn.tasks) == 8
    points = table_of_points(sweep(drawn), "tokens_per_s").sort_index()
    each = sweep(build_sweep(BASE, replications=2, grid={"engine.batch_size": [1, 2]}))
    pd.testing.assert_frame_equal(points, table_of_points(each, "tokens_per_s"))


def test_a_grid_does_not_undo_what_a_method_fixes(tmp_path):
    grid = {"method": ["autoregressive", "speculative", "inplace"], "engine.batch_size": [1, 4]}
    with pytest.raises(InputError, match=r"at method=autoregressive, engine\.batch_size=4: engine\.batch_size: method"):
        build_sweep(BASE, grid=grid)
    spec = build_sweep(BASE, replications=1, grid=grid, skip_invalid=True)
    frame = sweep(spec, tmp_path)
    points = list(zip(frame["method"], frame["engine.batch_size"], strict=True))
    assert points == [("autoregressive", 1), ("speculative", 1), ("inplace", 1), ("inplace", 4)]
    assert len(spec.skipped) == 2
    assert frame["mean_acceptance_length"][0] == 1


def test_points_outside_of_the_measured_range_are_named_or_left_out(tmp_path, calibration):
    base = BASE.but(cost={"kind": "table", "calibration": str(calibration)})
    grid = {"engine.num_speculative_tokens": [2, 12, 4]}
    with pytest.raises(InputError, match=r"^at engine\.num_speculative_tokens=12: .*tokens_per_row 12 is outside"):
        sweep(build_sweep(base, replications=1, grid=grid), tmp_path)
    told = []
    frame = sweep(build_sweep(base, replications=1, grid=grid, skip_invalid=True), tmp_path, skip=told.append)
    assert list(frame["engine.num_speculative_tokens"]) == [2, 4]
    assert [reason.partition(":")[0] for reason in told] == ["at engine.num_speculative_tokens=12"]
    hopeless = build_sweep(base, replications=1, grid={"engine.num_speculative_tokens": [12]}, skip_invalid=True)
    with pytest.raises(InputError, match="every point of the sweep is impossible"):
        sweep(hopeless, tmp_path)


def test_a_calibration_that_says_something_else_of_itself_is_another_input(calibration):
    task = build_sweep(BASE.but(cost={"kind": "table", "calibration": str(calibration)}), grid={"seed": [0]}).tasks[0]
    before = task.key
    meta = json.loads((calibration / "meta.json").read_text())
    (calibration / "meta.json").write_text(json.dumps(meta | {"run_cv": 0.5}))
    assert task.key != before


def test_an_installed_package_of_another_version_is_other_code(monkeypatch):
    """It has no commit: a sweep in a folder that an older version has filled would be made of both."""
    task, found = build_sweep(BASE, grid={"seed": [0]}).tasks[0], set()
    monkeypatch.setattr(provenance, "commit", lambda: "unknown")
    for version in ("0.2.0", "0.3.0"):
        monkeypatch.setattr(provenance, "_versions", lambda names, version=version: ((names[0], version),))
        found.add(task.key)
    assert len(found) == 2
