"""Metrics in seconds: where waits, gaps and chunks begin and end."""

import numpy as np
import pytest

from simulator.runner import simulate
from simulator.service.metrics import measure
from simulator.service.records import RoundLine, Stages
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from tests.simulator.scenarios import PLAIN, fixed


def test_the_round_that_runs_when_the_clock_stops_counts_as_far_as_it_has_come():
    """One request at 1 s, rounds of 1 s, stopped at 3.5 s: 6 and 7 slots are in use, 7 still in the half round."""
    study = Study(kind="open", num_requests=1, duration_s=3.5, arrivals=Spec.of("fixed", interval_s=1.0))
    cost = Spec.of("linear", verify_base_s=0.75, host_base_s=0.25, kv_bytes_per_token=2.0)
    found = simulate(Scenario(study=study, workload=fixed(5, 10), engine=PLAIN, cost=cost), 1)
    assert found["rounds"] == 2
    assert found["busy_share"] == pytest.approx(2.5 / 3.5)
    assert (found["verify_share"], found["host_share"]) == (pytest.approx(0.75), pytest.approx(0.25))
    assert found["kv_mean_bytes"] == pytest.approx(2.0 * (6 + 7 + 7 * 0.5) / 3.5)


def test_queueing_lasts_from_arrival_to_the_first_round():
    """Two requests, one row at a time from a window of two: the second is admitted at once and begins 3 s later."""
    engine = Engine(scheduler="grouped", batch_size=1, window_size=2, num_speculative_tokens=0, aging_bound=100)
    cost = Spec.of("linear", verify_base_s=1.0)
    scenario = Scenario(study=Study(num_requests=2), workload=fixed(5, 3), engine=engine, cost=cost)
    found = simulate(scenario, 1)
    assert found["queueing_mean_s"] == pytest.approx((0 + 3) / 2)
    assert found["longest_gap_s"] == 0
    assert found["grouping_rate"] == 0  # a row alone is no group


CHUNKED = Engine(scheduler="continuous", batch_size=2, num_speculative_tokens=0, token_budget=10)


def chunked(*prompts, **study):
    """Prompts in chunks of ten tokens, rounds of 1 s, one token each."""
    workload = Workload(Spec.of("values", tokens=list(prompts)), Spec.of("fixed", tokens=1))
    cost = Spec.of("linear", verify_base_s=1.0, prefill_base_s=1.0)
    return Scenario(study=Study(num_requests=len(prompts), **study), workload=workload, engine=CHUNKED, cost=cost)


def test_a_request_begins_with_the_first_chunk_of_its_prompt():
    assert simulate(chunked(101), 1)["queueing_mean_s"] == 0
    found = simulate(chunked(101, 2), 1)
    assert found["queueing_mean_s"] == (0 + 10) / 2
    assert found["longest_wait_rounds"] == 10


def test_preempted_requests_began_when_they_first_did():
    pool = {"engine.layout": "paged", "engine.block_size": 2, "engine.num_blocks": 16, "engine.token_budget": None}
    pool |= {"engine.max_new_tokens": 12, "engine.batch_size": 4}
    made = chunked(9, 9, 9, 9).but({**pool, "workload.output_tokens.tokens": 12})
    found = simulate(made, 1)
    requests, rounds = found.frame("requests"), found.frame("rounds")
    assert found["preemptions"] > 0
    assert requests["begun_s"].tolist() == [rounds["start_s"][0]] * 3 + [requests["begun_s"][3]]


def test_a_round_that_is_cut_has_begun():
    """The first request runs from 4 to 9 s; the second, come at 8 s, begins at 9 s, and the clock stops before 10 s."""
    study = Study(kind="open", duration_s=9.5, arrivals=Spec.of("fixed", interval_s=4.0))
    engine = Engine(batch_size=1, num_speculative_tokens=0)
    cost = Spec.of("linear", verify_base_s=1.0)
    found = simulate(Scenario(study=study, workload=fixed(5, 5), engine=engine, cost=cost), 1)
    assert found["rounds"] == 5
    assert found["queueing_mean_s"] == (0 + 1) / 2


def passed_over():
    """Two rows at a time of three, rounds of 1 s: an equal pair, then whoever was passed over once, see the tests."""
    workload = Workload(Spec.of("values", tokens=[3, 5, 5]), Spec.of("values", tokens=[2, 3, 3]))
    engine = Engine(scheduler="grouped", batch_size=2, window_size=3, num_speculative_tokens=0, aging_bound=1)
    cost = Spec.of("linear", verify_base_s=1.0)
    return Scenario(study=Study(num_requests=3), workload=workload, engine=engine, cost=cost)


def test_the_longest_gap_is_the_time_between_two_rounds_of_a_request():
    simulation = simulate_once(passed_over(), keep_rows=True)
    assert [line.mode for line in simulation.log.rounds] == ["grouped", "aged", "aged", "aged"]
    assert simulation.log.row_frame()["sequence"].tolist() == [1, 2, 0, 1, 0, 2, 1, 2]
    assert measure(simulation)["longest_gap_s"] == 1.0
    assert measure(simulate_once(passed_over().but({"engine.aging_bound": np.inf})))["longest_gap_s"] == 0.0


def overloaded(changes):
    """More work than two rows can do, of a window that holds more."""
    scenario = Scenario(
        study=Study(kind="open", num_requests=150, arrivals=Spec.of("poisson", rate_per_s=2.0)),
        workload=Workload(Spec.of("uniform", low_tokens=16, high_tokens=256), Spec.of("geometric", mean_tokens=100)),
        engine=Engine(layout="realigned", scheduler="grouped", batch_size=2, window_size=8, aging_bound=8),
        acceptance=Spec.of("beta", a=4.0, b=2.0),
        cost=Spec.of(
            "linear", verify_base_s=0.025, draft_base_s=0.003, realign_base_s=0.01, concat_base_s=0.008,
            split_base_s=0.004,
        ),
    )  # fmt: skip
    return scenario.but(changes)


def test_aging_bounds_gaps_at_little_cost_in_seconds():
    """Without aging a request may wait in the middle for long."""
    cases = {"now": {}, "none": {"engine.aging_bound": np.inf}}
    found = {name: simulate(overloaded(changes), 3, keep_frames=False) for name, changes in cases.items()}
    p99 = {name: result["latency_p99_s"] for name, result in found.items()}
    assert p99["now"] < 1.2 * p99["none"]
    assert found["now"]["longest_gap_s"] < 0.2 * found["none"]["longest_gap_s"]
    default = simulate(overloaded({"engine.aging_bound": None}), 3, keep_frames=False)
    assert default["latency_p99_s"] < 1.05 * p99["none"]
    assert default["longest_gap_s"] < 0.5 * found["none"]["longest_gap_s"]


def test_places_in_a_line_are_those_of_its_fields():
    assert RoundLine._fields[3:8] == Stages._fields
