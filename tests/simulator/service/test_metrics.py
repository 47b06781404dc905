"""What metrics count: finishes within the window, first tokens of the unfinished, time that is idle, rows that wait."""

import pandas as pd
import pytest

from refimpl.core.errors import InputError
from refimpl.core.formats import POINT_COLUMNS
from simulator.cli import main
from simulator.intervals import summarize
from simulator.runner import simulate
from simulator.service.metrics import inter_token_s, measure
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from tests.simulator.scenarios import PLAIN, fixed, scenario
from tests.synthetic_inputs import synthetic_points, write_calibration

COST = Spec.of("linear", verify_base_s=0.01, kv_bytes_per_token=2.0)


CLOSED = Scenario(
    study=Study(kind="closed", clients=60, duration_s=40.0), workload=fixed(5, 10), engine=PLAIN, cost=COST,
)  # fmt: skip


def test_answers_with_which_the_warm_up_ends_are_no_more_counted_than_their_tokens():
    """Clients come back at once, for one token each, and the warm-up ends with a round of answers.

    The end of that round is a sum of its stages, which rounding puts behind the warm-up in the last replications.
    """
    stages = Spec.of("linear", verify_base_s=0.05, host_base_s=0.0071, draft_base_s=0.0013, concat_base_s=0.0011,
                     prefill_s_per_token=1e-4, noise_cv=0.3)  # fmt: skip
    engine = {"method": "realigned+fifo", "num_speculative_tokens": 2, "max_new_tokens": 5}
    prompts = Workload(Spec.of("lognormal", median_tokens=50, sigma=1.0), Spec.of("fixed", tokens=1))
    for clients, numbers in ((8, range(10)), (1, (29, 100, 136, 239))):
        study = Study(kind="closed", clients=clients, duration_s=20.0, warmup="mser5")
        made = Scenario(seed=7, study=study, workload=prompts, engine=engine | {"batch_size": clients}, cost=stages)
        found = pd.DataFrame([measure(simulate_once(made, number)) for number in numbers])
        assert (found["warmup_s"] > 0).any()
        assert found["requests_per_s"].to_numpy() == pytest.approx(found["tokens_per_s"].to_numpy(), rel=1e-9)


def test_a_warm_up_after_which_nobody_comes_is_refused(tmp_path):
    """All are served at once, the first 20 for longer: those that mser5 keeps came with those that it leaves out."""
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n" + "0,5,10\n" * 20 + "0,5,1\n" * 100)
    rest = {"arrivals": {"kind": "trace", "path": str(tmp_path / "t.csv")}, "warmup": "mser5"}
    with pytest.raises(InputError, match="nobody who finished came after"):
        simulate(CLOSED.but({"engine.batch_size": 120}, study={"kind": "open", "num_requests": 120, **rest}), 1)


def test_replications_without_rounds_do_not_enter_means_over_rounds():
    """About a third of them see no request; in all others every draft is right, and the server was busy for a while."""
    rare = Study(kind="open", duration_s=10.0, arrivals=Spec.of("poisson", rate_per_s=0.1))
    right = Scenario(study=rare, workload=fixed(5, 12), acceptance=Spec.of("iid", probability=1.0), cost=COST)
    found = simulate(right, 20)
    empty = found.metrics["rounds"] == 0
    assert 0 < empty.sum() < 20
    summary = found.summary().loc[["mean_acceptance_length", "tokens_per_round", "verify_share", "cache_hit_rate"]]
    assert (summary["n"] == 20 - empty.sum()).all()
    assert summary.loc["mean_acceptance_length", "mean"] == 6
    assert (found.metrics["busy_share"][empty] == 0).all()


def test_bytes_of_tokens_of_unknown_size_are_not_known(tmp_path):
    """Not in a replication, nor in its files."""
    found = simulate(CLOSED.but({"cost.kv_bytes_per_token": 0.0}), 2)
    found.write(tmp_path)
    for table in (found.metrics, pd.read_csv(tmp_path / "metrics.csv")):
        assert table[["kv_peak_bytes", "kv_mean_bytes", "kv_allocated_bytes"]].isna().all(axis=None)
        assert table["tokens_per_s"].notna().all()


def test_who_always_runs_was_never_passed_over():
    engine = Engine(scheduler="fifo", batch_size=2)
    fifo = Scenario(study=Study(num_requests=12), engine=engine, cost=COST)
    assert simulate(fifo, 1)["longest_wait_rounds"] == 0
    grouped = fifo.but({"engine.scheduler": "grouped", "engine.window_size": 8})
    assert simulate(grouped, 1)["longest_wait_rounds"] > 0


