"""Passes with chunks of prompts beside rows that decode: what they cost, where they were measured and where not."""

from dataclasses import replace
from itertools import product

import pytest

from refimpl.calibrate.grid import MIXED_DRAFTS, MIXED_ROW_TOKENS
from refimpl.core.errors import InputError
from refimpl.scheduling.base import JOINT_TOKENS
from simulator.runner import simulate
from simulator.service.cost import MEASURED_ROW, Fed
from simulator.service.simulation import Simulation, simulate_once
from simulator.service.table_cost import UNMEASURED
from simulator.settings.scenario import Scenario
from tests.synthetic_inputs import synthetic_points, synthetic_seconds, write_calibration

PREFILL_S, DRAFT_S = 0.2e-3, 0.05e-3  # of a token of a prefill; of a chunk, in the draft's pass
TOKEN_S, START_S = 0.5e-3, 1e-6  # of a token of a chunk, in the verify pass; for each one before the chunk


def mixed_points(token_s=TOKEN_S, layout="any"):
    for rows, tokens, start in product((1, 8), (0, 32, 320), (0, 512)):
        seconds = 0.02 + 1e-3 * rows + tokens * (token_s + START_S * start)
        yield "mixed", layout, rows, tokens, start, 5, seconds, seconds, seconds, seconds
        yield "draft_chunk", layout, rows, tokens, start, 5, *[tokens * DRAFT_S] * 4


def scenario_of(calibration, **changes):
    engine = {"method": "inplace+continuous", "batch_size": 4, "max_new_tokens": 24, "token_budget": 40}
    base = Scenario(cost={"kind": "table", "calibration": str(calibration)}, engine=engine, noise=False)
    prompts = {"workload.prompt_tokens": {"kind": "uniform", "low_tokens": 8, "high_tokens": 90}}
    return base.but({"study.num_requests": 12, **prompts, **changes})


def beside(cost, rows, *chunks):
    """Chunks, each of so many tokens after so many, beside rows as they were measured."""
    assert Fed(1, MIXED_DRAFTS + 1, MIXED_ROW_TOKENS) == MEASURED_ROW
    return cost.beside(replace(MEASURED_ROW, rows=rows), [Fed(1, *chunk) for chunk in chunks])


@pytest.fixture
def measured(tmp_path):
    return write_calibration(tmp_path / "measured", points=[*synthetic_points(), *mixed_points()])


CHUNKS = [[(32, 0)], [(32, 100)], [(176, 0)], [(1, 0)], [(5, 30)], [(16, 0), (64, 100)], [(4, 0), (4, 0), (4, 200)]]


@pytest.mark.parametrize("jump_s", [(0.0, 0.0), (2e-3, 3e-3)])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_chunks_cost_what_a_pass_with_them_takes_more_than_one_without(tmp_path, chunks, jump_s):
    """Each its own tokens after its own start; once, what a chunk of any size adds to the pass of draft and target.

    The draft makes a pass for it, and the verify pass is packed.
    """
    added_s = dict(zip(("draft_chunk", "mixed"), jump_s, strict=True))
    points = [(*p[:6], *[seconds + added_s[p[0]] * (p[3] > 0) for seconds in p[6:]]) for p in mixed_points()]
    cost = Simulation(scenario_of(write_calibration(tmp_path / "c", points=[*synthetic_points(), *points]))).cost
    verify_s = sum(tokens * (TOKEN_S + start * START_S) for tokens, start in chunks)
    expected = (jump_s[0] + sum(tokens for tokens, _ in chunks) * DRAFT_S, jump_s[1] + verify_s)
    assert beside(cost, 3, *chunks) == pytest.approx(expected)
    assert not cost.extrapolated


def test_chunks_alone_are_prompts_of_as_many_rows(measured):
    """Two chunks of 60 tokens, a prefill of two rows of 60: a row of 120 tokens costs less, with these points."""
    prompts = {"workload.prompt_tokens": {"kind": "fixed", "tokens": 61}, "engine.token_budget": 120}
    first = simulate_once(scenario_of(measured, **prompts)).log.round_frame().iloc[0]
    assert (first["rows"], first["prefill_s"]) == (0, pytest.approx(synthetic_seconds("prefill", 2, 60, 0)))


def test_chunks_alone_pay_for_the_tokens_that_they_look_back_at(measured):
    cost = Simulation(scenario_of(measured)).cost
    first, later = Fed(1, 60, 0), Fed(1, 60, 100)
    for others in ([], [first], [first, first]):
        more_s = cost.prefill_s([later, *others]) - cost.prefill_s([first, *others])
        assert more_s == pytest.approx(60 * 100 * START_S)
    with pytest.raises(InputError, match="mixed: width_tokens 600 is outside 0 … 512"):
        cost.prefill_s([Fed(1, 60, 600)])


def test_tokens_before_a_prompt_of_which_nothing_was_measured_are_marked(calibration):
    """Whether found in the cache, or cached by chunks that had no rows beside them."""
    cost = Simulation(scenario_of(calibration)).cost
    assert cost.prefill_s([Fed(1, 60, 0)]) > 0
    assert not cost.extrapolated
    assert cost.prefill_s([Fed(1, 60, 100)]) == cost.prefill_s([Fed(1, 60, 0)])
    assert cost.extrapolated == {UNMEASURED}


def test_no_draft_is_paid_for_where_none_runs(measured):
    """A chunk costs the draft's pass, but with a lookup there is no draft."""
    drafted, looked_up = (
        simulate_once(scenario_of(measured, **changes)).log.round_frame()
        for changes in ({}, {"engine.drafter": "ngram"})
    )
    drafted_s, looked_up_s = (frame.loc[frame["rows"] > 0, "prefill_s"].sum() for frame in (drafted, looked_up))
    assert drafted_s > looked_up_s == 0


