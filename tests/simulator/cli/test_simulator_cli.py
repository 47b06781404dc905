"""The command line, and what its commands write."""

import gzip
import importlib
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer
import yaml

from refimpl.core.errors import InputError
from simulator.cli import app, main
from simulator.engine_runs.trace_export import export_trace
from simulator.engine_runs.validation import read_validation, validate, write_table
from simulator.runner import simulate
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload, load_scenario
from tests.synthetic_inputs import HEADER, LINES, write_engine_trace

COMMANDS = typer.main.get_command(app).commands
EXPLAINED = ("--attribute", "tokens_per_s")
SCENARIO = Scenario(
    name="small",
    study=Study(num_requests=8),
    workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=4, high_tokens=20)),
    engine=Engine(layout="realigned", scheduler="static", batch_size=2, max_new_tokens=20),
    cost=Spec.of("linear", verify_base_s=0.02, realign_base_s=0.01),
)


@pytest.fixture
def path(tmp_path):
    SCENARIO.save(tmp_path / "s.yaml")
    return str(tmp_path / "s.yaml")


def run_json(capsys, *arguments):
    """Exit code and what `jq` would read: with --json, stdout holds nothing else."""
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_run(capsys, path):
    code, data = run_json(capsys, "run", path, "-n", "3")
    assert code == 0
    assert data["metrics"]["completed"]["mean"] == 8
    assert data["content_hash"] == SCENARIO.content_hash
    assert run_json(capsys, "run", path, "-n", "3")[1] == data


def test_compare(capsys, path):
    code, data = run_json(capsys, "compare", path, "-n", "5", "-s", "engine.scheduler=fifo")
    assert code == 0
    verdicts = {name: line["verdict"] for name, line in data["metrics"].items()}
    assert (verdicts["tokens_per_s"], verdicts["latency_mean_s"]) == ("b higher, better", "b lower, better")
    assert (verdicts["makespan_s"], verdicts["completed"]) == ("b lower", "equal")
    assert verdicts["kv_peak_bytes"] == "not known"


def test_a_comparison_tells_what_is_worse_and_whose_latencies_are_short(capsys, path):
    cut = ["-s", "study={kind: closed, clients: 4, duration_s: 1.0}", "-s", "engine.scheduler=fifo"]
    assert main(["compare", path, "-n", "3", *cut, "-s", "cost.verify_base_s=0.2"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"tokens_per_s .* b lower, worse\n", told)
    assert "\nb: " in told
    assert "\na: " not in told
    assert "had not finished at the end: latencies are those of the others" in told


def table_of(capsys, *arguments):
    """Lines of the printed table, by metric."""
    assert main([*arguments]) == 0
    return {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}


def test_a_table_leaves_out_what_cannot_vary(capsys, path):
    alone = {"grouping_rate", "realign_share", "cut_outputs", "censored", "longest_wait_rounds", "cache_hit_rate"}
    still = ["run", "-n", "2"]
    assert not alone & set(table_of(capsys, *still))
    assert alone < set(table_of(capsys, *still, "--all"))
    assert alone < set(run_json(capsys, *still)[1]["metrics"])
    moved = table_of(capsys, "run", path, "-n", "2", "-s", "method=exspec")
    assert {"grouping_rate", "realign_share", "draft_acceptance_rate"} < set(moved)
    assert "draft_acceptance_rate" not in table_of(capsys, *still, "-s", "engine.num_speculative_tokens=0")
    either = table_of(capsys, "compare", path, "-n", "2", "-s", "engine.layout=inplace")
    assert "realign_share" in either


def test_memory_that_is_not_known_is_not_zero(capsys):
    unknown = ["run", "-n", "2"]
    assert table_of(capsys, *unknown)["kv_peak_bytes"] == ["–"] * 5 + ["0"]
    assert run_json(capsys, *unknown)[1]["metrics"]["kv_allocated_bytes"]["mean"] is None
    known = run_json(capsys, *unknown, "-s", "cost.kv_bytes_per_token=10")[1]["metrics"]["kv_allocated_bytes"]
    assert known["mean"] > 0


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        ([], "linear (illustrative defaults, not measured)"),
        (["-s", "cost.verify_base_s=0.1"], "linear (as given)"),
        (["-s", "cost={kind: table, calibration: cpu/tiny}"], "cpu/tiny@"),
    ],
)
def test_the_first_line_says_where_costs_come_from(capsys, cost, told):
    assert main(["run", "-n", "1", *cost, "-s", "engine.batch_size=2"]) == 0
    assert capsys.readouterr().out.startswith(f"scenario: 1 replication, costs: {told}")


def test_attribute_and_its_plot(capsys, path, tmp_path):
    plot = tmp_path / "w.png"
    code, data = run_json(capsys, "compare", path, "-n", "3", "-s", "method=exspec", *EXPLAINED, "--plot", str(plot))
    assert code == 0
    assert set(data["factors"]) == {"refill", "grouping", "total"}
    assert plot.stat().st_size > 1000
    assert main(["compare", path, "-n", "2", "-s", "engine.scheduler=fifo", *EXPLAINED]) == 0
    told = capsys.readouterr().out
    assert re.search(r"contribution +low +high +of the difference +verdict", told)
    assert "what taking the factor from b adds to tokens_per_s" in told


