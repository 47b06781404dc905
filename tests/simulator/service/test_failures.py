"""Replicas that fail, come and go: no token is lost or made twice, and what is there is what is paid for."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.metrics import measure
from simulator.service.simulation import Simulation, simulate_once
from simulator.settings.scenario import Scenario
from tests.simulator.scenarios import engines

COUNT = 25
BASE = Scenario().but({
    "study": {"kind": "open", "num_requests": COUNT, "arrivals": {"kind": "poisson", "rate_per_s": 20.0}},
    "workload.prompt_tokens": {"kind": "uniform", "low_tokens": 1, "high_tokens": 40},
    "workload.output_tokens": {"kind": "geometric", "mean_tokens": 12},
    "cost": {
        "kind": "linear", "verify_base_s": 0.02, "draft_base_s": 0.002, "prefill_base_s": 0.01,
        "prefill_s_per_token": 0.001, "kv_bytes_per_token": 1e3, "noise_cv": 0.1,
    },
    "service.cost_per_hour": 3600.0,
})  # fmt: skip
times = st.lists(st.floats(0, 3), min_size=1, max_size=8).map(sorted)
failures = st.one_of(
    st.builds(dict, kind=st.just("times"), times_s=times, repair_s=st.sampled_from([0.0, 0.3])),
    st.builds(dict, kind=st.just("random"), mean_between_s=st.sampled_from([0.4, 1.5]), repair_s=st.just(0.2)),
    st.just({"kind": "none"}),
)
split = st.builds(
    dict, kind=st.just("disaggregated"), prefill_replicas=st.integers(1, 2), bytes_per_s=st.sampled_from([1e5, 1e9]),
    latency_s=st.sampled_from([0.0, 0.2]), draft=st.sampled_from(["transferred", "recomputed"]),
)  # fmt: skip
steps = {"most_replicas": st.just(4), "every_s": st.sampled_from([0.1, 0.5]), "delay_s": st.sampled_from([0.0, 0.3])}
scaling = st.one_of(
    st.just({"kind": "fixed"}),
    st.builds(dict, kind=st.just("queue"), requests=st.sampled_from([2, 5]), **steps),
    st.builds(dict, kind=st.just("utilisation"), target=st.sampled_from([0.3, 0.9]), **steps),
)
services = st.builds(
    dict, replicas=st.integers(1, 3), router=st.sampled_from(["round_robin", "least_loaded", "by_length"]),
    pools=st.one_of(st.just({"kind": "colocated"}), split), failures=failures, scaling=scaling,
)  # fmt: skip


@given(engines, services, st.booleans(), st.integers(0, 3))
def test_no_token_is_lost_or_made_twice(engine, service, paged, seed):
    """Whatever fails and whenever: each request gets its whole output once, and nothing of it stays in any cache."""
    blocks = {"layout": "paged", "num_blocks": 12, "block_size": 16} if paged else {}
    made = BASE.but({"service": service, "seed": seed, "study.duration_s": 300.0})
    simulation = simulate_once(replace(made, engine=replace(engine, **blocks)), keep_rows=True)
    log, calm = simulation.log, simulate_once(replace(BASE, engine=replace(engine, **blocks), seed=seed)).log
    rounds, rows = log.round_frame(), log.row_frame()
    rows = rows.merge(rounds.assign(round=rounds.groupby("replica").cumcount())[["replica", "round", "start_s"]])
    each = {sequence: list(own.itertuples()) for sequence, own in rows.sort_values("start_s").groupby("sequence")}
    for request, undisturbed in zip(log.requests, calm.requests, strict=True):
        assert request.finished
        assert request.generated == request.output_len == undisturbed.output_len
        starts = [row.seq_len for row in each[request.sequence]]
        ends = [row.seq_len + row.kept for row in each[request.sequence]]
        assert [request.prompt_len, *ends] == [*starts, request.prompt_len + request.generated]
        assert request.blocks == []
    assert rounds["kept"].sum() == sum(request.generated for request in log.requests)
    for replica in (each for each in simulation.replicas if each.since_s is not None):
        assert replica.num_unfinished == replica.load_tokens == replica.kv_tokens == 0
        assert replica.scheduler.allocator.num_blocks_used in (None, 0)
    for number, mine in rounds.groupby("replica"):
        starts, ends = mine["start_s"].to_numpy(), (mine["start_s"] + mine["round_s"]).to_numpy()
        assert (starts[1:] >= ends[:-1] - 1e-9).all()
        paid = times_of(next(each for each in simulation.replicas if each.number == number))
        assert all(
            any(begin <= a and b <= end + 1e-9 for begin, end in paid) for a, b in zip(starts, ends, strict=True)
        )
    assert measure(simulation)["completed"] == COUNT


def times_of(replica):
    """Begin and end of each time that a replica was paid for."""
    return [*replica.paid_s, *([] if replica.since_s is None else [(replica.since_s, math.inf)])]


ALONE = {
    "study": {"kind": "offline", "num_requests": 1}, "workload.prompt_tokens": {"kind": "fixed", "tokens": 11},
    "workload.output_tokens": {"kind": "fixed", "tokens": 6}, "engine.num_speculative_tokens": 0, "noise": False,
}  # fmt: skip


def test_a_request_begins_again_with_the_tokens_that_it_has():
    """Rounds end at 0.04, 0.06, 0.08; the fourth is lost at 0.09, and 11 + 3 - 1 tokens are fed at 0.59."""
    lost = {"kind": "times", "times_s": [0.09], "repair_s": 0.5}
    found = simulate(BASE.but(ALONE | {"service.failures": lost}), 1)
    assert found["latency_mean_s"] == pytest.approx(0.59 + 0.01 + 13 * 0.001 + 3 * 0.02)
    assert found.frame("rounds")["kept"].tolist() == [1, 1, 1, 0, 1, 1, 1]
    assert found["longest_gap_s"] == pytest.approx(0.59 - 0.08)
    paid_s = found["latency_mean_s"] - 0.5
    assert found["replicas_on"] == pytest.approx(paid_s / found["latency_mean_s"])
    assert found["cost_per_million_tokens"] == pytest.approx(paid_s / 6 * 1e6)
    assert found["busy_share"] == pytest.approx(1)


def test_a_transfer_ends_with_its_sender():
    """The prompt is cached at 0.02, sent until 1.02; its sender fails at 0.5 and caches it again at 0.7."""
    pools = {"kind": "disaggregated", "prefill_replicas": 1, "bytes_per_s": 1e4}
    lost = {"kind": "random", "mean_between_s": 1e9}
    changes = {"service.pools": pools, "service.failures": lost}
    simulation = Simulation(BASE.but(ALONE | changes))
    fleet = simulation.fleet
    simulation.env.timeout(0.5).callbacks.append(
        lambda _: fleet.failures.fail(fleet.prefilling, fleet.prefilling.open[0])
    )
    fleet.failures.p["repair_s"] = 0.2
    simulation.run()
    assert measure(simulation)["latency_mean_s"] == pytest.approx(1.02 + 0.02 + 1.0 + 6 * 0.02)


@pytest.mark.parametrize("rule", [{"kind": "queue", "requests": 4}, {"kind": "utilisation", "target": 0.5}])
def test_replicas_come_with_the_work_and_leave_with_it(tmp_path, rule):
    """A rush of 80 requests, then one every two seconds; looked at every second, and there two seconds later."""
    times = np.concatenate([np.arange(80) * 0.05, 4 + np.arange(30) * 2.0])
    lengths = {"prompt_tokens": 10, "output_tokens": 60}
    pd.DataFrame({"time_s": times, **lengths}).to_csv(tmp_path / "t.csv")
    scaling = rule | {"most_replicas": 3, "every_s": 1.0, "delay_s": 2.0}
    arrivals = {"kind": "trace", "path": str(tmp_path / "t.csv")}
    changes = {"service.scaling": scaling, "service.router": "least_loaded", "engine.batch_size": 8}
    made = BASE.but(changes | {"engine.num_speculative_tokens": 0, "study": {"kind": "open", "arrivals": arrivals}})
    made = made.but({"workload": {}})
    simulation = simulate_once(made)
    rounds, metrics, end_s = simulation.log.round_frame(), measure(simulation), simulation.log.end_s
    first = rounds.groupby("replica")["start_s"].min()
    assert set(first.index) == {0, 1, 2}
    assert first[1] >= 3.0
    assert [replica.since_s is None for replica in simulation.replicas].count(True) == 2
    assert len(simulation.fleet.decoding.open) == 1
    busy = rounds.assign(end_s=rounds["start_s"] + rounds["round_s"]).groupby("replica")["end_s"].max()
    paid = sum(min(end, end_s) - begin for each in simulation.replicas for begin, end in times_of(each))
    for replica in simulation.replicas:
        for begin, end in replica.paid_s:
            assert begin % 1.0 == 0
            assert end % 1.0 == 0 or end == pytest.approx(busy[replica.number])
    assert metrics["replicas_on"] == pytest.approx(paid / end_s)
    assert metrics["cost_per_million_tokens"] == pytest.approx(paid / rounds["kept"].sum() * 1e6)
    assert metrics["busy_share"] == pytest.approx(rounds["round_s"].sum() / paid)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service.scaling": {"kind": "queue", "requests": 2}}, "service.scaling.most_replicas is missing: queue"),
        ({"service.scaling": {"kind": "utilisation", "target": 0.5, "most_replicas": 2}, "service.replicas": 3},
         "service.replicas 3 must be from scaling.least_replicas 1 to most_replicas 2"),
        ({"service.failures": {"kind": "times", "times_s": [1.0, -1.0]}}, "service.failures.times_s[1] must be"),
        ({"service.failures": {"kind": "random", "mean_between_s": 1e-6}}, "failed in a row before any request was an"),
    ],
)  # fmt: skip
def test_what_cannot_be(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        simulate(BASE.but(changes), 1)