def test_an_interval_ends_where_its_metric_does():
    """Few replications that differ much: Student's interval would hold times below 0 and shares above 1."""
    found = summarize(pd.DataFrame({"latency_mean_s": [0.1, 3.0], "busy_share": [0.5, 1.0]}), 0.95)
    assert found.loc["latency_mean_s", "low"] == 0
    assert found.loc["latency_mean_s", "high"] > 3
    assert found.loc["busy_share", ["low", "high"]].tolist() == [0, 1]


# --- widths outside of what was measured ---------------------------------------------------------------------------


def measured(folder, points, **engine):
    calibration = write_calibration(folder, points=points)
    settings = {"layout": "realigned", "scheduler": "static", "batch_size": 2, "num_speculative_tokens": 2}
    cost = Spec.of("table", calibration=str(calibration), outside="extrapolate")
    workload = fixed(70, 20)
    return Scenario(study=Study(num_requests=4), workload=workload, engine=Engine(**settings | engine), cost=cost)


@pytest.mark.parametrize("component", ["concat", "realign", "verify", "draft"])
def test_each_component_is_held_against_its_own_widths(tmp_path, component):
    points = [p for p in synthetic_points() if not (p[0] == component and p[4] == 512)]
    narrow = [(*p[:4], 64, *p[5:]) for p in synthetic_points() if p[0] == component and p[4] == 512]
    found = simulate(measured(tmp_path / "c", points + narrow), 1)
    assert {what.partition(":")[0] for what in found.extrapolated} == {component}


@pytest.mark.parametrize(("layout", "factor"), [("paged", 2), ("inplace_scattered", 1)])
def test_gathered_blocks_cost_what_was_measured_of_them(tmp_path, layout, factor):
    """Where no blocks were, they cost what scattered rows do, which are copied, too."""
    mean = POINT_COLUMNS.index("mean_s")
    passes = [p for p in synthetic_points() if p[0] in ("draft", "verify")]
    others = [p for p in synthetic_points() if p not in passes]
    scattered = [(p[0], "inplace_scattered", *p[2:]) for p in passes]
    blocks = [(p[0], layout, *p[2:mean], 2 * p[mean], *p[mean + 1 :]) for p in passes if layout == "paged"]
    engine = {"scheduler": "fifo", "layout": "paged"}
    runs = [
        simulate_once(measured(tmp_path / name, others + points, **engine).but(noise=False)).log.rounds
        for name, points in (("before", scattered), ("after", scattered + blocks))
    ]
    for before, after in zip(*runs, strict=True):
        found = (after.draft_s, after.verify_s, after.host_s)
        assert found == pytest.approx((factor * before.draft_s, factor * before.verify_s, before.host_s))


def test_a_masked_round_is_as_wide_as_when_it_was_priced(tmp_path):
    """Its columns grow by k + 1 when it commits; what was priced was narrower."""
    points = [(*p[:4], 212 if p[4] == 512 else p[4], *p[5:]) for p in synthetic_points()]
    scenario = measured(tmp_path / "c", points, layout="masked", batch_size=1, num_speculative_tokens=5).but(
        {
            "study.num_requests": 1,
            "workload.prompt_tokens.tokens": 201,
            "workload.output_tokens.tokens": 3,
            "cost.outside": "refuse",
        },
        acceptance={"kind": "iid", "probability": 0.0},
    )
    log = simulate_once(scenario).log
    assert [line.width for line in log.rounds] == [200, 206, 212]


# --- what commands tell ----------------------------------------------------------------------------------------------