def test_trace_is_a_chrome_trace(capsys, path, tmp_path):
    out = tmp_path / "t.json"
    code, data = run_json(capsys, "trace", path, "--out", str(out))
    events = json.loads(out.read_text())["traceEvents"]
    assert code == 0
    assert data["events"] == len(events)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"replica 0", "phases", "slot 0", "slot 1"} <= names
    assert {event["name"] for event in events if event["ph"] == "C"} == {"pool", "K/V MiB"}
    phases = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    ends = [event["ts"] + event["dur"] for event in phases]
    assert all(start["ts"] >= end - 1e-3 for start, end in zip(phases[1:], ends, strict=False))


def test_speed_is_told_beside_that_of_simpy_and_a_fleet_is_measured_by_the_command(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    tool = importlib.import_module("simulator_speed")
    assert tool.rounds_per_s(64, 1) > 0
    monkeypatch.setattr(tool, "rounds_per_s", lambda window: 500.0)
    monkeypatch.setattr(tool, "timeouts_per_s", lambda: 20_000.0)
    assert tool.rounds()["ratio"] == {"64": 0.025, "1024": 0.025, "4096": 0.025}
    found = tool.fleet(requests=20)
    assert found["requests"] == 20
    assert min(found["rows"], found["rounds"]) > 20
    assert found["peak_gib"] > 0.1  # no bound above: a child begins with the peak of the tests that start it


def test_tables_are_seen_with_and_without_json(capsys, path):
    assert main(["run", path, "-n", "1", "--json"]) == 0
    beside = capsys.readouterr().err
    assert main(["run", path, "-n", "1"]) == 0
    assert capsys.readouterr() == (beside, "")
    assert "tokens_per_s" in beside


def test_no_command_overwrites_what_it_reads(capsys, path, engine_trace, tmp_path):
    before = engine_trace.read_bytes()
    replay = [f"acceptance={{kind: replay, path: {engine_trace}}}"]
    (tmp_path / "link.svg").symlink_to(engine_trace)
    for arguments in (
        ["trace", "--engine", str(engine_trace), "--out", str(engine_trace)],
        ["trace", "-s", *replay, "--out", str(engine_trace)],
        ["trace", path, "--out", path],
        ["compare", path, "-s", *replay, *EXPLAINED, "--plot", str(tmp_path / "link.svg")],
    ):
        assert main(arguments) == 2
        assert "another option reads or writes it" in capsys.readouterr().err
    assert engine_trace.read_bytes() == before
    assert load_scenario(path) == SCENARIO


def test_many_extrapolations_are_few_lines(capsys, calibration):
    wide = "workload.prompt_tokens={kind: uniform, low_tokens: 500, high_tokens: 900}"
    cost = f"cost={{kind: table, calibration: {calibration}, outside: extrapolate}}"
    arguments = ["run", "-n", "2", "-s", wide, "-s", cost, "-s", "engine.batch_size=9"]
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("extrapolated: ")]
    found = run_json(capsys, *arguments)[1]["extrapolated"]
    counts = [re.search(r" \(and (\d+) more like it\)$", line) for line in lines]
    assert len(lines) < 8 < len(found) == sum(int(count[1]) + 1 if count else 1 for count in counts)


def test_a_precision_that_is_not_reached_is_told(capsys, path, monkeypatch):
    monkeypatch.setattr("simulator.runner.simulate", partial(simulate, max_replications=12))
    for precision, reached in (("1e-9", False), ("0.9", True)):
        assert main(["run", path, "-n", "2", "--precision", precision]) == 0
        told = (
            "precision 1e-09 is not reached: after 12 replications tokens_per_s is known to " in capsys.readouterr().out
        )
        assert told is not reached
        assert run_json(capsys, "run", path, "-n", "2", "--precision", precision)[1]["precision_reached"] is reached


def test_a_precision_of_what_no_run_has_is_not_reached(capsys):
    arguments = ["run", "-s", "study.num_requests=1", "-s", "workload.output_tokens.tokens=1", "--precision", "0.1"]
    data = run_json(capsys, *arguments, "--metric", "per_token_mean_s")[1]
    assert not data["precision_reached"]
    assert main([*arguments, "--metric", "per_token_mean_s"]) == 0
    assert "precision 0.1 is not reached: after 20 replications per_token_mean_s is known in" in capsys.readouterr().out
    assert main(["run", "-n", "2", "--metric", "latency_p99_s"]) == 2
    assert "--metric latency_p99_s is what --precision refers to: give one, too" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "metric", "message"),
    [
        ({"sobol": {"samples": 2, "ranges": {"acceptance.probability": [0.1, 0.9]}}}, "foo", "metric must be one of"),
        ({"grid": {"seed": [0]}}, "tokens", "metric must be one of"),
        ({"grid": {"seed": [0]}}, "tokns_per_s", "not 'tokns_per_s' (did you mean tokens_per_s?)"),
    ],
)
def test_a_metric_that_is_of_no_use_is_refused_before_the_work(capsys, tmp_path, kind, metric, message):
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(kind))
    arguments = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), "--metric", metric]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["compare", str(tmp_path / "none.yaml"), "-s", "seed=1", "--attribute", metric]) == 2


