"""Visits and runs that cannot be done: they are skipped, and the reason is said."""

import gc
import re
import weakref
from dataclasses import replace
from itertools import product

import pytest
import torch

from refimpl.calibrate.grid import MIXED, PACKED, VARIANTS, Axes, Cell
from refimpl.calibrate.passes import PassBench
from refimpl.calibrate.prompts import Piece
from refimpl.calibrate.run import Calibration, calibrate
from refimpl.calibrate.runs import Runner
from refimpl.calibrate.visits import Place, Visitor
from refimpl.core.errors import InputError
from refimpl.decoding.engine import Engine
from refimpl.generation import generate
from simulator.engine_runs.validation import validate
from simulator.settings.calibration import load_calibration
from tests.tiny_calibration import HELD_OUT, PLAN, PROMPTS, folder_of

SMALL = replace(
    PLAN,
    grids=(Axes((1, 2), (2,), (2, 40), (2, 24), 2),),
    studies=replace(PLAN.studies, held_out=(HELD_OUT[1], HELD_OUT[4])),
    repeats=1,
)
OUT_OF_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate much.")


def fail(monkeypatch, name, error, wanted):
    """Let visits (of a cell and a pass), or runs (of a study), raise `error` where `wanted` holds."""
    owner = {"visit": Visitor, "run": Runner}[name]
    work = getattr(owner, name)

    def work_or_fail(self, what, *rest):
        if wanted(what, rest[0]):
            raise error
        return work(self, what, *rest)

    monkeypatch.setattr(owner, name, work_or_fail)


@pytest.fixture
def measured(llama):
    return Calibration(llama, PROMPTS, PLAN, seed=0, minutes=None)


def test_an_error_that_is_neither_bad_input_nor_memory_ends_the_calibration(llama, tmp_path, monkeypatch):
    fail(monkeypatch, "visit", RuntimeError("shapes differ"), lambda cell, pass_index: True)
    with pytest.raises(RuntimeError, match="shapes differ"):
        calibrate(llama, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)


def test_visits_and_runs_that_cannot_be_done_are_skipped(llama, tmp_path, monkeypatch, capsys):
    longest = Cell(VARIANTS[0], 2, (2,), 40)
    fail(monkeypatch, "visit", OUT_OF_MEMORY, lambda cell, pass_index: cell == longest and pass_index < 2)
    unwanted = ("probe-eqspec", "exspec-0")
    fail(monkeypatch, "run", InputError("not this one"), lambda study, prompts: study.name in unwanted)
    calibrate(llama, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)
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


def test_a_cell_that_no_longer_fits_is_skipped_when_its_turn_comes(llama, measured, monkeypatch):
    cell = Cell(None, 2, (1,), 24)
    assert measured.fits_or_skip(cell)
    monkeypatch.setattr(llama.target, "max_positions", 30)
    measured._attempt(measured._visit_job(cell, 1))
    assert measured.visits == []
    (line,) = measured.skipped
    assert line.startswith("prefill of 2 rows of 24 tokens, pass 2: rows of ")
    assert line.endswith("tokens do not fit the context of 30")


