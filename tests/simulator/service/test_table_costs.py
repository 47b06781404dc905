"""What a table of costs says beside its points: of few drafts, short prompts, and rows that feed unlike tokens."""

import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.cost import Fed
from simulator.service.simulation import Simulation, simulate_once
from simulator.settings.scenario import Scenario
from tests.synthetic_inputs import synthetic_points, write_calibration

PACKING_S, PER_ROW_S = 2e-3, 0.5e-3


def scenario_of(calibration, **changes):
    """Three rows in static batches, which end at different lengths: the rows that have finished feed nothing."""
    engine = {"method": "eqspec", "batch_size": 3, "num_speculative_tokens": 4, "max_new_tokens": 24}
    lengths = {"workload.output_tokens": {"kind": "uniform", "low_tokens": 6, "high_tokens": 24}}
    base = Scenario(cost={"kind": "table", "calibration": str(calibration)}, engine=engine, noise=False)
    return base.but({"study.num_requests": 9, **lengths, **changes})


def cost_of(folder, points):
    """Costs of these points."""
    return Simulation(scenario_of(write_calibration(folder, points=points))).cost


def points(packing_s=PACKING_S, per_row_s=PER_ROW_S):
    """Packed passes that take so much longer than even ones."""
    for point in synthetic_points():
        more_s = packing_s + per_row_s * point[2] if point[0] == "packed" else 0.0
        yield (*point[:6], *[seconds + more_s for seconds in point[6:]])


@pytest.fixture
def measured(tmp_path):
    return write_calibration(tmp_path / "measured", points=points())


def test_packing_costs_what_a_packed_pass_takes_more_than_an_even_one(measured):
    cost = Simulation(scenario_of(measured)).cost
    for rows, tokens, width in ((2, 1.0, 8), (3, 2.5, 100), (8, 7.25, 512)):
        assert cost.packing_s(rows, tokens, width) == pytest.approx(PACKING_S + PER_ROW_S * rows)
    assert not cost.extrapolated


def test_beyond_the_points_it_is_that_of_the_nearest(measured):
    """The even pass itself is held against its points, and refused or marked."""
    cost = Simulation(scenario_of(measured)).cost
    assert cost.packing_s(12, 20.0, 4000) == pytest.approx(cost.packing_s(8, 9.0, 512))


def test_packing_is_never_a_gain(tmp_path):
    assert cost_of(tmp_path / "noise", points(-5e-3, 0.0)).packing_s(4, 2.0, 50) == 0


def test_rounds_pay_for_packing_where_rows_feed_too_little_for_a_rectangle(measured, calibration):
    """Rounds of three rows of which at most 11 of 15 tokens are real, and no others."""
    paid, free = (simulate_once(scenario_of(folder), keep_rows=True).log for folder in (measured, calibration))
    rounds, others = paid.round_frame(), free.round_frame()
    fed = paid.row_frame().assign(fed=lambda rows: rows["drafted"] + 1).groupby("round")["fed"].sum()
    packed = fed <= 0.75 * 3 * (rounds["k"] + 1)
    more_s = rounds["verify_s"] - others["verify_s"]
    assert more_s[packed].to_numpy() == pytest.approx(PACKING_S + 3 * PER_ROW_S)
    assert packed.any()
    assert not packed.all()
    assert (more_s[~packed] == 0).all()


def test_pads_that_are_fed_need_no_packing(measured, calibration):
    padded = {"switches": {"pad_prompts": True}}
    paid, free = (simulate_once(scenario_of(folder, **padded)).log.round_frame() for folder in (measured, calibration))
    assert (paid["verify_s"] == free["verify_s"]).all()


@pytest.mark.parametrize("missing", ["packed", "even"])
def test_without_both_packing_is_free(tmp_path, calibration, missing):
    unmeasured = write_calibration(tmp_path / "none", points=[p for p in points() if p[0] != missing])
    known, unknown = (simulate(scenario_of(folder), 1) for folder in (calibration, unmeasured))
    assert known["makespan_s"] == pytest.approx(unknown["makespan_s"])


def test_drafts_of_one_k_are_so_many_passes(tmp_path):
    """Fewer take less in proportion, and more are refused; where several k were measured, nothing is added."""
    several = cost_of(tmp_path / "several", synthetic_points())
    most = max(tokens for component, _, _, tokens, *_ in synthetic_points() if component == "draft")
    one = cost_of(tmp_path / "one", [p for p in synthetic_points() if p[0] != "draft" or p[3] == most])
    whole = several.line("draft", 2, most)[100]
    for k in (1, most - 1, most):
        assert one.line("draft", 2, k)[100] == pytest.approx(whole * k / most)
    assert one.line("draft", 2, 0)[100] == 0
    with pytest.raises(InputError, match=f"draft: tokens_per_row {most + 1} is outside 0 … {most}"):
        one.line("draft", 2, most + 1)[100]


def test_a_prompt_shorter_than_the_shortest_measured_costs_as_much(tmp_path):
    cost = cost_of(tmp_path, [p for p in synthetic_points() if p[0] != "prefill" or p[3] >= 16])
    least = min(tokens for component, _, _, tokens, *_ in synthetic_points() if component == "prefill" and tokens >= 16)
    assert cost.prefill_s([Fed(1, 2, 0)]) == cost.prefill_s([Fed(1, least, 0)])
    assert cost.prefill_s([Fed(1, least, 0)]) < cost.prefill_s([Fed(1, 2 * least, 0)])
    assert not cost.extrapolated
