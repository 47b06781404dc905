"""Calibrations, traces, workloads, acceptance models: what is read, drawn and refused."""

import json
import re

import numpy as np
import pytest
from synthetic_inputs import (
    HEADER,
    LINES,
    SYNTHETIC_META,
    synthetic_points,
    synthetic_seconds,
    write_calibration,
    write_engine_trace,
)

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.acceptance import make_acceptance
from simulator.service.costs import make_cost
from simulator.service.simulation import simulate_once
from simulator.service.streams import Purpose, Streams
from simulator.service.workload import arrival_times, draw_lengths
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec
from simulator.settings.parts import MAX_BUDGET
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from simulator.settings.traces import read_engine_trace, read_service_trace

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


SEPARATORS = "\u2028\u0085\x1c"  # they end lines for `str.splitlines`, and may stand inside of a text in JSON


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_s,prompt_tokens,output_tokens\n3,1,1\n1,1,1\n", "time_s decreases at record 2"),
        ("time_s,prompt_tokens,output_tokens\n1,0,1\n", r"prompt_tokens must be .* in \[1, 1000000000\] in record 1"),
        ("time_s,prompt_tokens,output_tokens\n1,1,1e999\n", "output_tokens must be a number of tokens in"),
        ("time_s,prompt_tokens,output_tokens\ninf,1,1\n", "time_s: missing or infinite in record 1"),
        ("time,prompt_tokens,output_tokens\n1,1,1\n", "columns time, prompt_tokens, output_tokens fit no known format"),
        ("time_s,prompt_tokens,output_tokens\n", "contains no requests"),
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


def test_a_column_of_texts_holds_no_lengths(tmp_path):
    (tmp_path / "l.csv").write_text("tokens\nmany\n")
    spec = Spec.of("file", path=str(tmp_path / "l.csv"), column="tokens")
    with pytest.raises(InputError, match="tokens must be at least 1 token throughout"):
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


def test_outputs_that_exceed_the_budget_are_told():
    workload = Workload(output_tokens=Spec.of("values", tokens=[100, 128, 129, 1000]))
    assert simulate(Scenario(study=Study(num_requests=8), workload=workload), 1)["cut_outputs"] == 4


def test_budgets_are_bounded(tmp_path):
    (tmp_path / "t.csv").write_text(f"time_s,prompt_tokens,output_tokens\n0,1,{MAX_BUDGET + 1}\n")
    arrivals = Spec.of("trace", path=str(tmp_path / "t.csv"))
    with pytest.raises(InputError, match=f"a budget of {MAX_BUDGET + 1} tokens; at most {MAX_BUDGET}"):
        simulate(Scenario(study=Study(kind="open", num_requests=1, arrivals=arrivals)), 1)


# --- acceptance --------------------------------------------------------------------------------------------------

KINDS = [
    Spec.of("iid", probability=0.7),
    Spec.of("profile", probabilities=[0.7]),
    Spec.of("markov", probability=0.7, correlation=0.0),
    Spec.of("beta", a=7e4, b=3e4),
]


def test_models_degenerate_to_independence():
    draws = [make_acceptance(spec, STREAMS, 5) for spec in KINDS]
    runs = [[model.runs(i, 50) for i in range(40)] for model in draws]
    assert runs[0] == runs[1] == runs[2]
    assert np.mean(np.array(runs[0]) == np.array(runs[3])) > 0.98


@pytest.mark.parametrize(
    "kind", [KINDS[0], Spec.of("markov", probability=0.7, correlation=0.5), Spec.of("beta", a=7.0, b=3.0)]
)
def test_models_keep_their_mean(kind):
    model = make_acceptance(kind, STREAMS, 1)
    runs = np.array([model.runs(i, 200) for i in range(1000)])
    assert runs.mean() == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize(("tokens", "drafts", "probability"), [(1.0, None, 0.0), (6.0, None, 1.0), (2.3056, 4, 0.6)])
def test_a_mean_length_stands_for_a_probability(tokens, drafts, probability):
    model = make_acceptance(Spec.of("mean_length", tokens=tokens, drafts=drafts), STREAMS, 5)
    assert model.probability == pytest.approx(probability, abs=1e-9)


def test_a_mean_length_that_no_round_has():
    with pytest.raises(InputError, match=r"acceptance\.tokens 6\.5 is too long: 5 drafts yield at most 6 tokens"):
        make_acceptance(Spec.of("mean_length", tokens=6.5), STREAMS, 5)
    with pytest.raises(InputError, match="1 draft yields at most 2 tokens"):
        make_acceptance(Spec.of("mean_length", tokens=2.5, drafts=1), STREAMS, 5)


@pytest.mark.parametrize("drafts", [None, 5])
def test_a_mean_length_may_be_compared_with_no_drafts(drafts):
    assert make_acceptance(Spec.of("mean_length", tokens=3, drafts=drafts), STREAMS, 0).probability == 0


def test_correlated_models_spread_more():
    def spread(spec):
        model = make_acceptance(spec, STREAMS, 1)
        return np.array([model.runs(i, 100) for i in range(2000)]).sum(axis=1).std()

    independent = spread(KINDS[0])
    assert spread(Spec.of("markov", probability=0.7, correlation=0.4)) > 1.3 * independent
    assert spread(Spec.of("beta", a=7.0, b=3.0)) > 2 * independent


def test_runs_count_consecutive_right_proposals():
    model = make_acceptance(Spec.of("iid", probability=0.6), STREAMS, 4)
    bits = np.concatenate([STREAMS.tile(Purpose.ACCEPT, 0, number)[3] for number in range(2)]) < 0.6
    for at, run in enumerate(model.runs(3, 80)):
        expected = next((n for n in range(4) if not bits[at + n]), 4)
        assert run == expected


