"""Replications, comparison, metrics: laws that hold whatever the numbers are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.config import LAYOUTS
from refimpl.core.errors import InputError
from simulator import runner
from simulator.intervals import mean_interval
from simulator.runner import simulate
from simulator.service.metrics import frames_of, measure, mser5
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario, Service, Study, Switches, Workload
from simulator.studies.comparison import compare
from tests.simulator.scenarios import COST, brief, decisions, engines, rarely_finishing, scenario, switches

STAGES = ("prefill", "draft", "verify", "realign", "host")
studies = st.sampled_from([
    Study(num_requests=23),
    Study(kind="open", num_requests=23, arrivals=Spec.of("poisson", rate_per_s=20.0)),
    Study(kind="closed", clients=5, duration_s=2.0, think_time_s=0.1),
    Study(kind="open", duration_s=1.5, arrivals=Spec.of("gamma", rate_per_s=20.0, cv=2.0)),
])  # fmt: skip


@given(
    engines, st.one_of(switches, decisions), studies, st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.integers(1, 3)
)  # fmt: skip
def test_conservation_causality_and_identities(engine, chosen, study, alpha, replicas):
    """Under any switches of the engine as it is, or under any budget or drafter."""
    drafting, chosen = (chosen, Switches()) if isinstance(chosen, dict) else ({}, chosen)
    made = Scenario(
        study=study, engine=replace(engine, **drafting), switches=chosen,
        acceptance=Spec.of("iid", probability=alpha), cost=COST,
        workload=Workload(
            prompt_tokens=Spec.of("uniform", low_tokens=1, high_tokens=12),
            output_tokens=Spec.of("geometric", mean_tokens=15.0),
        ),
        service=Service(replicas=replicas, router="least_loaded" if replicas > 1 else "round_robin"),
    )  # fmt: skip
    simulation = simulate_once(made, keep_rows=True)
    frames = frames_of(simulation)
    requests, rounds, rows = frames.requests, frames.rounds, frames.rows
    done = requests[requests["finished_s"].notna()]
    metrics = measure(simulation)
    assert (metrics["completed"], metrics["censored"]) == (len(done), len(requests) - len(done))
    if len(rounds):
        assert metrics["verified_tokens_per_round"] <= metrics["verified_rectangle_per_round"]
        assert sum(metrics[f"{name}_share"] for name in STAGES) == pytest.approx(1)
    if study.duration_s is None:
        assert metrics["tokens_per_s"] * metrics["makespan_s"] == pytest.approx(rounds["kept"].sum())
    if study.duration_s is None:  # conservation: everything that came has finished, in full
        assert len(done) == len(requests) == 23
    assert (done["generated_tokens"] == done["output_tokens"]).all()
    assert (requests["generated_tokens"] <= engine.max_new_tokens).all()
    assert rounds["kept"].sum() == requests["generated_tokens"].sum() == rows["kept"].sum()
    assert rounds["live"].sum() == requests["rounds"].sum() == len(rows)
    assert rounds["accepted"].sum() == requests["accepted"].sum() == rows["accepted"].sum()
    assert (rows["accepted"] <= rows["drafted"]).all()
    assert (rows["drafted"] <= rows["k"]).all()
    assert (rows["k"] <= engine.num_speculative_tokens).all()
    assert ((rows["kept"] >= 1) & (rows["kept"] <= rows["accepted"] + 1)).all()
    # causality: a request is admitted after it came, gets its first token later, ends last; rounds do not overlap
    assert (done["arrival_s"] <= done["admitted_s"]).all()
    assert (done["admitted_s"] < done["first_token_s"]).all()
    assert (done["first_token_s"] <= done["finished_s"]).all()
    for _, mine in rounds.groupby("replica"):
        ends = mine["start_s"] + mine["round_s"]
        assert (mine["start_s"].to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e-9).all()
    assert (rounds["live"] <= rounds["rows"]).all()
    assert (rounds["rows"] <= engine.batch_size).all()
    assert (rows["kept"] <= rows["k"] + (1 if chosen.keep_bonus else 0)).all() or engine.num_speculative_tokens == 0


def test_work_conservation_a_server_idles_only_when_nothing_waits():
    made = scenario({"engine.scheduler": "fifo"}).but(
        study={"kind": "open", "num_requests": 200, "arrivals": {"kind": "poisson", "rate_per_s": 6.0}}
    )
    results = simulate(made, 1)
    rounds, requests = results.frame("rounds"), results.frame("requests")
    gap = rounds["start_s"].to_numpy()[1:] - (rounds["start_s"] + rounds["round_s"]).to_numpy()[:-1]
    idle = np.flatnonzero(gap > 1e-9)
    assert len(idle) > 0
    for at in idle:
        start = rounds["start_s"].iloc[at + 1]
        unfinished = (requests["arrival_s"] < start - 1e-9) & (requests["finished_s"] > start)
        assert not unfinished.any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_may_grow_longer_than_those_of_the_first_requests(layout):
    prompts = {"kind": "lognormal", "median_tokens": 200.0, "sigma": 1.2}
    engine = {"layout": layout, "scheduler": "fifo", "batch_size": 32, "max_new_tokens": 2}
    made = Scenario(seed=1).but({"study.num_requests": 9000, "workload.prompt_tokens": prompts}, engine=engine)
    simulation = simulate_once(made)
    prompt_lens = [request.prompt_len for request in simulation.log.requests]
    assert max(prompt_lens) > 1.3 * max(prompt_lens[:4096])
    assert all(request.finished for request in simulation.log.requests)


def test_same_seed_same_bytes_whatever_the_workers():
    made = scenario({"engine.scheduler": "grouped"})
    one, two = simulate(made, 4), simulate(made, 4, workers=2)
    for name in ("requests", "rounds"):
        pd.testing.assert_frame_equal(one.frame(name), two.frame(name), check_exact=True)
    assert simulate(made.but(seed=1), 1)["makespan_s"] != one.metrics["makespan_s"][0]


def test_common_random_numbers_pair_scenarios_request_by_request():
    a, b = (
        simulate(scenario({"engine.layout": name, "engine.scheduler": "fifo"}), 3) for name in ("realigned", "inplace")
    )
    columns = ["request", "prompt_tokens", "output_tokens", "rounds", "accepted"]
    assert a.frame("requests")[columns].equals(b.frame("requests")[columns])


def test_pairing_narrows_the_interval():
    a, b = scenario(), scenario({"engine.scheduler": "fifo"})
    table = compare(a, b, 10).table.loc["makespan_s"]
    spread = np.hypot(*(simulate(s, 10).metrics["makespan_s"].std(ddof=1) for s in (a, b)))
    assert table["verdict"] == "b lower"
    assert (table["high"] - table["low"]) / 2 < 2.26 * spread / np.sqrt(10)


def test_a_scenario_does_not_differ_from_itself_and_seeds_must_agree():
    priced = {"service.cost_per_hour": 2.0, "service.watts": 700}
    table = compare(scenario(priced), scenario(priced | {"name": "again"}), 3).table
    assert set(table.drop(index=[name for name in table.index if name.endswith("_bytes")])["verdict"]) == {"equal"}
    assert (table.loc[["kv_peak_bytes", "kv_allocated_bytes"], "verdict"] == "not known").all()
    with pytest.raises(InputError, match="seed differs: 0 and 1"):
        compare(scenario(), scenario(seed=1), 3)


def test_all_that_is_compared_is_of_the_replications_in_which_both_have_it():
    found = compare(rarely_finishing(1.0), rarely_finishing(1.6), 12)
    a, b = (each.metrics["latency_mean_s"] for each in (found.a, found.b))
    both = a.notna() & b.notna()
    assert 1 < both.sum() < a.notna().sum()
    line = found.table.loc["latency_mean_s"]
    assert (line["a"], line["b"], line["n"]) == (a[both].mean(), b[both].mean(), both.sum())
    paired = scipy.stats.ttest_rel(b[both], a[both]).confidence_interval(0.95)
    assert (line["low"], line["high"]) == pytest.approx(tuple(paired))
    assert line["difference"] == pytest.approx(line["b"] - line["a"])
    assert line["ratio"] == line["b"] / line["a"]


def test_intervals_cover_as_they_say():
    rng = np.random.default_rng(1)
    inside = [low <= 3 <= high for _, low, high, _ in (mean_interval(rng.normal(3, 2, 8), 0.9) for _ in range(3000))]
    assert abs(np.mean(inside) - 0.9) < 5 * np.sqrt(0.09 / 3000)


def test_sequential_stopping_does_not_depend_on_the_workers(monkeypatch):
    def in_this_process(function, jobs, workers, settings):
        return (function(*job, **settings) for job in jobs)

    monkeypatch.setattr(runner, "run_parallel", in_this_process)
    few = {"precision": 0.03, "metric": "makespan_s", "keep_frames": False}
    one, many = (simulate(scenario({"study.num_requests": 4}), workers=n, **few) for n in (1, 60))
    assert 10 < len(one.replications) == len(many.replications)


def test_mser5_finds_a_transient_and_refuses_short_or_growing_runs():
    rng = np.random.default_rng(0)
    series = rng.normal(0, 1, 1000)
    series[:100] += 20 * np.exp(-np.arange(100) / 30)
    assert 50 <= mser5(series) <= 300
    with pytest.raises(InputError, match="needs 100 finished requests, not 99"):
        mser5(series[:99])
    with pytest.raises(InputError, match="no steady state"):
        mser5(np.arange(1000.0))


@pytest.mark.parametrize("length", [100, 1000])
def test_mser5_takes_rounding_for_no_transient(length):
    times = np.cumsum(np.full(length, 0.7))
    assert mser5(times + 0.3 - times) == 0
    step = np.r_[np.full(25, 8.0), np.full(length - 25, 0.3)] + times - times
    assert mser5(step) == 25


def test_nothing_is_observed_after_the_last_round_when_no_request_can_come():
    whole = simulate(brief(num_requests=20), 1)
    stopped = simulate(brief(num_requests=20, duration_s=3600.0), 1)
    patient = simulate(brief(num_requests=1).but(switches={"wait_for_rows": 2, "wait_at_most_s": 900.0}), 1)
    pd.testing.assert_frame_equal(stopped.metrics, whole.metrics)
    assert whole["makespan_s"] == whole.frame("requests")["finished_s"].max()
    assert patient["makespan_s"] == patient.frame("requests")["finished_s"].max() < 9, "nor waited for"


def test_waiting_for_requests_that_may_come_is_observed():
    results = simulate(brief(duration_s=9.0, num_requests=1000).but({"study.arrivals.rate_per_s": 1.0}), 1)
    tokens = results.frame("rounds")["kept"].sum()
    assert results["tokens_per_s"] == pytest.approx(tokens / 9.0)
    assert results["makespan_s"] < 9.0
