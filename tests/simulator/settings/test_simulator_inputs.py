"""Traces, workloads and streams of numbers: what is read, drawn and refused."""

import json
import os

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.streams import Purpose, Streams
from simulator.service.workload import arrival_times, draw_lengths
from simulator.settings.fields import Spec
from simulator.settings.parts import MAX_BUDGET
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from simulator.settings.traces import read_engine_trace, read_service_trace
from tests.synthetic_inputs import (
    HEADER,
    LINES,
    write_engine_trace,
)

STREAMS = Streams(7, 0)


def take(spec, count, streams=STREAMS):
    return np.fromiter(arrival_times(spec, streams, count), float)


# --- streams -----------------------------------------------------------------------------------------------------


def test_numbers_are_keyed_by_request_and_position_whatever_is_asked_first():
    late = Streams(7, 0).per_request(Purpose.PROMPT, 5000, 5010)
    assert np.array_equal(late, STREAMS.per_request(Purpose.PROMPT, 0, 6000)[5000:5010])
    assert np.array_equal(STREAMS.tile(Purpose.ACCEPT, 3, 1), Streams(7, 0).tile(Purpose.ACCEPT, 3, 1))


def test_streams_differ_by_purpose_replication_and_seed():
    draws = [
        Streams(seed, replication).per_request(purpose, 0, 8).tobytes()
        for seed in (0, 1)
        for replication in (0, 1)
        for purpose in (Purpose.PROMPT, Purpose.OUTPUT)
    ]
    assert len(set(draws)) == 8


# --- arrivals and lengths ----------------------------------------------------------------------------------------

RATED = [
    Spec.of("poisson", rate_per_s=5.0),
    Spec.of("gamma", rate_per_s=5.0, cv=2.0),
    Spec.of("weibull", rate_per_s=5.0, shape=0.7),
    Spec.of("sinusoidal", rate_per_s=5.0, amplitude=0.8, period_s=10.0),
    Spec.of("fixed", interval_s=0.2),
]


@pytest.mark.parametrize("spec", RATED, ids=lambda spec: spec.kind)
def test_arrivals_never_decrease_and_keep_their_rate(spec):
    times = take(spec, 20000)
    assert (np.diff(times) >= 0).all()
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.08)


def test_on_off_arrivals_are_burstier_than_poisson_and_only_come_while_on():
    times = take(Spec.of("on_off", rate_per_s=10.0, mean_on_s=2.0, mean_off_s=2.0), 20000)
    gaps = np.diff(times)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.15)
    assert gaps.std() / gaps.mean() > 1.5


def test_on_off_arrivals_are_as_dense_at_the_beginning_as_later():
    """On for a quarter of the time: 5 standard errors of the share of 4,000 runs, false alarm below 1e-6."""
    spec = Spec.of("on_off", rate_per_s=1000.0, mean_on_s=1.0, mean_off_s=3.0)
    first_s = np.array([take(spec, 1, Streams(7, replication))[0] for replication in range(4000)])
    share = np.mean(first_s < 0.02)  # at once, or an off phase ends so soon: 1 - exp(-0.02 / 3)
    assert share == pytest.approx(0.25 + 0.75 * 0.0066, abs=5 * (0.25 * 0.75 / 4000) ** 0.5)
    assert first_s[first_s > 0.02].mean() == pytest.approx(3.0, rel=0.15)


def test_sinusoidal_arrivals_follow_the_rate():
    times = take(Spec.of("sinusoidal", rate_per_s=50.0, amplitude=0.9, period_s=4.0), 20000)
    counts = np.histogram(times % 4.0, bins=4, range=(0, 4))[0]
    assert counts[0] + counts[1] > 2 * (counts[2] + counts[3])


