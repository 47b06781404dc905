"""Figures against a second, plain computation; `tools/planted.toml` lists the errors that turn these tests red."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.formats import POINT_COLUMNS, TRACE_SCHEMA
from simulator.engine_runs.acceptance_fit import fit_markov
from simulator.intervals import range_of_runs, share_held, summarize
from simulator.runner import simulate
from simulator.service.cost import Fed
from simulator.service.metrics import measure
from simulator.service.simulation import simulate_once
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from simulator.settings.traces import EngineTrace
from simulator.studies.designs import build_sweep
from simulator.studies.sweeps import sweep
from tests.simulator.scenarios import decisions, engines
from tests.synthetic_inputs import synthetic_points, write_calibration

COST = Spec.of("linear", verify_base_s=0.02, draft_base_s=0.002, noise_cv=0.05)
OFFLINE = Scenario(
    study=Study(num_requests=40),
    workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=4, high_tokens=60)),
    engine=Engine(layout="realigned", scheduler="static", batch_size=4, max_new_tokens=40),
    cost=COST,
)
CLOSED = OFFLINE.but(
    {"engine.scheduler": "fifo", "workload.output_tokens": {"kind": "geometric", "mean_tokens": 12.0}},
    study={"kind": "closed", "clients": 60, "duration_s": 40.0},
)


# --- metrics -----------------------------------------------------------------------------------------------------


def plain_quantile(values, share):
    """Between the two ordered values around (n - 1) · share, linear (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


@pytest.mark.parametrize("rush", [False, True])
def test_quantiles_are_those_of_the_requests(tmp_path, rush):
    """Of those that came after the warm-up."""
    found = simulate(after_a_rush(tmp_path) if rush else CLOSED, 1)
    requests, span_s = found.frame("requests"), found.scenario.study.duration_s - found["warmup_s"]
    assert (requests["arrival_s"] < found["warmup_s"]).any() == rush
    assert found["requests_per_s"] == pytest.approx((requests["finished_s"] > found["warmup_s"]).sum() / span_s)
    requests = requests[requests["arrival_s"] >= found["warmup_s"]]
    done = requests[requests["finished_s"].notna()]
    long = done[done["generated_tokens"] > 1]
    values = {
        "latency": done["finished_s"] - done["arrival_s"],
        "service": done["finished_s"] - done["begun_s"],
        "first_token": (requests["first_token_s"] - requests["arrival_s"]).dropna(),
        "per_token": (long["finished_s"] - long["first_token_s"]) / (long["generated_tokens"] - 1),
    }
    assert (found["completed"], found["censored"]) == (len(done), len(requests) - len(done))
    for name, each in values.items():
        assert found[f"{name}_mean_s"] == pytest.approx(each.mean())
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            assert found[f"{name}_{label}_s"] == pytest.approx(plain_quantile(each, share))


def test_the_range_of_replications_is_from_5_to_95_percent():
    """The i-th of n in order is at i / (n + 1)."""
    values = np.random.default_rng(0).normal(size=99)
    ordered = sorted(values)
    line = summarize(pd.DataFrame({"x": values}), 0.95).loc["x"]
    assert (line["p05"], line["p95"]) == pytest.approx((ordered[5 - 1], ordered[95 - 1]))
    few = summarize(pd.DataFrame({"x": [*values[:18], np.nan]}), 0.95).loc["x"]
    assert np.isnan(few[["p05", "p95"]]).all()
    assert summarize(pd.DataFrame({"x": values[:19]}), 0.95).loc["x", "p05"] == values[:19].min()


@pytest.mark.parametrize(("count", "share"), [(19, 0.9), (40, 0.95), (25, 0.8), (6, 0.95)])
def test_a_further_replication_falls_into_the_range_as_often_as_it_says(count, share):
    """Of 20,000 ranges; false alarm below 1e-6 (five standard errors)."""
    drawn = np.random.default_rng(3).exponential(size=(count + 1, 20_000))
    low, high = range_of_runs(drawn[:count], share)
    inside, held = float(np.mean((low <= drawn[-1]) & (drawn[-1] <= high))), share_held(count, share)
    assert held == pytest.approx(share if count > 6 else 5 / 7)
    assert inside == pytest.approx(held, abs=5 * (held * (1 - held) / 20_000) ** 0.5)


def after_a_rush(folder):
    """A rush, then a stream: some come before the warm-up ends and finish after, some do not finish."""
    times = np.concatenate([np.zeros(200), 1 + np.arange(1000) * 0.05])
    lengths = {"prompt_tokens": 20, "output_tokens": 1 + np.arange(len(times)) % 23}
    pd.DataFrame({"time_s": times, **lengths}).to_csv(folder / "t.csv")
    arrivals = {"kind": "trace", "path": str(folder / "t.csv")}
    return CLOSED.but(study={"kind": "open", "duration_s": float(times[-1]), "warmup": "mser5", "arrivals": arrivals})


def test_tokens_of_the_round_in_which_the_warm_up_ends_count(tmp_path):
    found = simulate(after_a_rush(tmp_path), 1)
    rounds, start_s, end_s = found.frame("rounds"), found["warmup_s"], found.scenario.study.duration_s
    assert ((rounds["start_s"] < start_s) & (rounds["start_s"] + rounds["round_s"] > start_s)).any()
    assert found["tokens_per_s"] == rounds["kept"][rounds["start_s"] + rounds["round_s"] > start_s].sum() / (
        end_s - start_s
    )


@pytest.mark.parametrize(("first_s", "each_s"), [(0.4, None), (None, 0.02), (1.5, 0.0201)])
def test_attainment_is_of_those_that_came_after_the_warm_up(tmp_path, first_s, each_s):
    """Who has not finished has missed it; goodput counts who finished after the warm-up."""
    limits = {"service.slo_first_token_s": first_s, "service.slo_per_token_s": each_s}
    found = simulate(after_a_rush(tmp_path).but(limits), 1)
    requests, start_s, end_s = found.frame("requests"), found["warmup_s"], found.scenario.study.duration_s
    gaps = (requests["generated_tokens"] - 1).clip(lower=1)
    good = requests["first_token_s"] - requests["arrival_s"] <= (first_s or np.inf)
    good &= (requests["finished_s"] - requests["first_token_s"]) / gaps <= (each_s or np.inf)
    later = requests["arrival_s"] >= start_s
    assert (good & ~later & (requests["finished_s"] >= start_s)).any()
    assert 0 < found["slo_attainment"] < 1
    assert found["slo_attainment"] == pytest.approx((good & later).sum() / later.sum())
    counted = (good & (requests["finished_s"] > start_s)).sum()
    assert found["goodput_per_s"] == pytest.approx(counted / (end_s - start_s))


CROWDED = {"engine.layout": "paged", "engine.num_blocks": 10, "study.warmup": "none"}


@pytest.mark.parametrize("changes", [{}, {"service.replicas": 2}, CROWDED])
def test_time_between_tokens_is_that_between_the_rounds_of_a_row(tmp_path, changes):
    """After the warm-up alone, in rounds of several replicas, and across preemptions."""
    simulation = simulate_once(after_a_rush(tmp_path).but(changes), keep_rows=True)
    metrics, rounds, rows = measure(simulation), simulation.log.round_frame(), simulation.log.row_frame()
    rounds["round"], rounds["end_s"] = rounds.groupby("replica").cumcount(), rounds["start_s"] + rounds["round_s"]
    rows = rows.merge(rounds[["replica", "round", "start_s", "end_s"]]).sort_values(["sequence", "round"])
    gaps = rows.groupby("sequence")["end_s"].diff()[rows["start_s"] >= metrics["warmup_s"]].dropna()
    assert (metrics["warmup_s"] > 1, metrics["preemptions"] > 0) == (changes != CROWDED, changes == CROWDED)
    assert metrics["inter_token_mean_s"] == pytest.approx(gaps.mean())
    for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert metrics[f"inter_token_{label}_s"] == pytest.approx(plain_quantile(gaps, share))


def test_busy_share_is_the_mean_of_the_replicas():
    found = simulate(
        OFFLINE.but({"service.replicas": 3, "service.router": "least_loaded", "engine.scheduler": "fifo"}), 1
    )
    rounds = found.frame("rounds")
    share = [mine["round_s"].sum() / found["makespan_s"] for _, mine in rounds.groupby("replica")]
    assert len(share) == 3
    assert found["busy_share"] == pytest.approx(np.mean(share))


# --- replications and files ----------------------------------------------------------------------------------------


def test_sequential_stopping_goes_on_with_new_replications():
    found = simulate(OFFLINE, 3, precision=0.01, keep_frames=False)
    count = len(found.replications)
    assert count > 15
    assert [r.index for r in found.replications] == list(range(count))
    pd.testing.assert_frame_equal(found.metrics, simulate(OFFLINE, count, keep_frames=False).metrics)
    assert found.metrics["tokens_per_s"].is_unique
    reached = found.summary().loc["tokens_per_s"]
    assert (reached["high"] - reached["mean"]) / reached["mean"] <= 0.01


@pytest.mark.parametrize("name", ["scenarios", "results.parquet"])
def test_a_sweep_that_is_broken_off_while_it_writes_leaves_no_half_file(tmp_path, monkeypatch, name):
    write_table = pq.write_table

    def break_off(table, file, **settings):
        if "key" in table.column_names or name == "scenarios":
            file.write(b"PAR1 and then nothing")
            raise KeyboardInterrupt
        write_table(table, file, **settings)

    spec = build_sweep(OFFLINE, replications=1, grid={"seed": [0, 1]})
    monkeypatch.setattr(pq, "write_table", break_off)
    with pytest.raises(KeyboardInterrupt):
        sweep(spec, tmp_path)
    monkeypatch.undo()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == (0 if name == "scenarios" else 2)
    assert all(len(pd.read_parquet(path)) == 1 for path in files)
    assert len(sweep(spec, tmp_path)) == 2


# --- costs -------------------------------------------------------------------------------------------------------


@given(engines, st.one_of(st.just({}), decisions), st.sampled_from([0.0, 0.6, 1.0]), st.booleans())
def test_rounds_cost_what_their_rows_feed(engine, drafting, alpha, padded):
    """Pads where less than a quarter of the rectangle is; the draft first caches what rows lack that it sat out for."""
    rates = {
        "verify_base_s": 1.0, "verify_s_per_token": 0.01, "context_s_per_token": 1e-4, "draft_base_s": 0.1,
        "draft_s_per_token": 0.003, "host_base_s": 0.5, "host_s_per_row": 0.07,
    }  # fmt: skip
    head, looked = {"step_s": 0.2, "step_s_per_row": 0.04}, {"found": 0.5, "probability": 0.5, "host_s_per_row": 0.02}
    made = Scenario(
        study={"num_requests": 9}, engine=replace(engine, **drafting), acceptance={"kind": "iid", "probability": alpha},
        workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 4, "high_tokens": 20}},
        cost={"kind": "linear", **rates}, head={"kind": "steps", **head}, lookup={"kind": "iid", **looked},
        switches={"pad_prompts": padded}, noise=False,
    )  # fmt: skip
    log = simulate_once(made, keep_rows=True).log
    prompts = {request.sequence: request.prompt_len for request in log.requests}
    members = {index: list(rows.itertuples()) for index, rows in log.row_frame().groupby("round")}
    for index, line in enumerate(log.rounds):
        if line.rows == 0:
            continue
        rows, span, fed = members[index], line.k + 1, sum(row.drafted + 1 for row in members[index])
        packed = fed <= 0.75 * line.rows * span and not padded
        tokens = max(fed, line.rows) if packed else line.rows * span
        assert line.verify_s == pytest.approx(1.0 + 0.01 * tokens + 1e-4 * line.rows * line.width)
        draft_s = line.passes * (0.1 + 0.003 * line.rows)
        behind = [row.draft_lag - 1 for row in rows if row.draft_lag > 2 and line.passes]
        draft_s += 0.1 + 0.003 * sum(behind) if behind else 0.0
        if drafting.get("drafter") == "head":
            draft_s = line.k * (0.2 + 0.04 * line.rows)
        elif "drafter" in drafting and engine.num_speculative_tokens:
            draft_s += 0.02 * sum(prompts[row.sequence] + engine.max_new_tokens - row.seq_len > 1 for row in rows)
        assert line.draft_s == pytest.approx(draft_s)
        assert line.host_s == pytest.approx(0.5 + 0.07 * line.rows)