@pytest.mark.parametrize("kind", [*KINDS, Spec.of("markov", probability=0.7, correlation=0.5)])
def test_a_tile_is_the_same_whatever_was_asked_before(kind):
    asked_in_order, asked_at_once = (make_acceptance(kind, STREAMS, 5) for _ in range(2))
    runs = asked_in_order.runs(300, 64 * 5)
    assert asked_at_once.tile(300, 4) == runs[256:]


def test_a_large_budget_that_is_not_used_is_not_drawn_and_what_is_finished_is_let_go():
    scenario = Scenario(
        study=Study(num_requests=1),
        engine=Engine(max_new_tokens=2**18),
        workload=Workload(output_tokens=Spec.of("fixed", tokens=70)),
    )
    simulation = simulate_once(scenario)
    assert simulation.acceptance._runs.cache_info().currsize <= 2
    assert [request.runs for request in simulation.log.requests] == [[]]


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


# --- calibration -------------------------------------------------------------------------------------------------


def study(calibration, outside="refuse", **engine):
    return Scenario(
        study=Study(num_requests=8),
        workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=8, high_tokens=100)),
        engine=Engine(**({"batch_size": 4, "max_new_tokens": 32} | engine)),
        cost=Spec.of("table", calibration=str(calibration), outside=outside),
        noise=False,
    )


@pytest.mark.parametrize("component", ["draft", "verify", "realign", "concat", "compact"])
@pytest.mark.parametrize("point", [(1, 5, 8), (3, 4, 77), (8, 8, 512)])
def test_interpolation_is_exact_on_a_linear_table(calibration, component, point):
    grid = load_calibration(str(calibration)).grid(component, "inplace")
    rows, tokens, width = point[0], 0 if component in ("realign", "concat", "compact") else point[1], point[2]
    expected = synthetic_seconds(component, rows, tokens, width)
    assert grid.line(rows, tokens, np.array([width]))[0] == pytest.approx(expected)


def test_outside_the_measured_range_it_refuses_or_says_so(calibration):
    with pytest.raises(InputError, match="batch_size 9 is outside 1 … 8; measure more points, or set"):
        simulate(study(calibration, batch_size=9).but({"study.num_requests": 20}), 1)
    results = simulate(study(calibration, outside="extrapolate", batch_size=9).but({"study.num_requests": 20}), 1)
    assert any("verify: batch_size 9 is outside 1 … 8" in what for what in results.extrapolated)
    wide = study(calibration).but({"workload.prompt_tokens": {"kind": "fixed", "tokens": 600}})
    with pytest.raises(InputError, match="is outside"):
        simulate(wide, 1)
    assert simulate(study(calibration), 1).extrapolated == ()
    assert re.fullmatch(rf"{calibration}@[0-9a-f]{{16}} \(synthetic\)", simulate(study(calibration), 1).origin)


@pytest.mark.parametrize("field", sorted(SYNTHETIC_META))
def test_a_missing_field_is_an_error(tmp_path, field):
    meta = {k: v for k, v in SYNTHETIC_META.items() if k != field}
    folder = write_calibration(tmp_path / "c", meta=meta)
    with pytest.raises(InputError, match=rf"meta.json: missing {field}$"):
        load_calibration(str(folder))


def test_broken_points(tmp_path):
    points = list(synthetic_points())
    with pytest.raises(InputError, match=r"do not fill a grid"):
        load_calibration(str(write_calibration(tmp_path / "hole", points=points[1:])))
    with pytest.raises(InputError, match=r"component must be one of prefill"):
        load_calibration(str(write_calibration(tmp_path / "name", points=[("warp", *points[0][1:])])))
    with pytest.raises(InputError, match=r"line 2: a value is missing or negative"):
        load_calibration(str(write_calibration(tmp_path / "value", points=[(*points[0][:6], "", *points[0][7:])])))
    text = (write_calibration(tmp_path / "unit") / "points.csv").read_text().replace("mean_s", "mean")
    (tmp_path / "unit" / "points.csv").write_text(text)
    with pytest.raises(InputError, match=r"missing column mean_s \(names include the units\)"):
        load_calibration(str(tmp_path / "unit"))
    with pytest.raises(InputError, match="calibration 'nowhere/none' not found"):
        load_calibration("nowhere/none")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("meta.json", b'{"schema": ', "meta.json: not JSON: Expecting value"),
        ("meta.json", b"[]", "meta.json: must hold a mapping"),
        ("meta.json", b"\xff", "meta.json: cannot be read: it is not UTF-8"),
        ("points.csv", b"component\xff", "points.csv: cannot be read: it is not UTF-8"),
        ("points.csv", b"", "points.csv: cannot be read: No columns"),
    ],
)
def test_a_calibration_that_cannot_be_read_is_one_line(calibration, name, content, message):
    (calibration / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_calibration(str(calibration))


@pytest.mark.parametrize(
    ("field", "value"), [("run_cv", "x"), ("component_cv", 1), ("kv_bytes_per_token", {"target": None})]
)
def test_fields_of_the_wrong_kind_are_named(tmp_path, field, value):
    folder = write_calibration(tmp_path / "c", meta=SYNTHETIC_META | {field: value})
    with pytest.raises(InputError, match=f"meta.json: {field}"):
        load_calibration(str(folder))


def test_calibration_uncertainty_is_drawn_per_replication_and_centred(calibration):
    factors = np.array([
        make_cost(study(calibration).but(noise=True), Streams(0, r)).factors["host"] for r in range(400)
    ])  # fmt: skip
    assert factors.mean() == pytest.approx(1, abs=0.006)
    assert factors.std() == pytest.approx(0.02, rel=0.2)
