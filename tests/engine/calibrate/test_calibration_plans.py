"""What a calibration plans to measure, which prompts serve for what, and what is made of the executions."""

import random
from dataclasses import replace
from itertools import pairwise

import pandas as pd
import pytest

from refimpl.bench.reference import Reference, uninterrupted
from refimpl.calibrate.grid import CPU, CUDA, cells_of, levels_of
from refimpl.calibrate.points import Points
from refimpl.calibrate.prompts import Piece, PromptSupply, token_prompts
from refimpl.calibrate.run import FORCED_PROBABILITY, Plan, default_plan
from refimpl.calibrate.studies import CPU as CPU_STUDIES
from refimpl.calibrate.studies import CUDA as CUDA_STUDIES
from refimpl.calibrate.visits import Place, TimedRound, Timing, Visit
from refimpl.commands.calibrate import name_of
from refimpl.core.config import make_config, resolve_method
from refimpl.core.errors import InputError
from simulator.settings.grids import AXES, make_grid


@pytest.mark.parametrize("seed", range(20))
def test_held_out_runs_have_other_documents_than_what_calibrates(seed):
    pieces = [Piece(f"module{i * i % 7}", [i]) for i in range(40)]
    supply = PromptSupply(pieces, fitted=8, held_out=15, rng=random.Random(seed))
    dealt = {fit: {piece.document for piece in supply.deal(40, fitted=fit)} for fit in (True, False)}
    assert all(dealt.values())
    assert not dealt[True] & dealt[False]
    once = PromptSupply([Piece(str(i), [i]) for i in range(20)], fitted=8, held_out=12, rng=random.Random(seed))
    pieces = once.deal(5, fitted=True) + once.deal(3, fitted=True) + once.deal(12, fitted=False)
    assert sorted(piece.ids for piece in pieces) == [[i] for i in range(20)]  # a large pile deals every prompt once
    large = PromptSupply([Piece(f"{i % 2}", [i]) for i in range(40)], fitted=4, held_out=35, rng=random.Random(seed))
    assert len({piece.document for piece in large.deal(30, fitted=True)}) == 1  # though either holds more than asked


def test_the_bundled_pairs_pieces_suffice_for_every_run(tiny):
    """And each side has several documents, so that the error of the fit can be told."""
    pieces = token_prompts(tiny, None, random.Random(0))
    fitted, held_out = Plan(CPU, CPU_STUDIES, passes=5, repeats=6).prompts_needed
    supply = PromptSupply(pieces, fitted, held_out, random.Random(0))
    dealt = {fit: supply.deal(count, fitted=fit) for fit, count in ((True, fitted), (False, held_out))}
    assert not {p.document for p in dealt[True]} & {p.document for p in dealt[False]}
    assert all(len({id(p) for p in found}) == len(found) for found in dealt.values())
    assert all(len({p.document for p in found}) >= 5 for found in dealt.values())


def test_prompts_of_a_single_document_are_refused():
    with pytest.raises(InputError, match="at least two documents"):
        PromptSupply([Piece("one", [i]) for i in range(40)], 4, 4, random.Random(0))


@pytest.mark.parametrize("grids", [CPU, CUDA], ids=["cpu", "cuda"])
def test_levels_share_no_cell_and_end_with_the_whole_grid(grids):
    cells = [
        (cell.variant, cell.batch_size, cell.prompt_len, k)
        for level in levels_of(grids)
        for cell in level
        for k in cell.drafts
    ]
    assert len(cells) == len(set(cells))
    parts = {
        "": ("batch_sizes", "drafts", "prompt_lens", "prefill_lens"),
        "mixed": ("batch_sizes", "chunk_tokens", "starts"), "packed": ("batch_sizes", "tokens", "contexts"),
    }  # fmt: skip
    for coarse, fine in pairwise(grids):
        for part, names in parts.items():
            for name in names:
                less, more = (getattr(getattr(axes, part) if part else axes, name) for axes in (coarse, fine))
                assert set(less) <= set(more), (part, name)
    for axes in grids:  # half of the rows of a packed pass feed more than the mean
        assert min(axes.packed.tokens) == 1
        assert not [rows for rows in axes.packed.batch_sizes if rows % 2]


@pytest.mark.parametrize(("grids", "studies"), [(CPU, CPU_STUDIES), (CUDA[:1], CUDA_STUDIES)], ids=["cpu", "cuda"])
def test_every_study_lies_within_the_coarsest_grid_that_is_written(grids, studies):
    axes = grids[0]
    for study in (*studies.probes, *studies.held_out, studies.acceptance):
        assert study.batch_size <= max(axes.batch_sizes)
        assert study.num_speculative_tokens <= max(axes.drafts)
        assert study.max_prompt_tokens <= max(axes.prefill_lens)
        longest = (study.max_prompt_tokens + study.max_new_tokens) / (0.75 if "masked" in study.method else 1)
        assert longest + 2 * study.num_speculative_tokens + 2 <= max(axes.prompt_lens)
        if resolve_method(study.method).scheduler == "continuous":
            given = {"token_budget": study.token_budget, "num_speculative_tokens": study.num_speculative_tokens}
            budget = make_config(method=study.method, batch_size=study.batch_size, **given).resolved_token_budget
            assert study.batch_size <= max(axes.mixed.batch_sizes)
            assert budget <= max(axes.mixed.chunk_tokens)
            assert study.max_prompt_tokens <= max(axes.mixed.starts)
        assert study.batch_size <= max(axes.packed.batch_sizes)
        assert study.num_speculative_tokens <= max(axes.packed.tokens)