def test_a_grid_holds_means(tmp_path):
    """Means are what sums of rounds need; here every median, as of skewed seconds, is half of its mean."""
    median = POINT_COLUMNS.index("median_s")
    points = [(*p[:median], p[median] / 2, *p[median + 1 :]) for p in synthetic_points()]
    calibration = load_calibration(str(write_calibration(tmp_path / "c", points=points)))
    for component, _, rows, tokens, width, _, mean_s, *_ in synthetic_points():
        grid = calibration.grid(component, "inplace")
        assert grid.line(rows, tokens, np.array([width]))[0] == pytest.approx(mean_s)


def test_every_replica_has_noise_of_its_own():
    log = simulate_once(OFFLINE.but({"service.replicas": 2, "engine.scheduler": "fifo"})).log
    first, second = ([line.noise for line in log.rounds if line.replica == number] for number in (0, 1))
    assert len(first) > 10 < len(second)
    assert not set(first) & set(second)
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("prompt_tokens", [1, 2, 9])
def test_the_last_prompt_token_is_fed_by_the_first_round(prompt_tokens):
    cost = {"kind": "linear", "prefill_base_s": 1.0, "prefill_s_per_token": 0.1, "verify_base_s": 0.02}
    prompts = {"kind": "fixed", "tokens": prompt_tokens}
    first = simulate_once(OFFLINE.but({"workload.prompt_tokens": prompts}, cost=cost, noise=False)).log.rounds[0]
    assert first.prefill_s == pytest.approx(1.0 + 0.1 * 4 * (prompt_tokens - 1) if prompt_tokens > 1 else 0.0)


