"""At the edges of a study: what is unfinished, what does not fit, what is alike, and what rounding makes differ."""

import gzip
import json

import numpy as np
import pytest
from matplotlib import pyplot as plt

from refimpl import InputError
from simulator import Scenario, build_sweep, compare, plots, simulate, sweep
from simulator.cli import main
from simulator.engine_runs.trace_export import simulation_events
from simulator.service.metrics import frames_of
from simulator.service.replica import Replica
from simulator.service.simulation import simulate_once
from simulator.settings.folders import DATA, VALIDATION
from simulator.settings.inputs import input_files
from simulator.studies.attribution import attribute
from simulator.studies.capacity import find_capacity
from simulator.studies.whatif import WhatIf, outlook

RUSH = Scenario(
    noise=False,
    study={"kind": "open", "duration_s": 10, "arrivals": {"kind": "fixed", "interval_s": 0.2}},
    engine={"batch_size": 4, "max_new_tokens": 500},
    workload={"output_tokens": {"kind": "fixed", "tokens": 150}},
    cost={"kind": "linear", "verify_base_s": 0.025, "realign_base_s": 0.05, "concat_base_s": 0.05},
)


def test_results_go_over_nothing_that_they_are_made_from(capsys, tmp_path):
    """Tables have names that inputs may have, too; devices and traces may be given as files."""
    requests, device, draft = (tmp_path / name for name in ("requests.csv", "device.yaml", "draft.yaml"))
    requests.write_text("time_s,prompt_tokens,output_tokens\n0,5,10\n1,6,10\n")
    device.write_text((DATA / "devices/h200.yaml").read_text())
    draft.write_text((DATA / "architectures/vicuna-68m.yaml").read_text())
    served = {"kind": "open", "num_requests": 2, "arrivals": {"kind": "trace", "path": str(requests)}}
    axes = ["panel", "-n2", f"--axis=device={device}", f"--axis=models=vicuna-7b+{draft}"]
    measured = ["--calibration=nvidia-h200/vicuna", f"--device={device}", "--target=vicuna-7b", f"--draft={draft}"]
    before = {path: path.read_text() for path in (requests, device, draft)}
    for words, out in (
        (["run", "-n1", "-s", f"study={json.dumps(served)}"], tmp_path),
        (axes, device),
        (axes, draft),
        (["validate", "--roofline", *measured], draft),
        (["study", "budgets", "--rate=5", "--duration=1", "-n2", f"--device={device}"], device),
    ):
        assert main([*words, f"--out={out}"]) == 2
        assert "another option reads or writes it" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"cannot write .*requests.csv: another option reads or writes it"):
        simulate(RUSH.but(study=served), 1).write(tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_capacity_counts_no_request_that_the_clock_cuts_off():
    promised = RUSH.but({"study.arrivals": {"kind": "poisson", "rate_per_s": 1}, "service": {"slo_first_token_s": 1}})
    with pytest.raises(InputError, match=r"plan needs study.num_requests in place of study.duration_s"):
        find_capacity(promised, 0.9)
    lasting = promised.but(study={"kind": "open", "num_requests": 3, "arrivals": promised.study.arrivals})
    with pytest.raises(InputError, match=r"all of the rates 1 … .* reach an attainment of 0.9: ask for more requests"):
        find_capacity(lasting, 0.9, replications=1)


def test_methods_that_leave_requests_unfinished_are_judged_by_their_tokens():
    found = outlook(WhatIf(batch_size=4), RUSH, ("rollback", "inplace"), 2)
    assert found.results["rollback"]["censored"] > found.results["inplace"]["censored"] > 1
    assert found.judged_by == "tokens_per_s"
    assert found.ranking == ["inplace", "rollback"]
    done = RUSH.but(study={"kind": "open", "num_requests": 4, "arrivals": RUSH.study.arrivals})
    assert outlook(WhatIf(batch_size=4), done, ("rollback", "inplace"), 2).judged_by == "latency_p99_s"


def test_where_no_request_arrives_nothing_is_drawn_or_recommended():
    nobody = RUSH.but({"study.duration_s": 0.1})
    with pytest.raises(InputError, match="scenario: no request arrived after the warm-up, in any replication"):
        plots.latency_cdf(simulate(nobody, 2))
    told = repr(outlook(WhatIf(), nobody, ("eqspec", "inplace"), 2))
    assert told.startswith("eqspec or inplace, not decided: no replication has latency_p99_s of both, of 0.1 s")


def test_a_curve_of_latencies_ends_at_the_share_that_was_answered():
    results = simulate(RUSH, 1)
    share = results["completed"] / (results["completed"] + results["censored"])
    assert 0.1 < share < 0.9
    axes = plots.latency_cdf(results)
    times, shares = axes.lines[0].get_data()
    assert shares[np.isfinite(times)].max() == pytest.approx(share, abs=0.01)
    plt.close(axes.figure)


def test_every_file_of_a_scenario_is_one_of_its_inputs(tmp_path):
    """Also the one that says which tokens prompts have in common: a sweep runs anew once it has changed."""
    engine = {"layout": "paged", "num_blocks": 200, "max_new_tokens": 16}
    lengths = {"prompt_tokens": {"kind": "fixed", "tokens": 64}, "output_tokens": {"kind": "fixed", "tokens": 16}}
    path, found, (header, rounds) = tmp_path / "common.ndjson", [], shipped_trace()
    for step in (1000, 0):
        texts = [[*range(step * row, step * row + 500)] for row in range(header["num_sequences"])]
        path.write_text("\n".join([json.dumps(header | {"block_size": 16, "texts": texts}), *rounds]))
        common = {"common": {"kind": "trace", "path": str(path)}}
        scenario = Scenario(engine=engine, workload=lengths | common, study={"num_requests": 8})
        assert input_files(scenario) == {"common": path}
        frame = sweep(build_sweep(scenario, replications=1, grid={"engine.batch_size": [4]}), tmp_path / "sweep")
        found.append(frame["cache_hit_rate"].iloc[0])
    assert found[0] == 0 < found[1]


def shipped_trace():
    """Header and further lines of a trace of the engine."""
    path = sorted(VALIDATION.glob("cpu/tiny/inplace-*.ndjson.gz"))[0]
    header, *rounds = gzip.decompress(path.read_bytes()).decode().splitlines()
    return json.loads(header), rounds


def test_what_rounding_alone_makes_differ_does_not_differ():
    never = Scenario(noise=False, acceptance={"kind": "iid", "probability": 0.0})
    wide = never.but({"engine.batch_size": 16})
    table = compare(never, wide, 3).table
    alike = np.isclose(table["a"], table["b"], rtol=1e-9, atol=0)
    assert (table.loc[alike, "verdict"] == "equal").all()
    assert (table.loc[["busy_share", "per_token_mean_s"], "verdict"] == "equal").all()
    shares = attribute(never, wide, metric="per_token_mean_s", replications=2).table
    assert (shares["verdict"] == "equal").all()


def test_a_preempted_request_is_prefilled_once_more_where_mixed_caches_are_discarded(monkeypatch):
    engine = {"layout": "paged", "scheduler": "fifo", "batch_size": 6, "num_blocks": 40, "prefix_sharing": False}
    scenario = Scenario(
        noise=False,
        study={"num_requests": 12},
        engine=engine,
        workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 20, "high_tokens": 90}},
        cost={"kind": "linear", "verify_base_s": 0.025, "prefill_base_s": 1.0},
        switches={"discard_mixed_caches": True},
    )
    admit, readmissions = Replica._admit, []

    def watched(replica):
        back = [request for request in replica.scheduler.pool.waiting if request.rounds]
        seconds = admit(replica)
        readmissions.extend(len(replica.log.lines) for request in back if request.slot >= 0)
        return seconds

    monkeypatch.setattr(Replica, "_admit", watched)
    log = simulate_once(scenario).log
    assert len(readmissions) == log.num_preemptions > 2
    assert all(log.rounds[line].prefill_s > 0 for line in readmissions), "seconds of prefill"