@pytest.mark.parametrize("broken_pass", [0, 1])
def test_a_calibration_that_is_broken_off_writes_what_it_has_if_that_is_enough(
    llama, tmp_path, monkeypatch, broken_pass
):
    seen = []

    def wanted(cell, pass_index):
        seen.append(pass_index)
        return seen.count(broken_pass) == 20

    fail(monkeypatch, "visit", KeyboardInterrupt(), wanted)
    with pytest.raises(KeyboardInterrupt):
        calibrate(llama, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibration", "validation"][: 2 * broken_pass]
    if broken_pass == 1:
        assert load_calibration(str(folder_of(tmp_path, "calibration"))).grids


@pytest.mark.parametrize("packed", [True, False])
def test_a_calibration_of_skipped_visits_alone_is_refused(llama, tmp_path, monkeypatch, packed):
    """What was tried and failed is the reason, before what cannot fit."""
    fail(monkeypatch, "visit", OUT_OF_MEMORY, lambda cell, pass_index: True)
    if not packed:
        monkeypatch.setattr(llama.target, "forward_packed", None)
    with pytest.raises(InputError, match=r"too much was skipped, first warm-up of .* CUDA out of memory"):
        calibrate(llama, PROMPTS, tmp_path, pair_name="toy", plan=SMALL)
    assert not list(tmp_path.iterdir())


KINDS = {(v.rotating, v.passes, v.recorded): v for v in (*VARIANTS, *MIXED)}  # whose visits run other code


@pytest.mark.parametrize("variant", [*KINDS.values(), None], ids=lambda v: f"{v.method} {v.passes}" if v else "prefill")
def test_a_visit_leaves_no_pool_behind(measured, monkeypatch, variant):
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
def test_a_calibration_and_a_user_write_the_same_header(llama, measured, study):
    config = {"method": study.method, "batch_size": 2, "num_speculative_tokens": 2, "max_new_tokens": 10}
    config["token_budget"] = study.token_budget
    run = measured.runner.run(study, [Piece(str(i), ids) for i, ids in enumerate(PROMPTS[:6])], 5)
    header = generate(llama, PROMPTS[:6], max_prompt_tokens=20, seed=5, checks="host", **config).header
    assert run.header == header | {"reference_s": run.header["reference_s"], "documents": list("012345")}


def test_mixed_passes_are_timed_with_every_chunk(measured):
    cell = Cell(MIXED[0], 2, (0, 8), 16)
    assert measured.fits_or_skip(cell)
    assert [timed.kind[-1] for timed in measured.visitor.visit(cell, 1).rounds] == [8] * 5 + [0] * 5


def test_packed_passes_are_timed_in_turn_with_even_ones(measured, monkeypatch):
    fed = []
    for name in ("rectangle", "packed"):
        monkeypatch.setattr(PassBench, name, lambda self, counts, name=name: fed.append((name, counts)))
    seconds = {"rectangle": 1.0, "packed": 2.0}
    monkeypatch.setattr(PassBench, "stages", lambda self, run: (run(), seconds[fed[-1][0]]))
    rounds = measured.visitor.visit(Cell(PACKED, 4, (1, 3), 16), 1).rounds
    assert [timed.kind[-1] for timed in rounds] == [3] * 5 + [1] * 5
    three, one = ([("rectangle", [n] * 4), ("packed", [n - 1, n + 1] * 2)] for n in (3, 1))
    assert fed == three * 6 + one * 6  # the first of each is not timed
    found = {(timing.place, timing.seconds) for timed in rounds for timing in timed.timings}
    names = (("even", 1.0), ("packed", 2.0))
    assert found == {(Place(name, "any", 4, tokens, 16), each_s) for name, each_s in names for tokens in (1, 3)}


def test_cells_that_do_not_fit_are_named_with_the_reason(llama, measured, monkeypatch, capsys):
    """Of a target without packed passes there are neither mixed nor packed points, and meta.json says why."""
    monkeypatch.setattr(llama.target, "forward_packed", None)
    for name in ("_attempt", "_run_acceptance", "_do"):
        monkeypatch.setattr(measured, name, lambda *_: False)
    reason = f"the target of {llama.name} runs no packed passes"
    cells = [Cell(v, rows, (0, 12), start) for v, rows, start in product(MIXED, (1, 2), (0, 24))]
    cells += [Cell(PACKED, 2, (1, 3), context) for context in (2, 40)]
    expected = [f"{cell}: {reason}" for cell in cells]
    with pytest.raises(InputError, match=re.escape(f"too much was skipped, first {expected[0]}: ")):
        measured.measure()
    assert measured.skipped == expected
    assert capsys.readouterr().err.splitlines() == [f"skipped {line}" for line in expected]
