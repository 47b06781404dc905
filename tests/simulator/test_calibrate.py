"""From the engine to the simulator and back: calibrate a random pair on a small grid, validate on its held-out runs."""

import gc
import json
import re
import weakref
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from refimpl.bench.passes import PassBench
from refimpl.calibrate.grid import MIXED, PACKED, VARIANTS, Axes, Cell, MixedAxes, PackedAxes
from refimpl.calibrate.prompts import Piece
from refimpl.calibrate.run import Calibration, Plan, calibrate
from refimpl.calibrate.runs import Runner, write_run
from refimpl.calibrate.studies import Studies, StudySettings
from refimpl.calibrate.visits import Place, Visitor
from refimpl.core.errors import InputError
from refimpl.decoding.engine import Engine
from refimpl.generation import generate
from refimpl.pairs.random_pairs import random_pair
from simulator.cli import main
from simulator.engine_runs.validation import META, WAITS, validate
from simulator.settings.calibration import META_FIELDS, load_calibration
from simulator.settings.traces import read_engine_trace

HELD_OUT = (
    StudySettings("eqspec", "eqspec", 2, 2, 6, 10, 20),
    StudySettings("exspec", "exspec", 2, 2, 8, 10, 20, window_size=6),
    StudySettings("masked-fifo", "masked+fifo", 2, 2, 6, 10, 20),
    StudySettings("rollback", "rollback", 3, 1, 6, 8, 20),
    StudySettings("inplace-grouped", "inplace+grouped", 2, 2, 6, 10, 20, window_size=5),
    StudySettings("paged-continuous", "paged+continuous", 2, 2, 6, 10, 20, token_budget=12),
)
AXES = Axes(
    (1, 2, 3), (0, 2), (2, 40), (2, 24), 2,
    MixedAxes((1, 2), (0, 12), (0, 24)), PackedAxes((2,), (1, 3), (2, 40)),
)  # fmt: skip
PLAN = Plan(
    (AXES,),
    Studies(
        StudySettings("acceptance", "inplace", 3, 2, 12, 10, 20),
        (StudySettings("probe-eqspec", "eqspec", 2, 2, 4, 8, 20),),
        HELD_OUT,
    ),
    passes=2,
    repeats=2,
)
PROMPTS = [[(7 * i + 3 * j) % 50 + 5 for j in range(3 + 5 * i % 29)] for i in range(80)]


@pytest.fixture(scope="module")
def pair():
    return random_pair("llama", draft_noise=0.01)


@pytest.fixture(scope="module")
def data(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    calibrate(pair, PROMPTS, folder, pair_name="toy", plan=PLAN, command="tests")
    return folder


def folder_of(data, kind):
    return data / kind / "cpu" / "toy"


def test_what_the_engine_writes_the_simulator_reads(data):
    calibration = load_calibration(str(folder_of(data, "calibration")))
    assert set(META_FIELDS) <= set(calibration.meta)
    assert calibration.meta["origin"] == "measured"
    components = {component for component, _ in calibration.grids}
    assert components >= {"prefill", "draft", "verify", "concat", "split", "compact", "host"}
    assert all((grid.mean_s > 0).all() for (name, _), grid in calibration.grids.items() if name != "draft_chunk")
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
    code = main(["validate", "--calibration", calibration, "--runs", str(runs), "-n", "3", "--write", "--json"])
    assert code == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(shown["runs"]) == len(found.table)
    assert {"drift_cv", "run_cv", "round_cv", "reference_cv", "coverage"} <= set(shown)
    assert (runs / "validation.csv").is_file()


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
    assert main(["validate", "--calibration", str(folder_of(data, "calibration")), "--runs", str(tmp_path)]) == 2
    assert f"meta.json: missing {field}" in capsys.readouterr().err


def test_a_calibration_of_another_pair_is_refused(data, tmp_path, capsys):
    runs = folder_of(data, "validation")
    meta = json.loads((runs / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"pair": "other"}))
    first = next(runs.glob("*.ndjson.gz"))
    (tmp_path / first.name).write_bytes(first.read_bytes())
    assert main(["validate", "--calibration", str(folder_of(data, "calibration")), "--runs", str(tmp_path)]) == 2
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
    with pytest.raises(InputError, match="at least 2 passes, not 1"):
        calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=PLAN, passes=1)
    assert not list(tmp_path.iterdir())


