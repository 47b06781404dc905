"""The simulation against closed forms.

Seeds are fixed; on a fresh seed a right simulator fails a test of a mean with probability 1e-6. The deviation of a mean
is estimated, so its bound is Student's t. Each test says which relative error of the mean it must be able to notice:
twice the bound's width is no more than that, and a mean that is so far off is noticed as surely as a right one passes.
"""

from functools import partial
from itertools import takewhile

import numpy as np
import pytest
from scipy.stats import binomtest, t

from refimpl.core.independent import tokens_per_round
from simulator.runner import simulate
from simulator.service.streams import Streams
from simulator.service.workload import arrival_times
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from simulator.studies.comparison import compare
from tests.simulator import closed_forms

ROUND_S = 0.01
STEADY = Spec.of("linear", verify_base_s=ROUND_S)


def offline(requests=2000, alpha=0.7, k=5, tokens=128, **engine):
    settings = {"layout": "inplace", "scheduler": "fifo", "batch_size": 1} | engine
    return Scenario(
        study=Study(num_requests=requests),
        engine=Engine(num_speculative_tokens=k, max_new_tokens=tokens, **settings),
        workload=Workload(output_tokens=Spec.of("fixed", tokens=tokens)),
        acceptance=Spec.of("iid", probability=alpha),
        cost=STEADY,
        noise=False,
    )


FALSE_ALARM = 1e-6
at_night = partial(pytest.param, marks=pytest.mark.nightly)


def assert_mean(values, expected, notices, rounding=0.0):
    """Of independent values; `notices` is the relative error that would be seen, `rounding` is added to the bound."""
    values = np.asarray(values, dtype=float)
    quantile = t.ppf(1 - FALSE_ALARM / 2, len(values) - 1)
    slack = quantile * values.std(ddof=1) / np.sqrt(len(values)) + rounding + 1e-9 * expected
    assert abs(values.mean() - expected) <= slack, (values.mean(), expected, slack)
    assert 2 * slack <= notices * expected, (2 * slack / expected, notices)


@pytest.mark.parametrize(("alpha", "k"), [(0.3, 1), (0.7, 5), (0.8, 4), (0.95, 8)])
def test_rounds_of_a_row_follow_the_renewal_law(alpha, k):
    requests = simulate(offline(alpha=alpha, k=k), 1).frame("requests")
    assert_mean(requests["rounds"], closed_forms.mean_rounds(alpha, k, 128), notices=0.05)


def test_law_of_rounds_not_only_its_mean():
    rounds = simulate(offline(requests=4000, tokens=64), 1).frame("requests")["rounds"]
    law = closed_forms.rounds_law(0.7, 5, 64)
    gap = np.abs(np.bincount(rounds, minlength=65).cumsum() / len(rounds) - law.cumsum()).max()
    assert gap < np.sqrt(np.log(2 / FALSE_ALARM) / (2 * len(rounds)))  # Dvoretzky–Kiefer–Wolfowitz