def test_rows_that_feed_nothing_are_no_rows_of_a_prefill():
    """Prompts of one and of two tokens: two rows feed a token each, after nothing; measured points begin at a token."""
    prompts = {"kind": "values", "tokens": [1, 2, 2, 1]}
    cost = {"kind": "linear", "prefill_base_s": 1.0, "context_s_per_token": 0.5, "verify_base_s": 0.02}
    short = OFFLINE.but({"workload.prompt_tokens": prompts}, cost=cost, noise=False)
    model = simulate_once(short).cost
    assert model.prefill_s([Fed(1, 0, 9), Fed(1, 3, 4)]) == pytest.approx(1.0 + 0.5 * 4)
    assert simulate_once(short).log.rounds[0].prefill_s == pytest.approx(1.0)
    measured = simulate(short.but(cost={"kind": "table", "calibration": "cpu/tiny"}), 1)
    assert measured["completed"] == 40


def test_a_move_is_paid_where_the_rows_are_equally_long_too():
    """Rows that come to be equally long by keeping different numbers of tokens have moved; so has what is loaded."""
    cost = {"kind": "linear", "verify_base_s": 0.02, "realign_base_s": 0.3, "concat_base_s": 0.5}
    lengths = {"kind": "uniform", "low_tokens": 7, "high_tokens": 9}
    scenario = OFFLINE.but(
        {"study.num_requests": 2, "engine.batch_size": 2, "workload.prompt_tokens": lengths}, cost=cost
    )
    equal = 0
    for index in range(20):
        log = simulate_once(scenario, index, keep_rows=True).log
        rows = [list(each.itertuples()) for _, each in log.row_frame().groupby("round")]
        assert log.rounds[0].realign_s == 0.5
        for line, now, before in zip(log.rounds[1:], rows[1:], rows[:-1], strict=True):
            if len(now) == 2 and before[0].kept != before[1].kept:
                assert line.realign_s >= 0.3
                equal += now[0].seq_len == now[1].seq_len
    assert equal > 10


# --- fits --------------------------------------------------------------------------------------------------------


def test_a_markov_fit_sees_how_far_apart_proposals_are():
    """One draft a round: after a right one the bonus token, which was not proposed, lies between two proposals."""
    count, p, correlation = 40_000, 0.7, 0.6
    uniform = np.random.default_rng(5).random(2 * count)
    right = [uniform[0] < p]
    for u in uniform[1:]:
        right.append(u < p + correlation * (right[-1] - p))
    starts, at = [], 0
    while len(starts) < count:
        starts.append(at)
        at += 2 if right[at] else 1
    accepted = np.array(right)[starts].astype(int)
    rows = {"sequence": 0, "seq_len": 1 + np.array(starts), "drafted": 1, "accepted": accepted, "kept": accepted + 1}
    header = {"schema": TRACE_SCHEMA, "layout": "inplace", "num_sequences": 1, "prompt_lens": [1]}
    header |= {"num_speculative_tokens": 1, "num_speculative_tokens_each": [1], "max_new_tokens": 2 * count}
    found, _ = fit_markov(EngineTrace("made up", header, pd.DataFrame(rows)))
    # standard errors are below 0.005: six of them
    assert (found["probability"], found["correlation"]) == pytest.approx((p, correlation), abs=0.03)
