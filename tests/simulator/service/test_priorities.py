"""Priorities of classes: who enters first and who is sent back, watched from outside in services of every kind."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import Request, generate
from refimpl.pairs.random_pairs import random_pair
from refimpl.scheduling import Scheduler, SequencePool
from simulator.engine_runs.parity import check_parity
from simulator.service.simulation import Simulation, simulate_once
from tests.simulator.scenarios import scenario

METHODS = ("paged+continuous", "paged+fifo", "paged+grouped", "inplace+fifo", "realigned+static", "masked+grouped")
FLEETS = {
    "one": {},
    "two": {"service.replicas": 2, "service.router": "least_loaded"},
    "failing": {"service.replicas": 2, "service.failures": {"kind": "times", "times_s": [1.0, 2.0], "repair_s": 0.5}},
    "split": {"service.pools": {"kind": "disaggregated", "prefill_replicas": 1, "bytes_per_s": 1e6}},
}


def service(method, fleet, priorities, *, tight=True):
    """Requests of several classes that come faster than they are served."""
    arrivals = {"kind": "poisson", "rate_per_s": 40.0}
    room = {"engine.num_blocks": 16} if method.startswith("paged") else {"service.kv_capacity_bytes": 7000.0}
    changes = {"method": method, "study": {"kind": "open", "num_requests": 40, "arrivals": arrivals}}
    changes |= {"workload.classes": [{"name": f"c{at}", "priority": p} for at, p in enumerate(priorities)]}
    return scenario(changes | {"cost.kv_bytes_per_token": 10.0} | FLEETS[fleet] | (room if tight else {}))


class Watched:
    """A run of which every admission and preemption is held against the order in which requests came to a replica."""

    def __init__(self, given):
        self.simulation, self.came, self.overtaken, self.sent_back = Simulation(given), {}, 0, 0
        classes = self.simulation.source.classes(np.arange(given.study.num_requests))
        self.priority = [given.workload.classes[place].priority for place in classes]
        submit, admit, preempt = SequencePool.submit, SequencePool.admit, Scheduler.preempt

        def submitted(pool, request):
            self.came[pool, request.sequence] = len(self.came)
            submit(pool, request)

        def admitted(pool, *arguments):
            entered = admit(pool, *arguments)
            self.note_entered(self.keys(pool, entered), self.keys(pool, pool.waiting))
            return entered

        def preempted(scheduler, request):
            pool = scheduler.pool
            self.sent_back += 1
            running = [each for each in pool.window.values() if not each.finished]
            assert self.keys(pool, [request]) == [max(self.keys(pool, running))]
            preempt(scheduler, request)

        changed = {"submit": submitted, "admit": admitted}
        with patch.multiple(SequencePool, **changed), patch.object(Scheduler, "preempt", preempted):
            self.log = self.simulation.run()

    def keys(self, pool, requests):
        """Priority of the class, and the place in the order in which they came."""
        return [(self.priority[each.sequence], self.came[pool, each.sequence]) for each in requests]

    def note_entered(self, entered, waiting):
        assert entered == sorted(entered)
        assert not entered or not waiting or max(entered) < min(waiting)
        self.overtaken += any(one[1] > other[1] for one in entered for other in waiting)


@given(
    st.sampled_from(METHODS), st.sampled_from([*FLEETS]), st.lists(st.integers(-1, 1), min_size=2, max_size=3),
    st.booleans(),
)  # fmt: skip
def test_the_most_urgent_that_waits_enters_and_the_least_urgent_that_runs_is_sent_back(
    method, fleet, priorities, tight
):
    """Of equal priority the first, and the last, that came to the replica; and every request is answered."""
    log = Watched(service(method, fleet, priorities, tight=tight)).log
    assert all(request.finished and request.generated == request.output_len for request in log.requests)


@pytest.mark.parametrize("fleet", FLEETS)
def test_requests_overtake_each_other_and_are_sent_back(fleet):
    """What the property says is not said of nothing."""
    found = Watched(service("paged+continuous", fleet, (1, 0, -1)))
    assert found.overtaken > 2
    assert found.sent_back == found.log.num_preemptions > 2


@given(st.sampled_from(METHODS), st.sampled_from([*FLEETS]), st.integers(-5, 5))
def test_equal_priorities_change_nothing(method, fleet, priority):
    equal, none = (simulate_once(service(method, fleet, priorities)).log for priorities in ((priority,) * 2, (0, 0)))
    assert equal.request_frame().equals(none.request_frame())
    assert equal.round_frame().equals(none.round_frame())


def test_the_engine_serves_in_that_order_and_a_replay_of_its_trace_too(tmp_path):
    priorities = (2, 0, 1, 0, -1)
    equal, urgent = (
        generate(random_pair("llama"), [Request([1, 2, at], priority=p) for at, p in enumerate(given)], batch_size=1)
        for given in ((0,) * 5, priorities)
    )
    begun = dict.fromkeys(row.sequence for record in urgent.rounds for row in record.rows)
    assert list(begun) == [4, 1, 3, 2, 0]
    assert [each.token_ids for each in urgent.sequences] == [each.token_ids for each in equal.sequences]
    urgent.write_trace(tmp_path / "run.ndjson")
    assert check_parity(tmp_path / "run.ndjson").exact