def test_tokens_per_round_tends_to_leviathan():
    assert 4096 / closed_forms.mean_rounds(0.7, 5, 512) / 8 == pytest.approx(tokens_per_round(0.7, 5), rel=0.01)
    assert closed_forms.accepted_pmf(0.7, 5) @ np.arange(1, 7) == pytest.approx(tokens_per_round(0.7, 5))


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_rollback_commits_the_minimum(rows):
    scenario = offline(requests=100 * rows, batch_size=rows, layout="rollback", scheduler="static", tokens=256)
    rounds = simulate(scenario, 1).frame("rounds")
    full = rounds[(rounds["live"] == rows) & (rounds["k"] == 5)]
    first = full.groupby(full.index // 40).head(40)
    assert_mean((first["kept"] / rows).to_numpy(), closed_forms.minimum_tokens(0.7, 5, rows), notices=0.1)


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_static_batches_lose_what_theory_says(rows):
    values = simulate(offline(requests=40 * rows, batch_size=rows, scheduler="static"), 40).metrics["occupancy"]
    assert_mean(values, closed_forms.static_occupancy(0.7, 5, 128, rows), notices=0.05)


@pytest.mark.parametrize(("window", "rows", "lengths"), [at_night(8, 2, 40), (32, 4, 30), at_night(64, 8, 16)])
def test_first_round_groups_with_the_birthday_probability(window, rows, lengths):
    base = offline(
        requests=window, batch_size=rows, layout="realigned", scheduler="grouped", window_size=window, tokens=1
    )
    scenario = base.but({"workload.prompt_tokens": {"kind": "uniform", "low_tokens": 1, "high_tokens": lengths}})
    rounds = simulate(scenario, 400).frame("rounds").groupby("replication").first()  # sees an error of 0.25
    probability = closed_forms.group_probability(window, rows, lengths)
    assert binomtest(int((rounds["mode"] == "grouped").sum()), len(rounds), probability).pvalue > FALSE_ALARM


def test_birthday_probability_of_people():
    assert closed_forms.group_probability(23, 2, 365) == pytest.approx(0.5073, abs=1e-4)


# --- queues ------------------------------------------------------------------------------------------------------


def queue(rate, tokens, batch_size=1, requests=1500, **study):
    return Scenario(
        study=Study(kind="open", num_requests=requests, arrivals=Spec.of("poisson", rate_per_s=rate), **study),
        engine=Engine(batch_size=batch_size, num_speculative_tokens=0, max_new_tokens=10**5),
        workload=Workload(prompt_tokens=Spec.of("fixed", tokens=1), output_tokens=tokens),
        acceptance=Spec.of("iid", probability=0.0),
        cost=Spec.of("linear", verify_base_s=0.001),
        noise=False,
    )


def mean_wait(scenario, skip=500, replications=40):
    requests = simulate(scenario, replications).frame("requests")
    kept = requests[requests["request"] >= skip]
    return (kept["admitted_s"] - kept["arrival_s"]).groupby(kept["replication"]).mean().to_numpy()


FIXED, GEOMETRIC = Spec.of("fixed", tokens=4), Spec.of("geometric", mean_tokens=4)


@pytest.mark.parametrize(
    ("tokens", "cv2", "load", "notices"),
    [
        at_night(FIXED, 0.0, 0.3, 0.4),
        (FIXED, 0.0, 0.7, 0.4),
        at_night(GEOMETRIC, 0.75, 0.3, 0.3),
        (GEOMETRIC, 0.75, 0.6, 0.3),
    ],
)
def test_a_row_follows_pollaczek_khinchine(tokens, cv2, load, notices):
    """With fixed outputs it is an M/D/1 queue."""
    scenario = queue(load / 0.004, tokens).but({"engine.max_new_tokens": 100})
    expected = closed_forms.pollaczek_khinchine_wait_s(load / 0.004, 0.004, cv2)
    assert cv2 or expected == pytest.approx(closed_forms.md1_wait_s(load / 0.004, 0.004))
    assert_mean(mean_wait(scenario), expected, notices=notices)


@pytest.mark.nightly
def test_rows_of_constant_round_time_make_an_mmc_queue():
    """A round costs the same whatever its rows, so each row is a server; an arrival also waits for a round to end."""
    scenario = queue(3.2 / 0.05, Spec.of("geometric", mean_tokens=50), batch_size=4).but(
        {"engine.max_new_tokens": 1000}
    )
    expected = closed_forms.mmc_wait_s(3.2 / 0.05, 0.05, 4) + 0.0005
    assert_mean(mean_wait(scenario), expected, notices=0.8, rounding=0.0015)


def test_one_token_outputs_make_a_bulk_queue():
    scenario = queue(2500.0, Spec.of("fixed", tokens=1), batch_size=4, requests=3000).but({"engine.max_new_tokens": 1})
    assert_mean(mean_wait(scenario, replications=24), closed_forms.bulk_wait_s(2500.0, 0.001, 4), notices=0.15)
    assert closed_forms.bulk_wait_s(500.0, 0.001, 1) == pytest.approx(closed_forms.md1_wait_s(500.0, 0.001), rel=1e-6)


@pytest.mark.parametrize("method", ["eqspec", "inplace", "inplace+continuous"])
def test_clients_that_never_pause_obey_the_response_time_law(method):
    """N clients = rate × mean latency: a client has its answer once it is written, whoever else is in the batch."""
    scenario = Scenario(
        study=Study(kind="closed", clients=12, duration_s=200.0),
        engine={"method": method, "batch_size": 8},
        workload=Workload(output_tokens=Spec.of("geometric", mean_tokens=30)),
    )
    results = simulate(scenario, 1)
    assert results["requests_per_s"] * results["latency_mean_s"] == pytest.approx(12, rel=0.01)  # cut at the end


def test_littles_law_on_the_logged_populations():
    """Time average of the logged population = rate × mean latency; the log counts at the end of each round."""
    scenario = queue(80.0, Spec.of("geometric", mean_tokens=10), batch_size=2).but({"engine.max_new_tokens": 400})
    results = simulate(scenario, 1)
    rounds, requests = results.frame("rounds"), results.frame("requests")
    end_s = results["makespan_s"]
    steps = np.arange(0, end_s, 0.0005)
    population = np.searchsorted(np.sort(requests["arrival_s"]), steps, side="right") - np.searchsorted(
        np.sort(requests["finished_s"]), steps, side="right"
    )
    latency = (requests["finished_s"] - requests["arrival_s"]).mean()
    assert population.mean() == pytest.approx(len(requests) / end_s * latency, rel=0.01)
    in_rounds = rounds["live"].to_numpy() @ rounds["round_s"].to_numpy() / end_s
    served_s = (requests["finished_s"] - requests["admitted_s"]).mean()
    assert in_rounds == pytest.approx(len(requests) / end_s * served_s, rel=1e-6)


SERVICE_S = 0.1  # of a prompt


def fleet(rate, **service):
    """Servers of one row each, whose service is nearly exponential: a geometric number of prompt tokens."""
    prompts = {"workload.prompt_tokens": {"kind": "geometric", "mean_tokens": 2000}, "engine.max_new_tokens": 1}
    cost = {"kind": "linear", "verify_base_s": 1e-9, "prefill_s_per_token": SERVICE_S / 1999, "kv_bytes_per_token": 1.0}
    return queue(rate, FIXED, requests=2500).but(prompts | {"cost": cost, "service": service})


def test_servers_in_turn_are_queues_with_erlang_arrivals():
    """One queue for all four would make the wait a fifth of it, and routing at random 2.3 times as long."""
    rate = 0.5 * 4 / SERVICE_S
    assert closed_forms.in_turn_wait_s(5.0, SERVICE_S, 1) == pytest.approx(closed_forms.mmc_wait_s(5.0, SERVICE_S, 1))
    expected = closed_forms.in_turn_wait_s(rate, SERVICE_S, 4)
    assert_mean(mean_wait(fleet(rate, replicas=4), replications=30), expected, notices=0.3)


def test_servers_by_least_work_are_nearly_one_queue():
    """No router has one queue for all. By the work left it would be M/M/c; counting the whole request that is served as
    work makes the wait longer by up to a quarter. In turn it is 3.5 times as long.
    """
    rate = 0.7 * 4 / SERVICE_S
    expected = closed_forms.mmc_wait_s(rate, SERVICE_S, 4)
    waits = mean_wait(fleet(rate, replicas=4, router="least_loaded"), replications=30)
    assert_mean(waits, 1.125 * expected, notices=0.75, rounding=0.125 * expected)


def test_two_pools_are_queues_behind_each_other():
    """Prompts leave the first, an M/M/1 queue, as Poisson arrivals (Burke 1956); the second is M/G/1."""
    rate, tokens, round_s = 6.0, 8, 0.01
    pools = {"kind": "disaggregated", "prefill_replicas": 1, "bytes_per_s": 1e12, "latency_s": 0.03}
    made = fleet(rate, pools=pools).but({
        "workload.output_tokens": {"kind": "geometric", "mean_tokens": tokens}, "engine.max_new_tokens": 10**5,
        "cost.verify_base_s": round_s, "study.num_requests": 1000,
    })  # fmt: skip
    requests = simulate(made, 24).frame("requests")
    requests = requests[requests["request"] >= 200]
    first_s = closed_forms.mmc_wait_s(rate, SERVICE_S, 1) + SERVICE_S
    second_s = closed_forms.pollaczek_khinchine_wait_s(rate, tokens * round_s, 1 - 1 / tokens) + tokens * round_s
    latency = (requests["finished_s"] - requests["arrival_s"]).groupby(requests["replication"]).mean()
    assert_mean(latency.to_numpy(), first_s + 0.03 + second_s, notices=0.3)


@pytest.mark.parametrize("cv", [0.2, 3.0])
def test_requests_of_a_given_time_begin_as_if_one_had_come(cv):
    """Renewal theory: t seconds bring rate · t + (cv² - 1) / 2 of them, once the first gap is forgotten."""
    arrivals, end_s = Spec.of("gamma", rate_per_s=5.0, cv=cv), 40.0
    counts = [
        sum(1 for _ in takewhile(lambda time_s: time_s < end_s, arrival_times(arrivals, Streams(1, index), None)))
        for index in range(1000)
    ]
    assert_mean(counts, 5.0 * end_s + (cv**2 - 1) / 2, notices=0.1)


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["realigned", "masked", "rollback", "inplace"])
@pytest.mark.parametrize("scheduler", ["static", "fifo", "grouped"])
def test_no_acceptance_is_autoregression_and_full_acceptance_yields_k_plus_1(layout, scheduler):
    for alpha, expected in ((0.0, 120), (1.0, 20)):
        scenario = offline(requests=24, alpha=alpha, tokens=120, batch_size=4, layout=layout, scheduler=scheduler)
        assert set(simulate(scenario, 1).frame("requests")["rounds"]) == {expected}


