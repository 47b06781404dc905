"""Overlapped execution, simulated: seconds that follow by hand."""

import pytest

from simulator.service.metrics import measure
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Switches, Workload

COST = Spec.of(
    "linear", verify_base_s=8.0, verify_s_per_token=0.25, draft_base_s=2.0, draft_s_per_token=0.5, host_base_s=1.0
)


def scenario_of(**engine):
    """Two requests of three tokens: no draft is ever right."""
    return Scenario(
        study=Study(num_requests=2),
        workload=Workload(prompt_tokens=Spec.of("fixed", tokens=4), output_tokens=Spec.of("fixed", tokens=3)),
        engine=Engine(batch_size=2, num_speculative_tokens=1, max_new_tokens=3, **engine),
        acceptance=Spec.of("iid", probability=0.0),
        cost=COST,
        noise=False,
    )


def rounds_of(**engine):
    """Rounds of that scenario."""
    return simulate_once(scenario_of(**engine)).log.rounds


def test_seconds_by_hand():
    """Of one row: drafting 2.5 s, verifying 8.5 s with a draft and 8.25 s without, the host 1 s."""
    serial = [line[3:8] for line in rounds_of()]
    assert [sum(stages) for stages in serial] == [3 + 9 + 1, 3 + 9 + 1, 8.5 + 1]
    two_devices = [(line.draft_s, line.verify_s) for line in rounds_of(execution="overlapped")]
    assert two_devices == [(2.5, 8.5), (0, 8.5), (0, 8.5), (0, 8.5), (0, 8.25), (0, 8.25)]
    one_device = [(line.draft_s, line.verify_s) for line in rounds_of(execution="overlapped", contention=1.0)]
    assert one_device == [(4, 8.5), (1.5, 8.5), (1.5, 8.5), (0, 8.5), (0, 8.25), (0, 8.25)]
    assert [line.rows for line in rounds_of(execution="overlapped")] == [1] * 6


@pytest.mark.parametrize(("batch_size", "share"), [(2, 1), (4, 1 / 2), (3, 1 / 2)])
def test_a_full_cohort_occupies_all_that_it_can(batch_size, share):
    """Rounds of one row; a batch of four has cohorts of two, one of three a larger one of two."""
    made = scenario_of(execution="overlapped").but({"engine.batch_size": batch_size})
    assert measure(simulate_once(made))["occupancy"] == share


def test_a_slow_draft_is_what_a_round_waits_for():
    slow = Spec.of("linear", verify_base_s=1.0, draft_base_s=6.0, host_base_s=1.0)
    for contention, waited in ((0.0, 4.0), (0.5, 4.5), (1.0, 5.0)):
        scenario = Scenario(
            study=Study(num_requests=8),
            engine=Engine(batch_size=4, num_speculative_tokens=1, execution="overlapped", contention=contention),
            acceptance=Spec.of("iid", probability=0.0),
            cost=slow,
            noise=False,
        )
        assert simulate_once(scenario).log.rounds[1].draft_s == waited


@pytest.mark.parametrize(("wait_for_rows", "rows"), [(1, 1), (4, 2)])
def test_a_server_may_wait_for_rows(wait_for_rows, rows):
    """Half of those that have come run first."""
    scenario = Scenario(
        study=Study(kind="open", num_requests=9),
        engine=Engine(execution="overlapped"),
        switches=Switches(wait_for_rows=wait_for_rows, refill=False),
    )
    assert simulate_once(scenario).log.rounds[0].rows == rows
