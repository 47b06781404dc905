"""KVAllocator, limits, switches of scheduling, and routing to replicas."""

import numpy as np
import pytest

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.errors import InputError
from simulator.runner import simulate
from tests.simulator.scenarios import scenario


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


def test_goodput_counts_what_meets_the_limits():
    results = simulate(scenario(service={"slo_first_token_s": 1e9, "slo_per_token_s": 1e-9}), 1)
    assert results["goodput_per_s"] == 0
    assert simulate(scenario(), 1)["goodput_per_s"] == simulate(scenario(), 1)["requests_per_s"]


@pytest.mark.parametrize("name", ["sort_prompts", "largest_group"])
def test_scheduling_switches_change_decisions_not_tokens(name):
    base = scenario({"engine.scheduler": "grouped", "engine.window_size": 24})
    changed = {
        "sort_prompts": {"workload.sort_prompts": True},
        "largest_group": {"switches.serve_first": "largest_group"},
    }[name]
    a, b = simulate(base, 1), simulate(base.but(changed), 1)
    assert a["completed"] == b["completed"] == 40
    assert not a.frame("rounds")["mode"].equals(b.frame("rounds")["mode"]) or a["makespan_s"] != b["makespan_s"]
    if name == "largest_group":
        assert b["grouping_rate"] > a["grouping_rate"]


def test_host_reads_are_paid_by_realignment_not_by_groups():
    base = scenario(
        {
            "engine.scheduler": "grouped",
            "engine.window_size": 24,
            "workload.prompt_tokens": {"kind": "fixed", "tokens": 9},
        }
    )
    quiet = base.but(noise=False)
    rounds, dear = (simulate(s, 1).frame("rounds") for s in (quiet, quiet.but({"switches.realign_read_s": 1e-3})))
    reads_s = (6 * rounds["rows"] + 2) * 32 * 1e-3
    moved = (rounds["realign_s"] > 0) & (rounds["mode"] != "grouped")
    assert moved.any()
    assert (rounds["mode"] == "grouped").any()
    assert np.allclose(dear["realign_s"] - rounds["realign_s"], np.where(moved, reads_s, 0.0))


def test_waiting_for_rows_fills_batches():
    arrivals = {"kind": "poisson", "rate_per_s": 2.0}
    base = scenario({"engine.scheduler": "fifo"}, study={"kind": "open", "num_requests": 100, "arrivals": arrivals})
    patient = base.but(switches={"wait_for_rows": 4, "wait_at_most_s": 2.0})
    assert simulate(patient, 1)["occupancy"] > simulate(base, 1)["occupancy"]
    assert simulate(patient, 1)["completed"] == 100


@pytest.mark.parametrize("tokens", [[10, 20], [10, 20, 30, 40]])
def test_routing_by_length_gives_each_replica_its_share_of_the_lengths(tokens):
    made = scenario({"workload.prompt_tokens": {"kind": "values", "tokens": tokens}})
    shared = made.but(service={"replicas": len(tokens), "router": "by_length"})
    requests = simulate(shared, 1).frame("requests").drop_duplicates("prompt_tokens")
    assert requests.set_index("prompt_tokens")["replica"].to_dict() == {n: i for i, n in enumerate(tokens)}


def test_routing_by_length_looks_at_no_request_that_never_comes():
    """The fifth prompt would be shorter than the system prompt."""
    made = scenario(
        {"workload.prompt_tokens": {"kind": "values", "tokens": [10, 20, 10, 20, 4]}, "study.num_requests": 4}
    )
    common = {"workload.common": {"kind": "system_prompt", "tokens": 8}}
    requests = simulate(made.but(common).but(service={"replicas": 2, "router": "by_length"}), 1).frame("requests")
    assert requests["replica"].tolist() == [0, 1, 0, 1]