def test_when_the_time_is_up_the_finished_levels_are_written(pair, tmp_path, monkeypatch):
    fine = Axes((1, 2, 3), (0, 1, 2), (2, 40), (2, 24), 2)
    plan = replace(PLAN, grids=(*PLAN.grids, fine))
    measured = Calibration(pair, PROMPTS, plan, seed=0, minutes=None)
    done = measured._do
    monkeypatch.setattr(measured, "_do", lambda jobs, label: label != "pass 3/4" and done(jobs, label))
    measured.measure()
    places = {place.tokens_per_row for place in measured.points().executions if place.component == "draft"}
    assert places == {2}


# --- visits and runs that cannot be done -------------------------------------------------------------------------


SMALL = replace(
    PLAN,
    grids=(Axes((1, 2), (2,), (2, 40), (2, 24), 2),),
    studies=replace(PLAN.studies, held_out=(HELD_OUT[1], HELD_OUT[4])),
    repeats=1,
)
OUT_OF_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate much.")


def fail_visits(monkeypatch, error, wanted):
    """Let visits raise `error` where `wanted` holds of the cell and the pass."""
    visit = Visitor.visit

    def visit_or_fail(self, cell, pass_index):
        if wanted(cell, pass_index):
            raise error
        return visit(self, cell, pass_index)

    monkeypatch.setattr(Visitor, "visit", visit_or_fail)


def fail_runs(monkeypatch, error, names):
    """Let the runs of these studies raise `error`."""
    run = Runner.run

    def run_or_fail(self, study, prompts, seed):
        if study.name in names:
            raise error
        return run(self, study, prompts, seed)

    monkeypatch.setattr(Runner, "run", run_or_fail)


def test_visits_and_runs_that_cannot_be_done_are_skipped(pair, tmp_path, monkeypatch, capsys):
    longest = Cell(VARIANTS[0], 2, (2,), 40)
    fail_visits(monkeypatch, OUT_OF_MEMORY, lambda cell, pass_index: cell == longest and pass_index < 2)
    fail_runs(monkeypatch, InputError("not this one"), ("probe-eqspec", "exspec-0"))
    calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)
    folder, runs = str(folder_of(tmp_path, "calibration")), folder_of(tmp_path, "validation")
    calibration = load_calibration(folder)
    reason = "CUDA out of memory. Tried to allocate much."
    expected = [f"{longest}, pass {n}: {reason}" for n in (1, 2)]
    expected += ["probe-eqspec: not this one"] * 2 + ["exspec-0: not this one"]
    skipped = calibration.meta["skipped"]
    assert sorted(line for line in skipped if "warm-up" not in line) == sorted(expected)
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("skipped ")] == [f"skipped {line}" for line in skipped]
    assert (calibration.meta["cuda_graphs"], calibration.meta["run_cv"]) == (False, 0)
    assert set(calibration.meta["runs_again"]) <= {"inplace-grouped-0"}
    verify = calibration.grid("verify", "realigned")
    assert verify.outside(1, 3, 45) == ""
    assert "were not measured together" in verify.outside(2, 3, 45)
    assert [path.name for path in runs.glob("*.ndjson.gz")] == ["inplace-grouped-0.ndjson.gz"]
    assert len(validate(folder, runs, replications=2).table) == 1


def test_a_cell_that_no_longer_fits_is_skipped_when_its_turn_comes(pair, monkeypatch):
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
    cell = Cell(None, 2, (1,), 24)
    assert measured.fits_or_skip(cell)
    monkeypatch.setattr(pair.target, "max_positions", 30)
    measured._attempt(measured._visit_job(cell, 1))
    assert measured.visits == []
    (line,) = measured.skipped
    assert line.startswith("prefill of 2 rows of 24 tokens, pass 2: rows of ")
    assert line.endswith("tokens do not fit the context of 30")


@pytest.mark.parametrize("broken_pass", [0, 1])
def test_a_calibration_that_is_broken_off_writes_what_it_has_if_that_is_enough(
    pair, tmp_path, monkeypatch, broken_pass
):
    seen = []

    def wanted(cell, pass_index):
        seen.append(pass_index)
        return seen.count(broken_pass) == 20

    fail_visits(monkeypatch, KeyboardInterrupt(), wanted)
    with pytest.raises(KeyboardInterrupt):
        calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == (
        [] if broken_pass == 0 else ["calibration", "validation"]
    )
    if broken_pass == 1:
        assert load_calibration(str(folder_of(tmp_path, "calibration"))).grids