def test_rounds_pay_for_the_tokens_beside_their_rows(measured, tmp_path):
    free = write_calibration(tmp_path / "free", points=[*synthetic_points(), *mixed_points(0.0)])
    paid, unpaid = (simulate_once(scenario_of(folder), keep_rows=True).log for folder in (measured, free))
    rounds, others = paid.round_frame(), unpaid.round_frame()
    beside = sum(count for _, index, _, count in paid.chunks if rounds["rows"][index])
    alone = sum(count for _, index, _, count in paid.chunks if not rounds["rows"][index])
    assert beside > alone > 0
    assert rounds["verify_s"].sum() - others["verify_s"].sum() == pytest.approx(beside * TOKEN_S)
    assert rounds["prefill_s"].sum() == others["prefill_s"].sum() > beside * DRAFT_S + alone * PREFILL_S


def test_prompts_beside_drafts_are_paid_for_in_the_verify_pass(measured):
    """The draft's pass is a prefill; nothing else is, where the whole prompt joins, and no round is added."""
    prompts = {"workload.prompt_tokens": {"kind": "fixed", "tokens": 41}, "engine.scheduler": "fifo"}
    base = scenario_of(measured, **prompts, **{"engine.token_budget": None})
    joint, apart = (
        simulate_once(base.but({"engine.joint_prefill": joins}), keep_rows=True).log for joins in (True, False)
    )
    ours, others = joint.round_frame(), apart.round_frame()
    assert len(ours) == len(others)
    assert sum(count for *_, count in joint.chunks) == 12 * 40
    assert ours["prefill_s"].sum() == pytest.approx(12 * 40 * DRAFT_S)
    assert ours["verify_s"].sum() - others["verify_s"].sum() == pytest.approx(12 * 40 * TOKEN_S)


def test_of_a_long_prompt_that_joins_the_rest_is_paid_for_before_the_round(measured):
    """The rest of one prompt, and nothing of the other, which is shorter than what may share a pass."""
    lengths = {"workload.prompt_tokens": {"kind": "values", "tokens": [JOINT_TOKENS + 61, 41]}, "study.num_requests": 2}
    fifo = {"engine.scheduler": "fifo", "engine.token_budget": None, "engine.joint_prefill": True}
    simulation = simulate_once(
        scenario_of(measured, **lengths, **fifo, **{"cost.outside": "extrapolate"}), keep_rows=True
    )
    assert [count for *_, count in simulation.log.chunks] == [JOINT_TOKENS, 40]
    alone_s = simulation.cost.prefill_s([Fed(1, 60, 0)])
    drafted_s = (JOINT_TOKENS + 40) * DRAFT_S
    assert simulation.log.round_frame()["prefill_s"].sum() == pytest.approx(alone_s + drafted_s)


def test_prompts_that_enter_together_are_paid_for_in_batches_as_the_engine_feeds_them(measured):
    """A row of which all joins has its place in a batch, so the rests of the two others are fed apart."""
    lengths = [41, JOINT_TOKENS + 61, 41, JOINT_TOKENS + 61]
    grouped = {"engine.scheduler": "grouped", "engine.batch_size": 2, "engine.window_size": 4}
    joint = {"engine.token_budget": None, "engine.joint_prefill": True, "cost.outside": "extrapolate"}
    prompts = {"workload.prompt_tokens": {"kind": "values", "tokens": lengths}, "study.num_requests": 4}
    simulation, fed = Simulation(scenario_of(measured, **grouped, **joint, **prompts)), []
    prefill_s = simulation.cost.prefill_s

    def noted(rows, **how):
        fed.append([row.tokens for row in rows])
        return prefill_s(rows, **how)

    simulation.cost.prefill_s = noted
    simulation.run()
    assert fed[:2] == [[0, 60], [0, 60]]


@pytest.mark.parametrize("layout", ["inplace", "paged", "masked", "rollback"])
def test_points_of_blocks_are_of_blocks_alone(tmp_path, layout):
    points = [*synthetic_points(), *mixed_points(), *mixed_points(2 * TOKEN_S, "paged")]
    calibration = write_calibration(tmp_path / "both", points=points)
    cost = Simulation(scenario_of(calibration, **{"engine.layout": layout})).cost
    assert beside(cost, 2, (32, 0))[1] == pytest.approx(32 * TOKEN_S * (2 if layout == "paged" else 1))


def test_what_was_not_measured_is_computed_and_marked(calibration):
    """From prefills, whose points know no tokens before the chunk."""
    assert beside(Simulation(scenario_of(calibration)).cost, 3, (33, 100)) == pytest.approx((0, 32 * PREFILL_S))
    assert simulate(scenario_of(calibration), 1).extrapolated == (UNMEASURED,)
    assert simulate(scenario_of(calibration, **{"engine.scheduler": "fifo"}), 1).extrapolated == ()


BEYOND = [(9, [(32, 0)], "size 9"), (2, [(321, 0)], "per_row 321"), (3, [(200, 0)] * 2, "400"), (2, [(32, 600)], "600")]


@pytest.mark.parametrize(("rows", "chunks", "words"), BEYOND)
def test_beyond_the_points_it_is_refused_or_marked(measured, rows, chunks, words):
    with pytest.raises(InputError, match=f"mixed: .*{words}"):
        beside(Simulation(scenario_of(measured)).cost, rows, *chunks)
    further = Simulation(scenario_of(measured, **{"cost.outside": "extrapolate"})).cost
    assert beside(further, rows, *chunks)[0] == pytest.approx(sum(tokens for tokens, _ in chunks) * DRAFT_S)
    assert further.extrapolated