@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_window_of_one_batch_is_fifo(alpha):
    """With a window of one batch a full group is the batch itself, so grouping decides nothing but the mode's name."""
    settings = {"requests": 60, "alpha": alpha, "batch_size": 4, "layout": "realigned"}
    grouped, fifo = (
        simulate(offline(**settings, **own), 2).frame("requests")
        for own in ({"scheduler": "grouped", "window_size": 4}, {"scheduler": "fifo"})
    )
    assert grouped.equals(fifo)


def test_without_realign_cost_layouts_agree_and_exspec_equals_fifo_in_tokens_per_round():
    base = offline(requests=200, batch_size=4, scheduler="fifo")
    realigned = base.but({"engine.layout": "realigned"})
    assert compare(base, realigned, 4).table.loc["makespan_s", "difference"] == 0
    exspec = base.but({"engine.layout": "realigned", "engine.scheduler": "grouped", "engine.window_size": 32})
    ratio = compare(base, exspec, 6).table.loc["tokens_per_s", "ratio"]
    assert ratio == pytest.approx(1, abs=0.02)  # only the tail of the run differs


def test_grouping_pays_only_where_moving_costs():
    free = offline(requests=200, batch_size=4, layout="realigned", scheduler="fifo")
    dear = free.but({"cost.realign_base_s": 0.005})
    grouped = {"engine.scheduler": "grouped", "engine.window_size": 64}
    assert abs(compare(free, free.but(grouped), 4).table.loc["tokens_per_s", "ratio"] - 1) < 0.05
    assert compare(dear, dear.but(grouped), 4).table.loc["tokens_per_s", "ratio"] > 1.05