@pytest.mark.parametrize(
    ("spec", "mean"),
    [
        (Spec.of("geometric", mean_tokens=20.0), 20.0),
        (Spec.of("uniform", low_tokens=10, high_tokens=30), 20.0),
        (Spec.of("lognormal", median_tokens=20.0, sigma=0.0), 20.0),
        (Spec.of("values", tokens=[10, 30]), 20.0),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_lengths_have_their_mean(spec, mean):
    drawn = draw_lengths(spec, STREAMS, Purpose.OUTPUT, 0, 20000)
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.05)


def test_lengths_from_files(tmp_path):
    (tmp_path / "lengths.csv").write_text("tokens\n7\n9\n")
    drawn = draw_lengths(
        Spec.of("file", path=str(tmp_path / "lengths.csv"), column="tokens"), STREAMS, Purpose.PROMPT, 0, 50
    )
    assert set(drawn) == {7, 9}
    with pytest.raises(InputError, match="no column 'size'; it has tokens"):
        draw_lengths(Spec.of("file", path=str(tmp_path / "lengths.csv"), column="size"), STREAMS, Purpose.PROMPT, 0, 5)
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps({"turns": ["x" * n]}) for n in (40, 80)))
    drawn = draw_lengths(Spec.of("spec_bench", path=str(tmp_path / "q.jsonl")), STREAMS, Purpose.PROMPT, 0, 50)
    assert set(drawn) == {10, 20}


@pytest.mark.parametrize("kind", ["file", "spec_bench"])
def test_a_file_of_lengths_that_is_written_anew_is_read_anew(tmp_path, kind):
    path = tmp_path / "l.jsonl"
    spec = Spec.of(kind, path=str(path), **({"column": "tokens"} if kind == "file" else {}))
    for tokens in (7, 9):
        path.write_text(json.dumps({"tokens": tokens, "turns": ["x" * 4 * tokens]}) + "\n")
        os.utime(path, ns=(tokens, tokens))
        assert set(draw_lengths(spec, STREAMS, Purpose.PROMPT, 0, 5)) == {tokens}


SEPARATORS = "\u2028\u0085\x1c"  # they end lines for `str.splitlines`, and may stand inside of a text in JSON


def test_prompts_of_far_too_many_tokens_are_refused(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"turns": ["hello world"]}\n')
    spec = Spec.of("spec_bench", path=str(tmp_path / "q.jsonl"), characters_per_token=1e-18)
    with pytest.raises(InputError, match=r"a prompt has 1.1e\+19 tokens at characters_per_token; at most 1000000000"):
        draw_lengths(spec, STREAMS, Purpose.PROMPT, 0, 5)


def test_only_line_feeds_end_the_lines_of_json(tmp_path):
    lines = [json.dumps({"turns": ["x" * n + SEPARATORS]}, ensure_ascii=False) for n in (37, 77)]
    (tmp_path / "q.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    spec = Spec.of("spec_bench", path=str(tmp_path / "q.jsonl"))
    assert set(draw_lengths(spec, STREAMS, Purpose.PROMPT, 0, 50)) == {10, 20}
    text = "\n".join(json.dumps(item, ensure_ascii=False) for item in [HEADER | {"pair": SEPARATORS}, *LINES])
    (tmp_path / "t.ndjson").write_text(text, encoding="utf-8")
    assert read_engine_trace(tmp_path / "t.ndjson").header["pair"] == SEPARATORS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "q.jsonl:1: not JSON"),
        ('{"turns": ["x"]}\n{"turns": []}', "q.jsonl:2: turns must be"),
        ("", "holds no prompts"),
    ],
)
def test_bad_prompts(tmp_path, text, message):
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        draw_lengths(Spec.of("spec_bench", path=str(tmp_path / "q.jsonl")), STREAMS, Purpose.PROMPT, 0, 5)


# --- service traces ----------------------------------------------------------------------------------------------

SERVICES = {
    "plain.csv": "time_s,prompt_tokens,output_tokens\n1,10,5\n3,20,6\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,10,5\n2023-11-16 18:15:48.5,20,6\n",
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


@pytest.mark.parametrize(
    ("first", "second", "apart_s"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009930+00:00", 1),
        ("2024-05-10 00:00:00+00:00", "2024-05-10 02:00:00+01:00", 3600),
        ("2024-05-10 00:00:00Z", "2024-05-10 00:00:01", 1),
    ],
)
def test_times_of_a_service_trace_may_state_their_offset(tmp_path, first, second, apart_s):
    lines = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},10,5\n{second},10,5\n"
    (tmp_path / "t.csv").write_text(lines)
    assert read_service_trace(tmp_path / "t.csv").time_s.tolist() == [0, apart_s]