def test_progress_is_told_where_there_is_no_terminal(capsys, monkeypatch, path):
    monkeypatch.setattr("refimpl.core.progress.SECONDS_A_LINE", -1.0)
    assert main(["run", path, "-n", "2"]) == 0
    assert capsys.readouterr().err == "replications: 1 of 2\nreplications: 2 of 2\n"
    seen = []
    validate("cpu/tiny", replications=1, runs=slice(2), progress=lambda *told: seen.append(told))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_names_every_option_in_full_on_80_columns(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert f"raggedspec sim {command}" in told
    options = [name for param in COMMANDS[command].params for name in param.opts]
    assert [name for name in options if not re.search(rf"(?<![\w-]){name}(?![\w-])", told)] == []


def test_outputs_are_checked_before_the_work(capsys, monkeypatch, path, tmp_path):
    def fail(*_, **__):
        pytest.fail("worked before the output was checked")

    for name in (
        "studies.attribution.attribute",
        "service.simulation.simulate_once",
        "engine_runs.validation.validate",
    ):
        monkeypatch.setattr(f"simulator.{name}", fail)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"grid": {"seed": [0]}}))
    for arguments, message in (
        (
            ["compare", path, "-s", "seed=1", *EXPLAINED, "--plot", str(tmp_path / "w.nonsense")],
            "a figure ends in one of ",
        ),
        (["compare", path, "-s", "seed=1", *EXPLAINED, "--plot", str(tmp_path / "none" / "w.png")], "does not exist"),
        (["trace", path, "--out", str(tmp_path)], "it is a folder"),
        (["validate", "--out", str(tmp_path / "none" / "v.csv")], "v.csv: the folder "),
        (["sweep", str(tmp_path / "sweep.yaml"), "--out", path], "s.yaml is not a folder"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith("error: ")
        assert message in error
        assert "\n" not in error


def test_files_are_written_whole_or_not_at_all(monkeypatch, tmp_path):
    """A file that is there stays as it was when a write breaks off."""
    results = {"s.yaml": SCENARIO.save, "t.json": lambda to: export_trace(simulate_once(SCENARIO, keep_rows=True), to)}
    results["v.csv"] = lambda to: write_table(read_validation("cpu/tiny"), to)

    def break_off(*_):
        raise OSError(28, "No space left on device")

    for name, write in results.items():
        (tmp_path / name).write_text("old")
        with monkeypatch.context() as broken:
            broken.setattr("os.replace", break_off)
            with pytest.raises(InputError, match=f"{name}: No space left"):
                write(tmp_path / name)
        assert (tmp_path / name).read_text() == "old"
        write(tmp_path / name)
        assert (tmp_path / name).read_text() != "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(results)


CUT_SHORT = gzip.compress(b"{}\n" * 99, mtime=0)[:-9]  # the same bytes in every process that collects tests


@pytest.mark.parametrize("content", [b"not packed", b"\x1f\x8b\x08\x00", CUT_SHORT, b"\xff"])
def test_a_broken_trace_is_one_line_and_exit_code_2(capsys, tmp_path, content):
    (tmp_path / "t.ndjson.gz").write_bytes(content)
    assert main(["validate", str(tmp_path / "t.ndjson.gz")]) == 2
    assert "t.ndjson.gz: cannot be read: " in capsys.readouterr().err


def test_the_module_runs_loads_no_tensor_library_and_answers_soon():
    code = (
        "import sys; from simulator import Scenario, simulate; simulate(Scenario(), 1);"
        "from simulator.settings import tables; tables.provenance.stamp(*tables.LIBRARIES);"
        "print([m for m in ('torch', 'transformers', 'jaxtyping', 'matplotlib', 'distributed') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    done = subprocess.run(
        [sys.executable, "-m", "simulator", "run", "--bogus"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_the_exit_code_tells_whether_the_decisions_agree(capsys, engine_trace):
    assert run_json(capsys, "validate", str(engine_trace))[0] == 0
    lines = [*LINES[:3], LINES[3] | {"kept": 1}, *LINES[4:]]
    tampered = write_engine_trace(engine_trace.with_name("tampered.ndjson"), HEADER, lines)
    code, data = run_json(capsys, "validate", str(engine_trace), str(tampered))
    assert (code, data["exact"]) == (1, False)


@pytest.mark.parametrize("study", ["overlap", "budgets"])
def test_a_comparison_needs_two_replications(study, capsys):
    assert main(["study", study, "--replications", "1"]) == 2
    assert "replications must be" in capsys.readouterr().err
