"""Recorded rounds on the simulator's clock: decided as the engine decides them, priced for every row and k drafts."""

import json
import random
from dataclasses import replace

import pytest

from refimpl.bench.reference import Reference
from refimpl.calibrate import visits
from refimpl.calibrate.grid import IN_PLACE, Cell, cells_of
from refimpl.calibrate.grid import RECORDED as RECORDED_VARIANT
from refimpl.calibrate.visits import round_timings
from refimpl.core.errors import InputError
from refimpl.decoding.trace import RoundRecord
from simulator.engine_runs.latency import predict
from simulator.runner import simulate
from simulator.service.simulation import simulate_once
from simulator.settings.calibration import RECORDED
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario
from simulator.settings.traces import read_engine_trace
from tests.synthetic_inputs import synthetic_points, write_calibration
from tests.tiny_calibration import AXES
from tests.traced_runs import traced

SETTINGS = {"layout": "inplace", "scheduler": "static", "batch_size": 4, "num_speculative_tokens": 3}


def scenario_of(**changes):
    """Two batches of four whose rows end at different times; a pass of one row costs as much as one of all."""
    lengths = {"workload.output_tokens": {"kind": "uniform", "low_tokens": 3, "high_tokens": 20}}
    base = Scenario(engine=SETTINGS | {"max_new_tokens": 20, "cuda_graphs": True}, noise=False)
    return base.but({"study.num_requests": 8, **lengths, **changes})


@pytest.mark.parametrize("scheduler", ["static", "fifo"])
def test_every_row_of_the_batch_is_paid_for_in_every_round(scheduler):
    """And k drafts of it: with costs by token, all rounds take equally long; not so where they are not recorded.

    Rows that have ended stay in a static batch, and leave places of `fifo` empty at the end.
    """
    prices = {"kind": "linear", "verify_base_s": 0.01, "verify_s_per_token": 1e-3, "draft_s_per_token": 1e-3}

    def seconds(*, recorded):
        made = scenario_of(**{"cost": prices, "engine.cuda_graphs": recorded, "engine.scheduler": scheduler})
        rounds = simulate_once(made).log.round_frame()
        return {round(s, 9) for s in rounds["verify_s"] + rounds["draft_s"]}

    assert seconds(recorded=True) == {round(0.01 + 4 * 4 * 1e-3 + 4 * 3 * 1e-3, 9)}
    assert len(seconds(recorded=False)) > 1


def test_a_pool_has_no_more_rows_than_requests():
    """Of an engine that is given them all at once; one that serves has a whole batch from the start."""
    prices = {"kind": "linear", "verify_base_s": 0.01, "verify_s_per_token": 1e-3}
    served = {"study": {"kind": "open", "num_requests": 2, "arrivals": {"kind": "poisson", "rate_per_s": 1.0}}}
    for study, rows in (({"study.num_requests": 2}, 2), (served, 4)):
        rounds = simulate_once(scenario_of(cost=prices, **study)).log.round_frame()
        assert set(rounds["verify_s"][rounds["k"] > 0].round(9)) == {round(0.01 + rows * 4 * 1e-3, 9)}


def test_points_of_other_rounds_do_not_stand_in(tmp_path):
    unlike = ("draft", "verify", "host")
    points = [(name, "inplace" if name in unlike else "any", *rest) for name, _, *rest in synthetic_points()]
    quick = [(p[0], RECORDED, *p[2:6], *(seconds / 4 for seconds in p[6:])) for p in points if p[0] in unlike]
    plain, both = (write_calibration(tmp_path / str(len(each)), points=each) for each in (points, [*points, *quick]))

    def run(folder, **changes):
        return simulate(scenario_of(cost={"kind": "table", "calibration": str(folder)}, **changes), 1)

    with pytest.raises(InputError, match=r"no points of \w+ for layout inplace_recorded"):
        run(plain)
    stages = run(both).frame("rounds")[["draft_s", "verify_s", "host_s"]].iloc[0]
    slow = run(both, **{"engine.cuda_graphs": False}).frame("rounds")[["draft_s", "verify_s", "host_s"]].iloc[0]
    assert (4 * stages / slow).to_numpy() == pytest.approx(1, rel=0.02), "a quarter of the unrecorded ones"


def test_seconds_of_recording_are_no_part_of_a_round(llama, tmp_path):
    """They are spent once, and what a run costs is told without them; waits contain them, and are not compared."""
    path = tmp_path / "run.ndjson"
    traced(llama, path, method="inplace", cuda_graphs=True)
    header, *lines = map(json.loads, path.read_text().splitlines())
    before = read_engine_trace(path).rounds["round_s"].to_numpy()
    late = [line | {"record_s": line["record_s"] + 2.0, "round_s": line["round_s"] + 2.0} for line in lines]
    (tmp_path / "late.ndjson").write_text("\n".join(map(json.dumps, [header, *late])) + "\n")
    assert read_engine_trace(tmp_path / "late.ndjson").rounds["round_s"].to_numpy() == pytest.approx(before)
    with pytest.raises(InputError, match=r"run\.ndjson:1: requests waited while rounds were recorded"):
        predict(read_engine_trace(path), Spec.of("linear", verify_base_s=0.01), 1)


def test_recorded_rounds_have_points_of_their_own():
    stages = {"prefill_s": 0.0, "draft_s": 1.0, "verify_s": 2.0, "realign_s": 0.5, "host_s": 4.0, "round_s": 7.5}
    cell, record = Cell(RECORDED_VARIANT, 4, (3,), 100), RoundRecord(0, "fifo", (), stages, 0)
    found = {timing.place.component: timing for timing in round_timings(cell, RECORDED_VARIANT, 3, record, 0.0)}
    assert {timing.place.layout for timing in found.values()} == {RECORDED}
    assert {name: timing.seconds for name, timing in found.items()} == {"draft": 1.0, "verify": 2.0, "host": 4.5}
    recorded = [cell for cell in cells_of(AXES) if cell.variant == RECORDED_VARIANT]
    assert len(recorded) == len(AXES.batch_sizes) * len(AXES.prompt_lens)
    assert "recorded inplace+fifo of 1 rows" in str(recorded[0])
    assert not [cell for cell in cells_of(replace(AXES, recorded=False)) if cell.variant == RECORDED_VARIANT]


def test_a_recorded_cell_has_an_engine_for_each_k(llama, monkeypatch):
    """What is recorded drafts its own k; rounds that are not recorded change theirs from round to round."""
    configs, made = [], visits.Engine
    monkeypatch.setattr(visits, "Engine", lambda pair, rows, config: configs.append(config) or made(pair, rows, config))
    stream = [5 + i % 40 for i in range(200)]
    visitor = visits.Visitor(llama, stream, Reference(llama, stream[:8], "host"), random.Random(0), "host", ())
    for variant in (RECORDED_VARIANT, IN_PLACE):
        visit = visitor.visit(Cell(variant, 2, (0, 2), 10), 0)
        assert len(visit.rounds) == 2 * visits.TIMED_ROUNDS
    found = [(config.cuda_graphs, config.num_speculative_tokens) for config in configs]
    assert found == [(True, 0), (True, 2), (False, 2)]