LINEAR = "cost={kind: linear, verify_base_s: 0.01, kv_bytes_per_token: 1.0}"
CARD = "cost={{kind: roofline, device: {}, target: qwen3-8b, draft: qwen3-0.6b}}"
MANY = ("engine.batch_size=96", "study.num_requests=96")
LOG = "study={kind: open, num_requests: 2, arrivals: {kind: trace, path: t.csv}}"
ROOM = "and refuse the run; simulated is a server with paged K/V"
UNKNOWN = "the budget of a request is the output that the trace has"
WIDE = ("method=exspec", "engine.window_size=48")
NOTES = [  # settings, a note, whether it is told
    (("study={kind: closed, clients: 40, duration_s: 1.0}",),
     "had not finished at the end: latencies are those of the others", True),
    ((LINEAR, "service.kv_capacity_bytes=900"), ROOM, True),
    ((LINEAR, "service.kv_capacity_bytes=90000"), ROOM, False),
    ((LINEAR, "method=paged", "service.kv_capacity_bytes=900"), ROOM, False),
    ((*MANY, CARD.format("rtx-4090")), ROOM, True),
    ((*MANY, CARD.format("h100")), ROOM, False),
    ((LOG, LINEAR, "service.kv_capacity_bytes=900"), UNKNOWN, True),
    ((LOG, LINEAR, "service.kv_capacity_bytes=900", "engine.max_new_tokens=9"), UNKNOWN, False),
    ((LOG, LINEAR), UNKNOWN, False),
    ((*WIDE, "study.num_requests=47"), "engine.window_size 48 is more than the 47 requests", True),
    ((*WIDE, "study.num_requests=48"), "never full", False),
    (("service.slo_first_token_s=1",), "slo_attainment", True),
    ((), "goodput_per_s", False),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "note", "is_told"), NOTES)
def test_what_the_numbers_cannot_say_is_told(capsys, tmp_path, monkeypatch, settings, note, is_told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n0,3,4\n1,3,4\n")
    assert main(["run", "-n", "2", *(f"-s{each}" for each in settings)]) == 0
    assert (note in capsys.readouterr().out) == is_told


def test_tables_are_written(tmp_path):
    assert main(["run", "-n", "2", "--out", str(tmp_path / "new" / "folder")]) == 0
    tables = {path.name: pd.read_csv(path) for path in (tmp_path / "new" / "folder").iterdir()}
    assert set(tables) == {"metrics.csv", "requests.csv", "rounds.csv"}
    assert len(tables["metrics.csv"]) == 2
    assert len(tables["requests.csv"]) == 2 * 64
    assert tables["rounds.csv"]["kept"].sum() == tables["requests.csv"]["generated_tokens"].sum()
    with pytest.raises(InputError, match="the tables were not kept"):
        simulate(CLOSED, 1, keep_frames=False).write(tmp_path)


@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "by_length"])
def test_one_of_several_servers_always_has_the_rows_that_it_waits_for(router):
    """Of 61 clients, three servers that wait for 21 rows cannot have 20 each."""
    many = CLOSED.but({"study.clients": 61, "switches.wait_for_rows": 21, "study.think_time_s": 0.1})
    lengths = {"kind": "uniform", "low_tokens": 1, "high_tokens": 30}
    varied = many.but({"workload.prompt_tokens": lengths, "workload.output_tokens": lengths})
    found = simulate(varied.but(service={"replicas": 3, "router": router}), 1)
    assert found["makespan_s"] > 39
    CLOSED.but({"switches.wait_for_rows": 99, "switches.wait_at_most_s": 1.0})  # such a wait ends


def test_converting_a_trace_simulates_nothing(capsys, engine_trace, tmp_path):
    arguments = ["trace", "--engine", str(engine_trace), "--out", str(tmp_path / "out.json")]
    assert main(arguments) == 0
    assert main([*arguments, "--replication", "3"]) == 2
    assert "--engine converts a trace: leave out scenario" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "replicas"), [("realigned+grouped", 1), ("inplace+fifo", 2)])
def test_rounds_kept_in_blocks_are_those_of_the_rows(monkeypatch, method, replicas):
    """All rounds until the clock stops, whatever the size of a block; gaps as the row log has them."""
    study = {"kind": "open", "num_requests": None, "duration_s": 20.0, "arrivals": Spec.of("poisson", rate_per_s=20)}
    engine = {"method": method, "window_size": 16 if replicas == 1 else 4}
    made = scenario({"service.replicas": replicas, "workload": fixed(5, 40)}, study=study, engine=engine)
    whole = simulate_once(made, keep_rows=True).log
    monkeypatch.setattr("simulator.service.records.BLOCK_ROUNDS", 7)
    parts = simulate_once(made)
    assert parts.log.num_rounds > 7 * 10
    assert parts.log.rounds == whole.rounds
    assert len(parts.log.columns_with_cut["round_s"]) == whole.num_rounds + len(whole.cut_lines) > whole.num_rounds
    rows = whole.row_frame().merge(
        whole.round_frame().assign(round=lambda rounds: rounds.groupby("replica").cumcount()), on=["replica", "round"]
    )
    gaps_s = rows.assign(end_s=rows["start_s"] + rows["round_s"]).groupby("sequence")["end_s"].diff()
    assert inter_token_s(parts.log, parts.log.round_columns, 0.0) == pytest.approx(gaps_s.dropna().to_numpy())
