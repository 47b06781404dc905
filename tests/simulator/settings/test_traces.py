"""Traces of services and of engines: what is read, what a study makes of it, and what is told."""

import gzip
import json
from shutil import copy

import pandas as pd
import pytest

from refimpl.core.reading import read_mappings
from simulator.cli import main
from simulator.engine_runs.validation import validate
from simulator.runner import simulate
from simulator.service.workload import most_requests
from simulator.settings.folders import VALIDATION
from simulator.settings.scenario import Scenario
from simulator.settings.traces import EngineTrace, read_engine_trace, read_service_trace
from tests.synthetic_inputs import HEADER, LINES, write_engine_trace

SERVICES = {
    "plain.csv": "time_s,prompt_tokens,output_tokens\n1,10,5\n3,20,6\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,10,5\n2023-11-16 18:15:48.5,20,6\n",
    "zones.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00Z,10,5\n2024-05-10 01:00:02+01:00,20,6\n",
    "one_zone.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00Z,10,5\n2024-05-10 00:00:02,20,6\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "1,ChatGPT,10,5,15,C\n2,ChatGPT,9,0,9,C\n3,GPT-4,20,6,26,C\n",
    "mooncake.jsonl": '{"timestamp": 1000, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'
    '{"timestamp": 3000, "input_length": 20, "output_length": 6, "hash_ids": [2]}\n',
}


@pytest.mark.parametrize("name", SERVICES)
def test_known_service_traces_are_read_directly(tmp_path, name):
    (tmp_path / name).write_text(SERVICES[name])
    trace = read_service_trace(tmp_path / name)
    assert trace.time_s.tolist() == [0, 2]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 20], [5, 6])


def test_what_a_service_trace_has_and_is_not_read_is_said_once(tmp_path, capsys):
    """Requests without output are left out and counted; of blocks that requests share, hash_ids tell in vain."""
    (tmp_path / "m.jsonl").write_text(SERVICES["mooncake.jsonl"].replace('"output_length": 6', '"output_length": 0'))
    for _ in range(2):
        assert read_service_trace(tmp_path / "m.jsonl").output_tokens.tolist() == [5]
    left_out, not_read = capsys.readouterr().err.splitlines()
    assert left_out.endswith("m.jsonl: 1 of 2 requests have no output, and are left out")
    assert not_read.endswith("m.jsonl: hash_ids are not read: workload.common says what requests share")


def served(tmp_path, lines, **study):
    """A study of all requests of a log."""
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n" + lines)
    arrivals = {"kind": "trace", "path": str(tmp_path / "t.csv")} | study
    return Scenario(study={"kind": "open", "arrivals": arrivals}, cost={"kind": "linear", "verify_base_s": 0.002})


@pytest.mark.parametrize("second_s", [0.012, 0.013])
def test_requests_of_one_time_come_together(tmp_path, second_s):
    """Whatever 0.003 + (second_s - 0.003) is in floating point."""
    made = served(tmp_path, "".join(f"{time_s},10,1\n" for time_s in (0, 0.003, second_s, second_s)))
    assert simulate(made, 1).frame("rounds")["rows"].tolist() == [1, 1, 2]


LONG = "0,10,1000\n1,20,2000\n2,30,50\n"


@pytest.mark.parametrize(
    ("limit", "generated", "cut"), [(None, [1000, 2000, 50], 0), (128, [128, 128, 50], 2), (3000, [1000, 2000, 50], 0)]
)
def test_a_service_trace_brings_its_times_lengths_and_budgets(tmp_path, engine_trace, limit, generated, cut):
    """Outputs are cut only where asked, and that is told; other outputs beside it replace none."""
    made = served(tmp_path, LONG, speedup=2.0).but({"engine.max_new_tokens": limit})
    results = simulate(made, 1)
    requests = results.frame("requests")
    assert (requests["arrival_s"].tolist(), requests["prompt_tokens"].tolist()) == ([0, 0.5, 1], [10, 20, 30])
    assert (requests["generated_tokens"].tolist(), results["cut_outputs"]) == (generated, cut)
    others = made.but({"workload.output_tokens": {"kind": "trace", "path": str(engine_trace)}})
    assert simulate(others, 1).frame("requests")["generated_tokens"].tolist() == generated


# --- studies that last as long as a record -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["trace", "replay"])
def test_all_requests_of_a_record_come_where_nothing_says_how_many(tmp_path, engine_trace, kind):
    whole = served(tmp_path, LONG)
    if kind == "replay":
        whole = whole.but(study={"kind": "open", "arrivals": {"kind": kind, "path": str(engine_trace)}})
    count = most_requests(whole.study)
    assert count == (3 if kind == "trace" else 2)
    given = simulate(whole.but({"study.num_requests": count}), 1)
    pd.testing.assert_frame_equal(simulate(whole, 1).metrics, given.metrics)
    assert simulate(whole.but({"study.num_requests": 1}), 1)["completed"] == 1


