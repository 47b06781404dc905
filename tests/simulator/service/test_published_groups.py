"""Grouped rounds of the published code: by padded length, which each row grows by what it has kept."""

import pytest

from simulator.runner import simulate
from simulator.service.records import Request
from simulator.service.schedulers import pad_rows, scheduler_of
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Switches, Workload
from simulator.studies.published import (
    OLDEST_FIRST,
    OVERHEAD_PROMPTS,
    committed_lengths,
    load_constants,
    overhead_scenario,
)


def row(seq_len, padded_len, kept):
    """A request after a round in which it kept so much."""
    request = Request(0, (seq_len + kept, 99, 99), lambda index, tile: [0] * 64, lambda *span: 0, 0.0)
    request.padded_len, request.last_kept = padded_len, kept
    return request


@pytest.mark.parametrize(
    ("rows", "mode", "padded"),
    [
        ([(10, 14, 1), (12, 12, 3), (7, 20, 3)], "fallback", [12 + 1, 12 + 3, 12 + 3]),
        ([(10, 14, 1), (12, 14, 3)], "grouped", [14 + 1, 14 + 3]),
    ],
)
def test_a_fallback_pads_to_its_longest_row_a_group_keeps_its_length_and_each_row_grows_by_its_own(rows, mode, padded):
    members = [row(*each) for each in rows]
    pad_rows(members, mode)
    assert [each.padded_len for each in members] == padded


@pytest.mark.parametrize(("padded", "members"), [((10, 10, 12, 12), [10, 10]), ((10, 11, 12, 12), [12, 12])])
def test_rows_of_one_padded_length_run_together(padded, members):
    engine = {"batch_size": 2, "window_size": 4, "aging_bound": float("inf")}
    engine = Engine(layout="realigned", scheduler="grouped", **engine)
    scheduler = scheduler_of(engine, Switches(group_key="padded_length"))
    scheduler.submit([row(9, length, 0) for length in padded])
    scheduler.admit()
    plan, _ = scheduler.choose()
    assert ([member.padded_len for member in plan.members], plan.mode) == (members, "grouped")


def test_a_backlog_starves_those_that_have_begun():
    """Of a hundred that wait, full groups serve whoever fits; their own wait, counted from arrival, hides it."""
    exspec = overhead_scenario("exspec", 2, load_constants(), committed_lengths()[:OVERHEAD_PROMPTS])
    grouped, oldest = (simulate(exspec.but(change), 2, keep_frames=False) for change in ({}, OLDEST_FIRST))
    assert grouped["service_p90_s"] > 5 * oldest["service_p90_s"]
    assert grouped["latency_p90_s"] == pytest.approx(oldest["latency_p90_s"], rel=0.1)


@pytest.mark.parametrize(("batch_size", "low", "high"), [(2, 0.28, 0.40), (4, 0.03, 0.09), (8, 0.0, 0.012)])
def test_grouped_rounds_of_the_published_code_on_spec_bench(batch_size, low, high):
    """100 prompts, window 48, k = 5, no bonus; its log at batch 4 says 4.2 %."""
    engine = {"method": "exspec", "batch_size": batch_size, "window_size": 48, "aging_bound": float("inf")}
    scenario = Scenario(
        study=Study(num_requests=100),
        workload=Workload(Spec.of("values", tokens=committed_lengths()[:100])),
        engine=engine,
        switches=Switches(group_key="padded_length", keep_bonus=False),
        acceptance=Spec.of("iid", probability=0.55),
    )
    assert low < simulate(scenario, 3, keep_frames=False)["grouping_rate"] < high