@pytest.mark.parametrize("second_s", [0.012, 0.013])
def test_requests_of_one_time_come_together(tmp_path, second_s):
    """Whatever 0.003 + (second_s - 0.003) is in floating point."""
    lines = "".join(f"{time_s},10,1\n" for time_s in (0, 0.003, second_s, second_s))
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n" + lines)
    study = Study(kind="open", num_requests=4, arrivals=Spec.of("trace", path=str(tmp_path / "t.csv")))
    made = Scenario(study=study, cost={"kind": "linear", "verify_base_s": 0.002})
    assert simulate(made, 1).frame("rounds")["rows"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_s,prompt_tokens,output_tokens\n3,1,1\n1,1,1\n", "time_s decreases at record 2"),
        ("time_s,prompt_tokens,output_tokens\n1,0,1\n", r"prompt_tokens must be .* in \[1, 1000000000\] in record 1"),
        ("time_s,prompt_tokens,output_tokens\n1,1,1e999\n", "output_tokens must be a whole number of tokens in"),
        ("time_s,prompt_tokens,output_tokens\n1,10.5,3\n", "prompt_tokens must be a whole number of tokens in"),
        ("time_s,prompt_tokens,output_tokens\ninf,1,1\n", "time_s: missing or infinite in record 1"),
        ("time,prompt_tokens,output_tokens\n1,1,1\n", "columns time, prompt_tokens, output_tokens fit no known format"),
        ("time_s,prompt_tokens,output_tokens\n", "contains no requests"),
        (SERVICES["burst.csv"].replace("GPT-4,20", "GPT-4,0"), "Request tokens must be .* in record 3"),
    ],
)
def test_bad_service_traces(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_service_trace(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.csv.gz"])
@pytest.mark.parametrize("content", [b"time_s,prompt_tokens\xff\n1,2\n", b"\x1f\x8b\x08\x00", b""])
def test_tables_that_cannot_be_read_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    lengths = Spec.of("file", path=str(tmp_path / name), column="tokens")
    reads = (lambda: read_service_trace(tmp_path / name), lambda: draw_lengths(lengths, STREAMS, Purpose.PROMPT, 0, 5))
    for read in reads:
        with pytest.raises(InputError, match=name.replace(".", r"\.")) as error:
            read()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["many", "10.5", "0"])
def test_a_column_of_other_than_whole_numbers_holds_no_lengths(tmp_path, value):
    (tmp_path / "l.csv").write_text(f"tokens\n7\n{value}\n")
    spec = Spec.of("file", path=str(tmp_path / "l.csv"), column="tokens")
    with pytest.raises(InputError, match="tokens must be whole numbers of tokens throughout, from 1 to "):
        draw_lengths(spec, STREAMS, Purpose.PROMPT, 0, 5)


def test_a_service_trace_drives_a_study(tmp_path):
    (tmp_path / "t.csv").write_text(SERVICES["plain.csv"])
    arrivals = Spec.of("trace", path=str(tmp_path / "t.csv"), speedup=2.0)
    requests = simulate(Scenario(study=Study(kind="open", num_requests=2, arrivals=arrivals)), 1).frame("requests")
    assert requests["arrival_s"].tolist() == [0.0, 1.0]
    assert requests["prompt_tokens"].tolist() == [10, 20]
    assert requests["generated_tokens"].tolist() == [5, 6]


LONG = "time_s,prompt_tokens,output_tokens\n0,10,1000\n1,20,2000\n2,30,50\n"


@pytest.mark.parametrize(
    ("limit", "generated", "cut"), [(None, [1000, 2000, 50], 0), (128, [128, 128, 50], 2), (3000, [1000, 2000, 50], 0)]
)
def test_outputs_of_a_service_trace_are_cut_only_where_asked_and_that_is_told(tmp_path, limit, generated, cut):
    (tmp_path / "t.csv").write_text(LONG)
    arrivals = Spec.of("trace", path=str(tmp_path / "t.csv"))
    study = Study(kind="open", num_requests=3, arrivals=arrivals)
    results = simulate(Scenario(study=study, engine=Engine(max_new_tokens=limit)), 1)
    assert results.frame("requests")["generated_tokens"].tolist() == generated
    assert results["cut_outputs"] == cut


def test_a_service_trace_brings_its_own_budgets_whatever_outputs_it_replaces(tmp_path, engine_trace):
    (tmp_path / "t.csv").write_text(LONG)
    study = Study(kind="open", num_requests=3, arrivals=Spec.of("trace", path=str(tmp_path / "t.csv")))
    workload = Workload(output_tokens=Spec.of("trace", path=str(engine_trace)))
    results = simulate(Scenario(study=study, workload=workload), 1)
    assert results.frame("requests")["generated_tokens"].tolist() == [1000, 2000, 50]


def test_outputs_that_exceed_the_budget_are_told():
    workload = Workload(output_tokens=Spec.of("values", tokens=[100, 128, 129, 1000]))
    assert simulate(Scenario(study=Study(num_requests=8), workload=workload), 1)["cut_outputs"] == 4


def test_budgets_are_bounded(tmp_path):
    (tmp_path / "t.csv").write_text(f"time_s,prompt_tokens,output_tokens\n0,1,{MAX_BUDGET + 1}\n")
    arrivals = Spec.of("trace", path=str(tmp_path / "t.csv"))
    with pytest.raises(InputError, match=f"a budget of {MAX_BUDGET + 1} tokens; at most {MAX_BUDGET}"):
        simulate(Scenario(study=Study(kind="open", num_requests=1, arrivals=arrivals)), 1)


# --- engine traces -----------------------------------------------------------------------------------------------


def test_what_a_trace_says_of_each_position(engine_trace):
    trace = read_engine_trace(engine_trace)
    assert trace.output_lens == [6, 6]
    assert trace.match_bits(0)[:6].tolist() == [1, 1, -1, 1, 1, -1]
    assert trace.match_bits(1)[:6].tolist() == [0, 1, 0, 1, 1, -1]


@pytest.mark.parametrize(
    ("header", "lines", "message"),
    [
        (HEADER | {"schema": "other/1"}, LINES, ":1: schema must be raggedspec.trace/1"),
        ({k: v for k, v in HEADER.items() if k != "layout"}, LINES, ":1: missing layout"),
        ({k: v for k, v in HEADER.items() if k != "max_new_tokens_each"}, LINES, ":1: missing max_new_tokens_each"),
        (HEADER, [{k: v for k, v in LINES[0].items() if k not in ("kept", "draft_s")}], ":2: missing kept, draft_s"),
        (HEADER, [], "contains no rounds"),
        (HEADER | {"num_sequences": "2"}, LINES, ":1: num_sequences must be an integer ≥ 1, not '2'"),
        (HEADER | {"prompt_lens": 4}, LINES, ":1: prompt_lens must contain 2 numbers, one per sequence"),
        (HEADER | {"documents": ["a"]}, LINES, ":1: documents must contain 2 names, one per sequence"),
        (HEADER, [LINES[0] | {"accepted": float("nan")}, *LINES[1:]], ":2: accepted must be a whole number ≥ 0"),
        (HEADER, [LINES[0], LINES[1] | {"accepted": -1}, *LINES[2:]], ":3: accepted must be a whole number ≥ 0"),
        (HEADER, [LINES[0] | {"kept": "many"}, *LINES[1:]], ":2: kept must be a whole number ≥ 0"),
        (HEADER, [LINES[0] | {"draft_s": None}, *LINES[1:]], ":2: draft_s must be a number ≥ 0"),
        (HEADER, [LINES[0] | {"accepted": 3}, *LINES[1:]], ":2: accepted must be at most drafted"),
        (HEADER, [LINES[0] | {"sequence": 2}, *LINES[1:]], ":2: sequence must be below num_sequences"),
        (HEADER, LINES[:-1], "breaks off: sequence 1 has not all of its rounds"),
        (HEADER, [line for line in LINES if line["sequence"] == 1], "breaks off: sequence 0 has not all of its rounds"),
        (HEADER | {"output_lens": [6, 7]}, LINES, "breaks off: sequence 1 has not all of its rounds"),
    ],
)
def test_bad_engine_traces(tmp_path, header, lines, message):
    path = write_engine_trace(tmp_path / "bad.ndjson", header, lines)
    with pytest.raises(InputError, match=message):
        read_engine_trace(path)


def test_a_request_that_was_cancelled_does_not_break_a_trace_off(tmp_path):
    """What it has generated until then stands in the header."""
    path = write_engine_trace(tmp_path / "t.ndjson", HEADER | {"output_lens": [6, 3]}, LINES[:-1])
    assert read_engine_trace(path).output_lens == [6, 3]
