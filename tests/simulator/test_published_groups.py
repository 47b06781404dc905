"""Grouped rounds of the published code: by padded length, which each row grows by what it has kept."""

import os

import pytest

from simulator.runner import simulate
from simulator.service.records import Request
from simulator.service.schedulers import pad_rows
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Switches, Workload

SPEC_BENCH = os.environ.get("SPEC_BENCH", "")
ABSENT = "Spec-Bench is not at hand: set SPEC_BENCH to its question.jsonl"


def row(seq_len, padded_len, kept):
    """A request after a round in which it kept so much."""
    request = Request(0, (seq_len + kept, 99, 99), lambda tile: [0] * 64, lambda start, stop: 0, 0.0)
    request.padded_len, request.last_kept = padded_len, kept
    return request


def test_a_fallback_pads_to_its_longest_row_and_each_row_then_grows_by_its_own():
    rows = [row(10, 14, 1), row(12, 12, 3), row(7, 20, 3)]
    pad_rows(rows, "fallback")
    assert [each.padded_len for each in rows] == [12 + 1, 12 + 3, 12 + 3]


def test_a_group_keeps_its_common_padded_length():
    rows = [row(10, 14, 1), row(12, 14, 3)]
    pad_rows(rows, "grouped")
    assert [each.padded_len for each in rows] == [14 + 1, 14 + 3]


@pytest.mark.skipif(not SPEC_BENCH, reason=ABSENT)
@pytest.mark.parametrize(("batch_size", "low", "high"), [(2, 0.28, 0.40), (4, 0.03, 0.09), (8, 0.0, 0.012)])
def test_grouped_rounds_of_the_published_code_on_spec_bench(batch_size, low, high):
    """100 prompts, window 48, k = 5, no bonus; its log at batch 4 says 4.2 %."""
    scenario = Scenario(
        study=Study(num_requests=100),
        workload=Workload(Spec.of("spec_bench", path=SPEC_BENCH)),
        engine=Engine("realigned", "grouped", batch_size, 48, float("inf")),
        switches=Switches(group_key="padded_length", keep_bonus=False),
        acceptance=Spec.of("iid", probability=0.55),
    )
    share = simulate(scenario, 3, keep_frames=False)["grouping_rate"]
    print(f"batch {batch_size}: {100 * share:.1f} % of the rounds are grouped")
    assert low < share < high
