"""Routing by prefix: conversations stay where their K/V are, and each replica's hit rate is its own."""

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.settings.scenario import Scenario

SESSIONS, PROMPT, OUTPUT, BLOCK = 5, 40, 24, 16
BASE = Scenario().but({
    "study": {"kind": "open", "num_requests": 60, "arrivals": {"kind": "fixed", "interval_s": 0.2}},
    "engine.layout": "paged", "engine.num_blocks": 2000, "engine.max_new_tokens": OUTPUT,
    "workload.prompt_tokens.tokens": PROMPT, "workload.output_tokens.tokens": OUTPUT,
    "workload.common": {"kind": "sessions", "sessions": SESSIONS, "turns": 4}, "service.replicas": 3,
})  # fmt: skip


def run(router, **changes):
    found = simulate(BASE.but({"service.router": router}, **changes), 1)
    requests = found.frame("requests")
    requests["turn"], requests["session"] = requests["request"] // SESSIONS % 4, requests["request"] % SESSIONS
    requests["conversation"] = requests["request"] // SESSIONS // 4 * SESSIONS + requests["session"]
    return found, requests


def hits(requests):
    """Tokens that each request finds: full blocks of the last turn that its replica served, all but its last token."""
    found, latest = [], {}
    for line in requests.itertuples():
        key = line.conversation, line.replica
        found.append(latest.get(key, 0) // BLOCK * BLOCK)
        latest[key] = line.prompt_tokens + OUTPUT - 1
    return np.array(found)


@pytest.mark.parametrize("router", ["round_robin", "by_prefix"])
def test_hit_rates_are_those_of_the_conversations_that_a_replica_has_served(router):
    found, requests = run(router)
    needed, known = requests["prompt_tokens"] - 1, hits(requests)
    assert found["cache_hit_rate"] == pytest.approx(known.sum() / needed.sum())
    for number in range(3):
        mine = requests["replica"] == number
        assert found[f"cache_hit_rate.{number}"] == pytest.approx(known[mine].sum() / needed[mine].sum())


def test_by_prefix_a_conversation_stays_and_a_new_one_goes_where_least_is_to_do():
    found, requests = run("by_prefix")
    assert (requests.groupby("conversation")["replica"].nunique() == 1).all()
    first = requests[requests["turn"] == 0]
    assert first["replica"].nunique() > 1
    for line in first.itertuples():
        others = requests[(requests["arrival_s"] < line.arrival_s) & (requests["finished_s"] > line.arrival_s)]
        work = [(others["prompt_tokens"] + OUTPUT)[others["replica"] == number].sum() for number in range(3)]
        assert work[line.replica] == min(work)
    assert found["cache_hit_rate"] > 1.3 * run("least_loaded")[0]["cache_hit_rate"]


def test_without_a_prefix_cache_nothing_can_be_routed_by():
    for changes in ({"engine.num_blocks": None}, {"engine.prefix_sharing": False}, {"engine.layout": "inplace"}):
        with pytest.raises(InputError, match=r"service\.router by_prefix needs a prefix cache"):
            BASE.but({"service.router": "by_prefix", **changes})