def test_counters_of_a_trace_stand_where_their_round_ends():
    run = simulate_once(RUSH, keep_rows=True)
    counters = [event for event in simulation_events(run) if event["ph"] == "C" and event["name"] == "K/V MiB"]
    rounds = frames_of(run).rounds
    assert [event["ts"] for event in counters] == pytest.approx(
        1e6 * (rounds["start_s"] + rounds["round_s"]).to_numpy()
    )


def test_a_replica_has_room_for_its_own_requests():
    """Blocks for all of them at once and one for scratch, on the replica that needs most."""
    shared = Scenario(
        study={"num_requests": 9},
        service={"replicas": 2},
        workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 4, "high_tokens": 60}},
        engine={"layout": "paged", "scheduler": "fifo", "batch_size": 9, "max_new_tokens": 20},
        cost={"kind": "linear", "verify_base_s": 1.0, "kv_bytes_per_token": 1.0},
    )
    found = simulate(shared, 1)
    requests = found.frame("requests")
    blocks = -(-(requests["prompt_tokens"] + shared.engine.max_new_tokens) // 16)
    of_replicas = blocks.groupby(requests["replica"]).sum()
    assert len(of_replicas) == 2
    assert found["kv_allocated_bytes"] == 16 * (of_replicas.max() + 1)


def test_a_class_of_which_nothing_has_finished_has_no_latencies():
    """Whether it sends no request, or none has finished when the clock stops."""
    classes = [{"name": "chat"}, {"name": "rare", "share": 1e-6}]
    few = {"study": {"kind": "offline", "num_requests": 20}, "workload.classes": classes}
    early = {"study.duration_s": 1, "workload.classes": classes}
    for changes, completed in ((few, 20), (early, 0)):
        found = simulate(RUSH.but(changes), 2)
        assert found["completed"] == completed
        assert found["goodput_per_s.rare"] == 0


def test_a_lookup_needs_no_second_device():
    """What is drawn beside the target's passes does, be it by a model or a head."""
    engine = {"execution": "overlapped", "num_speculative_tokens": 3}
    priced = Scenario(
        study={"kind": "offline", "num_requests": 8}, engine=engine, service={"cost_per_hour": 3.6, "watts": 100}
    )
    for drafter, devices in (("ngram", 1), ("model", 2), ("hybrid", 2)):
        found = simulate(priced.but({"engine.drafter": drafter}), 1)
        assert found["tokens_per_joule"] == pytest.approx(found["tokens_per_s"] / (100 * devices))
