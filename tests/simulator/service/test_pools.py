"""Prompts cached by one pool and decoded by another: seconds by hand, what is paid for, and what is refused."""

import re

import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.cost import Fed
from simulator.service.roofline import RooflineCost
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario

LINK = {"kind": "disaggregated", "prefill_replicas": 2, "bytes_per_s": 1e9, "latency_s": 0.25}
PAIR = {"kind": "roofline", "device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"}
ONE = Scenario().but({
    "study.num_requests": 1, "workload.prompt_tokens.tokens": 801, "engine.max_new_tokens": 1, "engine.layout": "paged",
    "cost": PAIR, "noise": False, "service.cost_per_hour": 2.0,
})  # fmt: skip


@pytest.mark.parametrize("draft", ["transferred", "recomputed"])
@pytest.mark.parametrize("scheduler", ["fifo", "continuous"])
def test_the_first_token_waits_for_prompt_transfer_and_round(draft, scheduler):
    """Of 801 tokens 800 are cached; a request of one token drafts none."""
    pools = {"engine.scheduler": scheduler, "engine.token_budget": 4000, "service.pools": LINK | {"draft": draft}}
    found = simulate(ONE.but(pools), 1)
    spec = Spec.of(**PAIR)
    both, target = (RooflineCost(spec, None, runs_draft=runs) for runs in (True, False))
    prompt, again = [Fed(1, 800, 0)], draft == "recomputed"
    sender = target if again else both
    seconds = sender.prefill_s(prompt) + 0.25 + 800 * sender.kv_bytes_per_token / 1e9
    seconds += both.catch_up_s(prompt) if again else 0.0
    assert target.kv_bytes_per_token < both.kv_bytes_per_token
    assert found["first_token_mean_s"] == pytest.approx(seconds + both.point("verify", 1, 1, 800))
    assert found["queueing_mean_s"] == 0
    assert (found["completed"], found["tokens_per_round"], found["occupancy"]) == (1, 1, 1 / 8)


def test_every_replica_of_both_pools_is_paid_and_busy_in_its_own_share():
    many = ONE.but({"study.num_requests": 40, "engine.max_new_tokens": 20, "service": {"replicas": 3, "pools": LINK}})
    found = simulate(many.but({"service.cost_per_hour": 2.0}), 1)
    rounds, requests, end_s = found.frame("rounds"), found.frame("requests"), found["makespan_s"]
    paid = 5 * 2.0 * end_s / 3600 / requests["generated_tokens"].sum() * 1e6
    assert found["cost_per_million_tokens"] == pytest.approx(paid)
    busy_s = rounds["round_s"].groupby(rounds["mode"] == "prefill").sum()
    assert found["busy_share.prefill"] == pytest.approx(busy_s[True] / 2 / end_s)
    assert found["busy_share.decode"] == pytest.approx(busy_s[False] / 3 / end_s)
    assert found["busy_share"] == pytest.approx(busy_s.sum() / 5 / end_s)
    assert set(requests["replica"]) == {0, 1, 2}
    assert set(rounds["replica"][rounds["mode"] == "prefill"]) == {3, 4}


def test_prompts_share_what_their_pool_has_cached_and_nothing_is_found_behind_it():
    """The second request of each prefill replica finds the system prompt."""
    common = {"workload.common": {"kind": "system_prompt", "tokens": 800}, "service.pools": LINK}
    arrivals = {"kind": "open", "num_requests": 4, "arrivals": {"kind": "fixed", "interval_s": 9.0}}
    found = simulate(ONE.but(common, study=arrivals), 1)
    assert [found[f"cache_hit_rate.{number}"] for number in (1, 2)] == [0.5, 0.5]
    assert found["cache_hit_rate"] == 0.5


def test_a_request_that_loses_its_blocks_is_prefilled_where_it_decodes():
    """The youngest of three rows in a small pool is sent back, and its text fed again by the replica that decodes."""
    crowded = {
        "study.num_requests": 3, "engine.num_blocks": 100, "engine.max_new_tokens": 300, "engine.prefix_sharing": False,
        "workload.output_tokens.tokens": 300, "workload.prompt_tokens.tokens": 401, "service.pools": LINK,
    }  # fmt: skip
    found = simulate(ONE.but(crowded), 1)
    rounds = found.frame("rounds")
    assert found["preemptions"] > 0
    assert (rounds["prefill_s"][rounds["replica"] == 0] > 0).sum() == found["preemptions"]
    assert found["completed"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cost": {"kind": "linear", "verify_base_s": 1.0}}, "service.pools needs the bytes of a token: give cost.kv"),
        ({"switches.wait_for_rows": 2}, "switches.wait_for_rows is of servers that keep their requests: leave"),
        ({"service.pools": {"kind": "disaggregated"}}, "service.pools.prefill_replicas is missing: disaggregated"),
    ],
)  # fmt: skip
def test_what_two_pools_need(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        ONE.but({"service.pools": LINK, **changes})