def test_a_calibration_of_skipped_visits_alone_is_refused(pair, tmp_path, monkeypatch):
    fail_visits(monkeypatch, OUT_OF_MEMORY, lambda cell, pass_index: True)
    with pytest.raises(InputError, match=r"too much was skipped, first .* CUDA out of memory.*no second pass"):
        calibrate(pair, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variant", [*VARIANTS, *MIXED, None], ids=lambda variant: variant.method if variant else "prefill"
)
def test_a_visit_leaves_no_pool_behind(pair, monkeypatch, variant):
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
    build, pools = Engine.__init__, []

    def watched(self, *arguments, **settings):
        build(self, *arguments, **settings)
        pools.extend(weakref.ref(layout.pool.data) for layout in self.layouts)

    monkeypatch.setattr(Engine, "__init__", watched)
    gc.collect()
    gc.disable()
    try:
        measured.visitor.visit(Cell(variant, 2, (0, 2), 24), 0)
        assert len(pools) == 2
        assert not any(pool() is not None for pool in pools)
    finally:
        gc.enable()


@pytest.mark.parametrize("study", HELD_OUT[::5], ids=lambda study: study.name)
def test_a_calibration_and_a_user_write_the_same_header(pair, study):
    config = {"method": study.method, "batch_size": 2, "num_speculative_tokens": 2, "max_new_tokens": 10}
    config["token_budget"] = study.token_budget
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
    run = measured.runner.run(study, [Piece(str(i), ids) for i, ids in enumerate(PROMPTS[:6])], 5)
    header = generate(pair, PROMPTS[:6], max_prompt_tokens=20, seed=5, checks="host", **config).header
    assert run.header == header | {"reference_s": run.header["reference_s"], "documents": list("012345")}


def test_mixed_passes_are_not_measured_where_the_target_runs_none(pair, monkeypatch):
    cell = Cell(MIXED[0], 2, (0, 8), 16)
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
    assert measured.fits_or_skip(cell)
    assert [timed.kind[-1] for timed in measured.visitor.visit(cell, 1).rounds] == [8] * 5 + [0] * 5
    monkeypatch.setattr(pair.target, "forward_packed", None)
    assert not measured.fits_or_skip(cell)


def test_packed_passes_are_timed_in_turn_with_even_ones(pair, monkeypatch):
    fed = []
    for name in ("rectangle", "packed"):
        monkeypatch.setattr(PassBench, name, lambda self, counts, name=name: fed.append((name, counts)))
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
    rounds = measured.visitor.visit(Cell(PACKED, 4, (1, 3), 16), 1).rounds
    assert [timed.kind[-1] for timed in rounds] == [3] * 5 + [1] * 5
    three, one = ([("rectangle", [n] * 4), ("packed", [n - 1, n + 1] * 2)] for n in (3, 1))
    assert fed == three * 6 + one * 6  # the first of each is not timed
    places = {timing.place for timed in rounds for timing in timed.timings}
    assert places == {Place(component, "any", 4, tokens, 16) for component in ("even", "packed") for tokens in (1, 3)}


def test_cells_that_do_not_fit_are_named_with_the_reason(pair, monkeypatch, capsys):
    """Of a target without packed passes there are neither mixed nor packed points, and meta.json says why."""
    monkeypatch.setattr(pair.target, "forward_packed", None)
    measured = Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None)
    for name in ("_attempt", "_run_acceptance", "_do"):
        monkeypatch.setattr(measured, name, lambda *_: False)
    reason = f"the target of {pair.name} runs no packed passes"
    cells = [Cell(v, rows, (0, 12), start) for v, rows, start in product(MIXED, (1, 2), (0, 24))]
    cells += [Cell(PACKED, 2, (1, 3), context) for context in (2, 40)]
    expected = [f"{cell}: {reason}" for cell in cells]
    with pytest.raises(InputError, match=re.escape(f"too much was skipped, first {expected[0]}: ")):
        measured.measure()
    assert measured.skipped == expected
    assert capsys.readouterr().err.splitlines() == [f"skipped {line}" for line in expected]


def test_what_was_tried_and_failed_is_the_reason_before_what_cannot_fit(pair, monkeypatch):
    fail_visits(monkeypatch, OUT_OF_MEMORY, lambda cell, pass_index: True)
    monkeypatch.setattr(pair.target, "forward_packed", None)
    with pytest.raises(InputError, match=r"too much was skipped, first warm-up of .* CUDA out of memory"):
        Calibration(pair, PROMPTS, PLAN, seed=0, minutes=None).measure()