def test_held_out_studies_have_batch_sizes_or_k_that_were_not_measured():
    for study in CPU_STUDIES.held_out:
        axes = CPU[0]
        between = study.batch_size not in axes.batch_sizes or study.num_speculative_tokens not in axes.drafts
        assert between, study.name


# --- what is made of the executions ------------------------------------------------------------------------------


def visit(pass_index, seconds, place):
    kind = ("variant", place.batch_size, place.prompt_len, 0)
    rounds = [TimedRound(kind, s, s, (Timing(place, s, 4),)) for s in seconds]
    return Visit(pass_index, 0.0, 1.0, tuple(rounds))


class SteadyReference:
    mean_s = 1.0

    def __init__(self, speed=1.0):
        self.speed = speed

    def near(self, begun_s, ended_s):
        return self.speed


VERIFY = Place("verify", "inplace", 2, 4, 10)


def test_points_are_means_at_reference_speed_without_interruptions():
    points = Points([visit(0, [2.0, 2.2, 90.0], VERIFY), visit(1, [1.8], VERIFY)], SteadyReference(2.0))
    (line,) = points.lines()
    assert float(line["mean_s"]) == pytest.approx(1.0)
    assert (line["width_tokens"], line["repeats"], points.num_interrupted) == (14, 3, 1)


def test_a_slow_stage_counts_unless_its_round_was_interrupted():
    host = replace(VERIFY, component="host")
    kind = ("variant", 2, 10, 3)
    stages = [(1.0, 0.01), (1.0, 0.01), (1.0, 0.2), (9.0, 0.01)]
    rounds = [TimedRound(kind, v + h, v, (Timing(VERIFY, v), Timing(host, h))) for v, h in stages]
    points = Points([Visit(0, 0.0, 1.0, tuple(rounds))], SteadyReference())
    means = {line["component"]: float(line["mean_s"]) for line in points.lines()}
    assert means == {"host": pytest.approx(0.22 / 3), "verify": pytest.approx(1.0)}
    assert points.num_interrupted == 1


def test_drift_and_jitter_are_what_was_put_in():
    draft = replace(VERIFY, component="draft")
    visits = [visit(p, [s], place) for p, s in ((0, 0.9), (1, 1.1)) for place in (VERIFY, draft)]
    drift_cv, component_cv = Points(visits, SteadyReference()).drift()
    assert drift_cv == pytest.approx(0.2 / 2**0.5)
    assert component_cv == {"draft": 0, "verify": 0}
    noisy = [visit(0, [0.9, 1.1], VERIFY), visit(1, [1.8, 2.2], VERIFY)]
    assert Points(noisy, SteadyReference()).round_cv() == pytest.approx(0.2 / 2**0.5)


def test_batch_sizes_with_holes_are_left_out_but_not_the_far_corner():
    def at(rows, length):
        return visit(0, [1.0], Place("realign", "realigned", rows, 0, length))

    holed = Points([at(1, 2), at(2, 2), at(2, 40), at(3, 2), at(3, 40)], SteadyReference())
    assert {line["batch_size"] for line in holed.lines()} == {2, 3}
    corner = Points([at(1, 2), at(1, 40), at(2, 2)], SteadyReference())
    assert len(corner.lines()) == 3


def test_missing_points_at_the_far_corner_count_as_outside():
    lines = [(rows, 4, width, rows + width) for rows in (1, 2) for width in (10, 60, 110)][:-1]
    grid = make_grid(pd.DataFrame(lines, columns=[*AXES, "mean_s"]), "points.csv: verify (inplace)")
    assert grid.outside(1, 4, 100) == ""
    assert "were not measured together" in grid.outside(1.5, 4, 100)
    assert grid.line(2, 4, [100.0])[0] >= grid.line(2, 4, [10.0])[0]


def test_interruptions_are_left_out():
    assert uninterrupted([1.0, 1.1, 0.9, 300.0]) == [1.0, 1.1, 0.9]
    assert uninterrupted([1.0, 2.0, 3.9]) == [1.0, 2.0, 3.9]


def test_a_mixed_visit_caches_its_rows_and_a_prompt():
    visits = [cell for cell in cells_of(CPU[0]) if cell.variant and cell.variant.passes == "mixed"]
    assert {(cell.batch_size, cell.num_sequences) for cell in visits} == {(1, 2), (4, 5), (8, 9)}


def test_a_reference_pass_has_its_rows_though_they_would_stop(llama):
    """As models do that answer what is no text with the end of it."""
    reference = Reference(replace(llama, stop_token_ids=frozenset(range(llama.vocab_size))), [*range(1, 9)], "device")
    assert reference.time() > 0


@pytest.mark.parametrize(
    ("target", "name"), [("org/name", "name"), ("a/b/", "b"), ("a/b/..", "a"), (".", "here"), ("../here", "here")]
)
def test_a_calibration_is_named_after_its_targets_folder(tmp_path, monkeypatch, target, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert name_of(target) == name


def test_forced_acceptance_holds_out_no_run_that_cannot_be_replayed(tiny):
    """Models without a tokenizer are of random weights: their acceptance is forced."""
    natural, forced = (default_plan(replace(tiny, tokenizer=tokenizer)) for tokenizer in (tiny.tokenizer, None))
    assert "rollback" in {study.method for study in natural.studies.held_out}
    left = tuple(study for study in natural.studies.held_out if study.method != "rollback")
    assert forced.studies == replace(natural.studies, held_out=left)
    assert (natural.forced_probability, forced.forced_probability) == (None, FORCED_PROBABILITY)
