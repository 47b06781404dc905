"""Overlapped execution, simulated: the engine's decisions, and seconds that follow by hand."""

import json

import pytest

from refimpl import Request, generate
from refimpl.core.errors import InputError
from refimpl.decoding.memory import pool_gib
from simulator.engine_runs.parity import check_parity, replay_scenario
from simulator.service.metrics import measure
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Switches, Workload
from simulator.settings.traces import read_engine_trace

BUDGETS = (3, 17, 1, 9, 24, 5, 12, 8)
DECISIONS = {
    "fixed": {},
    "sampled": {"temperature": 0.5},
    "goodput": {"draft_budget": "goodput:1=1.2/1.5/1.8"},
    "capacity": {"draft_budget": "capacity:4"},
    "confidence": {"draft_budget": "confidence:0.02"},
    "hybrid by load": {"drafter": "hybrid", "draft_budget": "by_load:2=2"},
}
COST = Spec.of(
    "linear", verify_base_s=8.0, verify_s_per_token=0.25, draft_base_s=2.0, draft_s_per_token=0.5, host_base_s=1.0
)


def traced(pair, path, **settings):
    """Eight requests with budgets of their own on up to five rows, whose cohorts shrink and grow."""
    prompts = [[(3 * j) % (3 + i) + 5 for j in range(4 + 2 * i)] for i in range(len(BUDGETS))]
    asked = [Request(p, max_new_tokens=n) for p, n in zip(prompts, BUDGETS, strict=True)]
    given = {"batch_size": 5, "num_speculative_tokens": 3, "stop_token_ids": [], "checks": "host"} | settings
    result = generate(pair, asked, execution="overlapped", **given)
    result.write_trace(path)
    return result


@pytest.mark.parametrize("method", ["inplace", "paged"])
@pytest.mark.parametrize("name", DECISIONS)
def test_a_run_is_replayed_without_a_difference(llama, tmp_path, name, method):
    path = tmp_path / "run.ndjson"
    result = traced(llama, path, method=method, **DECISIONS[name])
    parity = check_parity(path)
    assert parity.exact, parity.first_difference
    lines = simulate_once(replay_scenario(read_engine_trace(path))).log.rounds
    assert [line.passes for line in lines] == [record.rows[0].draft_passes for record in result.rounds]


def test_a_serial_replay_differs(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    traced(llama, path)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(header) | {"execution": "serial"}), *rows]) + "\n")
    assert not check_parity(path).exact


@pytest.mark.parametrize("budget", [{}, {"draft_budget": "goodput:1=1.2/1.5/1.8"}])
def test_preemptions_are_replayed_without_a_difference(llama, tmp_path, budget):
    """Also where drafts depend on what a row had accepted before it was sent back."""
    path = tmp_path / "run.ndjson"
    result = traced(llama, path, method="paged", block_size=2, kv_memory_gib=pool_gib(llama, 24, 2), **budget)
    assert result.stats.num_preemptions > 0
    parity = check_parity(path)
    assert parity.exact, parity.first_difference


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


def test_serial_execution_is_no_setting_of_its_own():
    assert Scenario().but({"engine.execution": "serial"}).content_hash == Scenario().content_hash
    overlapped = Scenario().but({"engine.execution": "overlapped"})
    assert len({each.content_hash for each in (Scenario(), overlapped, overlapped.but({"engine.contention": 1}))}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "exspec"},
            "execution 'overlapped' needs rows that stay where they are and run in turns: realigned",
        ),
        ({"switches.keep_bonus": False}, "switches.keep_bonus needs engine.execution serial"),
        ({"switches.pad_prompts": True}, "switches.pad_prompts needs engine.execution serial"),
        ({"engine.execution": "serial", "engine.contention": 0.5}, "contention has no effect without engine.execution"),
        ({"engine.contention": 2}, "contention must be"),
        ({"engine.execution": "both"}, "execution must be"),
    ],
)
def test_what_it_cannot_have(changes, message):
    with pytest.raises(InputError, match=message):
        Scenario().but({"engine.execution": "overlapped"} | changes)


@pytest.mark.parametrize(("wait_for_rows", "rows"), [(1, 1), (4, 2)])
def test_a_server_may_wait_for_rows(wait_for_rows, rows):
    """Half of those that have come run first."""
    scenario = Scenario(
        study=Study(kind="open", num_requests=9),
        engine=Engine(execution="overlapped"),
        switches=Switches(wait_for_rows=wait_for_rows, refill=False),
    )
    assert simulate_once(scenario).log.rounds[0].rows == rows
