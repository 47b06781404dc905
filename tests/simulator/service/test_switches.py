"""K/V capacity, limits, switches of scheduling, and routing to replicas."""

import numpy as np
import pytest

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.errors import InputError
from simulator.runner import simulate
from tests.simulator.scenarios import scenario

GROUPED = {"engine.scheduler": "grouped", "engine.window_size": 24}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kv_capacity_limits_admission(layout, scheduler):
    cost = {"kind": "linear", "verify_base_s": 0.02, "kv_bytes_per_token": 10.0}
    free = scenario({"engine.scheduler": scheduler, "engine.layout": layout}, cost=cost)
    tight = free.but({"service.kv_capacity_bytes": 250 * 10.0 if layout in ("inplace", "paged") else 700 * 10.0})
    capacity = tight.service.kv_capacity_bytes
    assert simulate(free, 1)["kv_peak_bytes"] > capacity >= simulate(tight, 1)["kv_peak_bytes"]
    assert simulate(tight, 1)["completed"] == 40
    with pytest.raises(InputError, match=r"holds (50|48) tokens; a request needs"):
        simulate(free.but({"service.kv_capacity_bytes": 500.0}), 1)


def test_sorted_prompts_begin_with_the_shortest():
    requests = simulate(scenario({"engine.scheduler": "fifo", "workload.sort_prompts": True}), 1).frame("requests")
    in_turn = requests.sort_values(["admitted_s", "prompt_tokens"])["prompt_tokens"]
    assert in_turn.is_monotonic_increasing
    assert in_turn.nunique() > 10


@pytest.mark.parametrize("setting", ["realign_read_s", "copy_launch_s"])
def test_reads_are_paid_by_realignment_not_by_groups_and_launches_by_every_round(setting):
    base = scenario(GROUPED | {"workload.prompt_tokens": {"kind": "fixed", "tokens": 9}}).but(noise=False)
    rounds, dear = (simulate(s, 1).frame("rounds") for s in (base, base.but({f"switches.{setting}": 1e-3})))
    grouped, rows = rounds["mode"] == "grouped", rounds["rows"]
    moved = (rounds["realign_s"] > 0) & ~grouped
    reads, launches = np.where(moved, 6 * rows + 2, 0), np.where(grouped, 2, 2 * rows + 2) + rows
    counts = {"realign_read_s": reads, "copy_launch_s": launches}[setting]
    assert moved.any()
    assert grouped.any()
    assert np.allclose(dear["realign_s"] - rounds["realign_s"], counts * 32 * 1e-3)


def test_waiting_for_rows_fills_batches():
    arrivals = {"kind": "poisson", "rate_per_s": 2.0}
    base = scenario({"engine.scheduler": "fifo"}, study={"kind": "open", "num_requests": 100, "arrivals": arrivals})
    patient = simulate(base.but(switches={"wait_for_rows": 4, "wait_at_most_s": 2.0}), 1)
    assert patient["occupancy"] > simulate(base, 1)["occupancy"]
    assert patient["completed"] == 100


SPLIT = [  # lengths of prompts in turn, of a system prompt, requests, replicas, the replicas that they come to
    ([10, 20], 0, 40, 2, [0, 1] * 20),
    ([10, 20, 30, 40], 0, 40, 4, [0, 1, 2, 3] * 10),
    ([10, 20, 10, 20, 4], 8, 4, 2, [0, 1, 0, 1]),  # the fifth would be shorter than the system prompt, and never comes
    ([64], 0, 64, 4, None),
    ([16, 16, 16, 512], 0, 64, 4, None),
    ([16, 32, 64, 128], 0, 64, 4, None),
]


@pytest.mark.parametrize(("tokens", "common", "count", "replicas", "expected"), SPLIT)
def test_routing_by_length_gives_each_replica_its_share_of_the_lengths(tokens, common, count, replicas, expected):
    """Lengths that are alike are shared among several."""
    made = scenario({"workload.prompt_tokens": {"kind": "values", "tokens": tokens}, "study.num_requests": count})
    changes = {"workload.common": {"kind": "system_prompt", "tokens": common}} if common else {}
    found = simulate(made.but(changes).but(service={"replicas": replicas, "router": "by_length"}), 1).frame("requests")
    if expected:
        prompts = dict(zip(tokens, expected, strict=False))
        assert found["replica"].tolist() == [prompts[tokens] for tokens in found["prompt_tokens"]]
    counts = found["replica"].value_counts()
    assert len(counts) == replicas
    assert counts.min() >= (8 if count == 64 else 1)