@pytest.mark.parametrize("kind_first", [True, False])
def test_a_change_to_recorded_arrivals_brings_all_of_them(tmp_path, kind_first):
    """Where nothing was said of the study: 64 requests are those of a study without a record."""
    study = served(tmp_path, LONG).study
    log = study.arrivals.as_mapping()
    changes = {"study.kind": "open"} | {f"study.arrivals.{name}": value for name, value in log.items()}
    assert Scenario().but(changes if kind_first else dict(reversed(changes.items()))).study == study
    assert Scenario().but({"study.kind": "open"}).study.num_requests == 64
    assert Scenario().but(changes | {"study.num_requests": 1}).study.num_requests == 1
    assert Scenario().but(study={"kind": "open", "num_requests": 1, "arrivals": log}).study.num_requests == 1
    assert Scenario(study={"num_requests": 2}).but(changes).study.num_requests == 2


@pytest.mark.parametrize("length", [{}, {"study.duration_s": 99.0}])
def test_prompts_are_parted_by_those_of_the_log_alone(tmp_path, length):
    """Of three requests, as of the log, a third each: not of a thousand that begin with it over and over."""
    made = served(tmp_path, LONG).but(service={"replicas": 2, "router": "by_length"}).but(length)
    assert simulate(made, 1).frame("requests")["replica"].tolist() == [0, 1, 1]


# --- engine traces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "output_lens", "bits"),
    [
        ([(0, 2, 3, 3, 4), (2, 1, 3, 1, 2), (0, 6, 3, 0, 1)], [5, 0, 2], [1, 1, 1, -1, 0]),
        ([(0, 2, 3, 1, 2), (0, 4, 3, 3, 4)], [6, 0, 0], [1, 0, 1, 1, 1, -1]),  # known up to the first wrong draft
    ],
)
def test_what_a_trace_says_of_its_sequences(rows, output_lens, bits):
    frame = pd.DataFrame(rows, columns=["sequence", "seq_len", "drafted", "accepted", "kept"])
    trace = EngineTrace("made up", HEADER | {"num_sequences": 3, "prompt_lens": [2, 4, 1]}, frame)
    assert trace.output_lens == output_lens
    assert trace.match_bits(0)[: len(bits)].tolist() == bits
    assert set(trace.match_bits(1)) == {-1}


def test_a_request_that_was_cancelled_does_not_break_a_trace_off(tmp_path):
    """What it has generated until then stands in the header."""
    path = write_engine_trace(tmp_path / "t.ndjson", HEADER | {"output_lens": [6, 3]}, LINES[:-1])
    assert read_engine_trace(path).output_lens == [6, 3]


# --- held-out runs -----------------------------------------------------------------------------------------------

SHIPPED = VALIDATION / "cpu" / "tiny"
RUN = SHIPPED / "inplace-b6-k2-0.ndjson.gz"
SECONDS = ("prefill_s", "draft_s", "verify_s", "realign_s", "host_s", "record_s", "round_s")


def held_out(folder, meta=None, header=None, **changes):
    """A folder with the shipped run; a function of a row's field is called with the value there."""
    (folder / "fit").mkdir(parents=True)
    copy(SHIPPED / "fit" / "acceptance.ndjson.gz", folder / "fit")
    (folder / "meta.json").write_text(json.dumps(json.loads((SHIPPED / "meta.json").read_text()) | (meta or {})))
    first, *rows = (line for _, line in read_mappings(RUN))
    for row in rows:
        row |= {name: new(row[name]) if callable(new) else new for name, new in changes.items()}
    text = "\n".join(map(json.dumps, [first | (header or {}), *rows])) + "\n"
    (folder / "x-0.ndjson.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.mark.parametrize(
    ("meta", "changes", "said"),
    [
        ({}, {"header": {"reference_s": "x"}}, "x-0.ndjson.gz:1: reference_s must be a number > 0, not 'x'"),
        ({}, {"header": {"reference_s": 0}}, "x-0.ndjson.gz:1: reference_s must be a number > 0, not 0"),
        ({}, dict.fromkeys(SECONDS, 0.0), "x-0.ndjson.gz: its rounds take no seconds"),
        ({"reference_s": 0}, {}, "meta.json: reference_s must be a number > 0, not 0"),
        ({"drift_cv": "x"}, {}, "meta.json: drift_cv must be a number in [0, 10], not 'x'"),
    ],
)
def test_impossible_numbers_of_held_out_runs_are_refused(tmp_path, capsys, meta, changes, said):
    held_out(tmp_path / "runs", meta, **changes)
    assert main(["validate", str(tmp_path / "runs"), "-n", "1"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert said in line


def test_rounds_may_be_numbered_otherwise(tmp_path):
    """They are as many, in the same order: pictures and errors are the same."""
    found = []
    for name, new in (("a", int), ("b", lambda number: 2 * number + 7)):
        run, picture = held_out(tmp_path / name, round=new) / "x-0.ndjson.gz", tmp_path / f"{name}.json"
        assert main(["trace", "--engine", str(run), "--out", str(picture)]) == 0
        table = validate("cpu/tiny", run.parent, replications=1).table
        found.append((picture.read_text(), table.filter(like="_token_p").to_csv()))
    assert found[0] == found[1]
