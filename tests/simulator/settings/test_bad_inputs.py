"""Inputs that no study can have, by what holds them: one line with the words beside each, exit code 2, nothing written.

Values that a declared range refuses are in `tests/property/test_settings.py`, for every setting and parameter.
"""

import json
import re

import pytest

from simulator.cli import main
from tests.synthetic_inputs import (
    HEADER,
    LINES,
    SYNTHETIC_META,
    synthetic_points,
    write_calibration,
    write_engine_trace,
)


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The error that a command ends with, in a folder that it leaves as it was."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert main([*arguments]) == 2
        *notes, line = capsys.readouterr().err.splitlines()
        assert [note for note in notes if note.startswith(("error: ", " "))] == []
        assert line.startswith("error: ")
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
        return line.removeprefix("error: ")

    return run


VICUNA = "kind: roofline, device: h200, target: vicuna-7b, draft: vicuna-68m"
QWEN = "kind: roofline, device: h100, target: qwen3-8b"
PROFILE = "acceptance: {kind: profile, probabilities: [0.9, 0.5]}"
SCENARIOS = [
    # no scenario
    ("a: [", "not YAML"),
    ("seed: 1\nname: [a", "not YAML: while parsing a flow sequence, .*expected .* in line 2$"),
    ("seed: 1\nname: a: b", "not YAML: mapping values are not allowed here in line 2$"),
    ("name: 2001-99-99", r"not YAML: month must be in 1..12(, not 99)?$"),
    ("seed: 1\nseed: 2", "the key 'seed' is given twice, again in line 2"),
    ("", "holds no settings"),
    ("grid: {seed: [0]}", "the scenario: unknown key grid"),
    ("[1]", "the scenario must be a mapping, not a list"),
    # names
    ("enginee: {}", r"the scenario: unknown key enginee; allowed: name, seed.* \(did you mean engine\?\)$"),
    ("engine: {batchsize: 4}", r"engine: unknown key batchsize; allowed: .* \(did you mean batch_size\?\)$"),
    ("engine: {1: 2, 3: 4}", "engine: unknown key 1, 3; allowed: batch_size"),
    ("engine: 5", "engine must be a mapping, not a number"),
    ("engine: {method: exspecc}", "unknown method .*exspec.*: choose autoregressive"),
    ("engine: {method: speculative, batch_size: 4}", "engine.batch_size: method speculative has 1, not 4; leave one"),
    ("cost: {kind: linear, cls: 1}", "cost: unknown key cls; allowed: verify_base_s"),
    ("cost: {kind: table, outside: refuse}", "cost.calibration is missing: table needs calibration$"),
    ("study: {kind: open, num_requests: 5, arrivals: {kind: poisson, rate: 1}}",
     r"study.arrivals: unknown key rate; allowed: rate_per_s$"),
    # studies
    ("study: {kind: open}", "study.num_requests or duration_s is missing: .*unless .* of kind trace or replay$"),
    ("study: {kind: offline}", "study.num_requests is missing"),
    ("study: {num_requests: 5, warmup: mser5}", "study.warmup must be none: an offline study has no steady state"),
    ("study: {kind: closed, clients: 2}", "study.duration_s is missing"),
    ("study: {kind: closed, duration_s: 2.0}", "study.clients is missing"),
    ("study: {num_requests: 5, duration_s: 2.0}", "study.duration_s has no effect in a study of kind offline: leave"),
    ("study: {num_requests: 5, arrivals: {kind: poisson, rate_per_s: 2.0}}", "study.arrivals has no effect in a study"),
    ("study: {kind: open, num_requests: 5, clients: 2}", "study.clients has no effect in a study of kind open: leave"),
    ("study: {kind: closed, clients: 2, duration_s: 2, num_requests: 5}", "study.num_requests has no effect in a stu"),
    ("study: {kind: open, duration_s: 1e9}", r"study.duration_s .* brings about 1e\+09 requests; at most"),
    ("study: {kind: open, num_requests: 9, arrivals: {kind: on_off, rate_per_s: 1, mean_on_s: 1e-9, mean_off_s: 1}}",
     "study.arrivals.mean_on_s brings 1e-09 requests a phase; at least 0.001"),
    ("study: {kind: closed, clients: 60, duration_s: 9}\nswitches: {wait_for_rows: 61}",
     "switches.wait_for_rows 61 may never come: there are 60 study.clients, service.replicas is 1"),
    ("study: {kind: closed, clients: 60, duration_s: 9}\nswitches: {wait_for_rows: 21}\nservice: {replicas: 3}",
     "switches.wait_for_rows 21 may never come: there are 60 study.clients, service.replicas is 3"),
    # workloads
    ("workload: {output_tokens: {kind: uniform, low_tokens: 9, high_tokens: 1}}",
     "workload.output_tokens.low_tokens 9 is larger than high_tokens 1"),
    ("workload: {output_tokens: {kind: values, tokens: [3, 0]}}", r"output_tokens\.tokens\[1\] must be an integer"),
    # engines, and what they run
    ("engine: {scheduler: grouped, batch_size: 8, window_size: 4}", "engine.window_size 4 is smaller than"),
    ("engine: {draft_budget: by_load}", "engine.draft_budget must look like by_load:1=7,4=5,16=2, not 'by_load'"),
    ("engine: {drafter: ngram, draft_budget: confidence}", "reads the draft's probabilities.*choose drafter"),
    ("engine: {draft_budget: confidence}\nswitches: {keep_bonus: false}", "switches.keep_bonus needs engine.drafter"),
    ("engine: {drafter: hybrid}\nswitches: {k_policy: batch_min}", "switches.k_policy needs engine.drafter model and"),
    (f"engine: {{draft_budget: confidence}}\n{PROFILE}",
     "engine.draft_budget 'confidence' reads probabilities, which acceptance.kind profile lacks: choose another"),
    (f"engine: {{drafter: hybrid}}\n{PROFILE}", "engine.drafter 'hybrid' needs the acceptance of drafts behind"),
    ("engine: {method: exspec, execution: overlapped}", "execution 'overlapped' needs rows that stay where they are"),
    ("engine: {execution: overlapped}\nswitches: {keep_bonus: false}", "switches.keep_bonus needs engine.execution se"),
    ("engine: {method: paged, cuda_graphs: true}", "cuda_graphs need rows that stay where they are: paged"),
    ("engine: {cuda_graphs: true, draft_budget: confidence}", "cuda_graphs record passes, but drafter 'model' with dr"),
    ("engine: {cuda_graphs: true}\nswitches: {pad_prompts: true}", "switches.pad_prompts is of rounds that are not re"),
    ("engine: {method: paged, joint_prefill: true}\nswitches: {discard_mixed_caches: true}",
     "switches.discard_mixed_caches prefills rows in a pass of their own"),
    (f"engine: {{cuda_graphs: true}}\ncost: {{{VICUNA}, graphs: false}}", "cost.graphs false has passes that the host"),
    (f"cost: {{{QWEN}}}", "engine.drafter 'model' runs a draft, and cost has none: give cost.draft, or set engine.nu"),
    (f"cost: {{{QWEN}}}\nengine: {{drafter: hybrid}}", "engine.drafter 'hybrid' runs a draft, and cost has none"),
    (f"cost: {{{QWEN}, draft: qwen3-0.6b}}\nengine: {{drafter: ngram}}", "runs no draft: leave out cost.draft"),
    ("service: {kv_capacity_bytes: 1}", "service.kv_capacity_bytes needs the bytes of a token"),
]  # fmt: skip
MET = [  # what the simulation meets
    ("workload: {common: {kind: system_prompt, tokens: 65}}", "a prompt of 64 tokens is shorter than the system prom"),
    ("acceptance: {kind: mean_length, tokens: 6.5}",
     r"acceptance\.tokens 6\.5 is too long: 5 drafts yield at most 6 tokens"),
    ("acceptance: {kind: mean_length, tokens: 2.5, drafts: 1}", "1 draft yields at most 2 tokens"),
    ("engine: paged\nservice: {kv_capacity_bytes: 268435472}\ncost: {kind: linear, verify_base_s: 1, "
     "kv_bytes_per_token: 1}", r"there is room for 1.68e\+07 blocks of 16 tokens; at most 16777216 can be simulated: "
     "give engine.num_blocks"),
    ("engine: {layout: paged, num_blocks: 1048576}\ncost: {kind: roofline, device: rtx-4090, target: qwen3-8b, "
     "draft: qwen3-0.6b}", "engine.num_blocks 1048576 take .* bytes, the device has room for "),
    ("study: {kind: open, num_requests: 3, arrivals: {kind: fixed, interval_s: 1e14}}",
     r"the study lasts too long: after 3e\+14 s the clock has steps of 0.0625 s, and a round takes 0.0[23]"),
    ("cost: {kind: roofline, device: h200, target: vicuna-7b, from_calibration: nvidia-h200/vicuna}\n"
     "engine: {num_speculative_tokens: 0}", r"with a draft of 2 layers, cost\.draft has 0$"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [*SCENARIOS, *MET])
def test_scenarios(refused, tmp_path, text, words):
    (tmp_path / "s.yaml").write_text(text)
    told = refused("run", "s.yaml", "-n", "1", "--out", "out")
    assert re.search(words, told)
    assert told.startswith("s.yaml: ") or (text, words) in MET


OPTIONS = [
    ("engine=5 method=exspec", "method: engine must be a mapping or a method, not 5"),
    ("engine=[] engine.method=exspec", r"engine.method: engine must be a mapping or a method, not \[\]"),
    ("engine=speculative engine.batch_size=4", "engine.batch_size: method speculative has 1, not 4; leave one of them"),
    ("engine.size=4", "engine.size: no such setting; allowed: .*layout.*, method"),
    ("engine__batch_size=4", "engine__batch_size: no such setting; allowed: name, seed.*, method"),
    ("engine.batchsize=4", r"no such setting; .* \(did you mean batch_size\?\)$"),
    ("enginee.batch_size=4", r"'enginee' is unknown \(did you mean engine\?\)$"),
    ("study.arivals.rate_per_s=3", r"'arivals' is unknown \(did you mean arrivals\?\)$"),
    ("cost.kind.base_s=3", "cost.kind.base_s: no such setting; allowed: nothing$"),
    ("acceptance={1:2} acceptance.kind=iid", "acceptance.kind: no such setting; allowed: 1$"),
    ("acceptance={kind:iid,1:2} acceptance.prob=0.5", "acceptance: unknown key 1, prob; allowed: "),
    ("workload.common={kind:system_prompt,tokens:3,prompts:true}", "workload.common.prompts must be an integer"),
]  # fmt: skip
# in any order: else a sweep would label its points with a setting that none of them has
OPTIONS += [
    (" ".join(order), words)
    for given, words in (
        ("study.duration_s=5 study.kind=offline", "duration_s has no effect in a study of kind offline"),
        ("study.arrivals.rate_per_s=5 study.kind=offline", "arrivals has no effect in a study of kind offline"),
        ("acceptance.probability=0.5 acceptance.kind=beta acceptance.a=4 acceptance.b=2",
         "acceptance: unknown key probability; allowed: a, b"),
    )
    for order in (given.split(), given.split()[::-1])
]  # fmt: skip


@pytest.mark.parametrize(("sets", "words"), OPTIONS)
def test_options(refused, sets, words):
    assert re.search(words, refused("run", "--out=out", *(f"-s{each.replace(':', ': ')}" for each in sets.split())))


MACHINES = [  # facts beside points that were measured of something else
    ({"device": "l40s"}, r"on 'NVIDIA H200', cost.device is 'NVIDIA L40S' \(reported_as in its file is the name"),
    ({"device": "b200"}, "on 'NVIDIA H200', cost.device is 'NVIDIA B200 SXM'"),
    ({"dtype": "float8"}, "in bfloat16, cost.dtype is float8"),
    ({"tensor_parallel": 4}, "on one device, cost.tensor_parallel is 4"),
    ({"target": "vicuna-68m", "draft": "vicuna-7b"}, "with a target of 32 layers, cost.target has 2"),  # as many in all
    ({"target": "llama-3-8b"}, "with a target of 524288 bytes of K/V per token, cost.target has 131072"),
    ({"draft": "llama-3-1b"}, "with a draft of 2 layers, cost.draft has 16"),
    ({"from_calibration": "cpu/tiny"}, "on 'AMD EPYC, 2 cores', cost.device is 'NVIDIA H200 SXM'"),
]


@pytest.mark.parametrize(("changes", "words"), MACHINES, ids=str)
def test_points_of_another_machine(refused, changes, words):
    facts = {"kind": "roofline", "device": "h200", "target": "vicuna-7b", "draft": "vicuna-68m"}
    cost = facts | {"from_calibration": "nvidia-h200/vicuna"} | changes
    assert re.search(words, refused("run", "-n1", "--out=out", "-s", f"cost={json.dumps(cost)}"))


ROW = {k: v for k, v in LINES[0].items() if k not in ("kept", "draft_s")}
ENGINE_TRACES = [  # changes of the header, lines; ... leaves a field out
    ({"schema": "other/1"}, LINES, ":1: schema must be raggedspec.trace/1"),
    ({"layout": ...}, LINES, ":1: missing layout"),
    ({"max_new_tokens_each": ...}, LINES, ":1: missing max_new_tokens_each"),
    ({"num_sequences": "2"}, LINES, ":1: num_sequences must be an integer ≥ 1, not '2'"),
    *(({name: [4]}, LINES, f":1: {name} must contain 2 numbers, one per sequence")
      for name in ("prompt_lens", "max_new_tokens_each", "num_speculative_tokens_each")),
    ({"prompt_lens": 4}, LINES, ":1: prompt_lens must contain 2 numbers, one per sequence"),
    ({"prompt_lens": [4, 0.5]}, LINES, r":1: prompt_lens\[1\] must be an integer"),
    ({}, [], "contains no rounds"),
    ({}, [ROW, *LINES[1:]], ":2: missing kept, draft_s"),
    ({}, [LINES[0], LINES[1] | {"accepted": -1}, *LINES[2:]], ":3: accepted must be a whole number ≥ 0"),
    *(({}, [LINES[0] | change, *LINES[1:]], f":2: {words}") for change, words in (
        ({"accepted": float("nan")}, "accepted must be a whole number ≥ 0"),
        ({"kept": "many"}, "kept must be a whole number ≥ 0"),
        ({"draft_s": None}, "draft_s must be a number ≥ 0"),
        ({"accepted": 3}, "accepted must be at most drafted"),
        ({"kept": 4}, r"kept must be at most drafted \+ 1"),
        ({"sequence": 2}, "sequence must be below num_sequences"),
        ({"seq_len": 3}, "seq_len must be the prompt and more"),
    )),
    ({}, [line | {"row": 0} for line in LINES], ":3: a row is given twice in a round"),
    ({}, LINES[:-1], "breaks off: sequence 1 has not all of its rounds"),
    ({}, [line for line in LINES if line["sequence"] == 1], "breaks off: sequence 0 has not all of its rounds"),
    *(({"output_lens": [6, n]}, LINES, "breaks off: sequence 1 has not all of its rounds") for n in (5, 7)),
    # of runs that a scenario cannot replay
    ({"num_speculative_tokens_each": [1, 2]}, LINES, ":1: requests draft 1, 2 tokens a round; a scenario has one k"),
    ({"shape_stable": True, "block_size": 64, "texts": [[], []]}, LINES, "rows share prompts alone"),
    ({"frees_unseen": True}, LINES, "rows gave back what their windows no longer saw"),
    ({"recurrent_draft": True}, LINES, "a draft with recurrent states runs a pass more a round"),
    ({"output_lens": [6, 3]}, LINES[:-1], "sequence 1 was cancelled, which a scenario cannot replay"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "lines", "words"), ENGINE_TRACES)
def test_engine_traces(refused, tmp_path, header, lines, words):
    made = {name: value for name, value in (HEADER | header).items() if value is not ...}
    write_engine_trace(tmp_path / "t.ndjson", made, lines)
    told = refused("validate", "t.ndjson")
    assert told.startswith("t.ndjson")
    assert re.search(words, told)


TIMES, MANY = "time_s,prompt_tokens,output_tokens\n", "Timestamp,Request tokens,Response tokens\n1,9,9\n2,9,0\n3,0,9\n"
LENGTHS = "workload.prompt_tokens={{kind: file, column: tokens, path: {}}}"
PROMPTS = "workload.prompt_tokens={{kind: spec_bench, path: {}}}"
ARRIVALS = "study={{kind: open, arrivals: {{kind: trace, path: {}}}}}"
TABLES = [  # what reads the file, its name, what it holds
    (ARRIVALS, "t.csv", TIMES + "3,1,1\n1,1,1\n", "t.csv: time_s decreases at record 2"),
    (ARRIVALS, "t.csv", TIMES + "1,0,1\n", r"prompt_tokens must be .* in \[1, 1000000000\] in record 1"),
    (ARRIVALS, "t.csv", TIMES + "1,1,1e999\n", "output_tokens must be a whole number of tokens in"),
    (ARRIVALS, "t.csv", TIMES + "1,10.5,3\n", "prompt_tokens must be a whole number of tokens in"),
    (ARRIVALS, "t.csv", TIMES + "inf,1,1\n", "time_s: missing or infinite in record 1"),
    (ARRIVALS, "t.csv", TIMES[5:] + "1,1,1\n", "columns s, prompt_tokens, output_tokens fit no known format"),
    (ARRIVALS, "t.csv", TIMES, "contains no requests"),
    (ARRIVALS, "t.csv", TIMES + "1,1,0\n", "contains no requests but failed ones"),
    (ARRIVALS, "t.csv", MANY, "Request tokens must be .* in record 3"),
    (ARRIVALS, "t.csv", TIMES + f"0,1,{2**18 + 1}\n", "a budget of 262145 tokens; at most 262144"),
    (ARRIVALS.replace("open,", "open, num_requests: 9,"), "t.csv", TIMES + "0,3,4\n1,3,4\n",
     "study.num_requests is 9, but .* holds 2 requests"),
    (LENGTHS, "l.csv", "size\n3\n", "no column 'tokens'; it has size"),
    *((LENGTHS, "l.csv", f"tokens\n7\n{value}\n", "tokens must be whole numbers of tokens throughout, from 1 to ")
      for value in ("many", "10.5", "0")),
    (PROMPTS, "q.jsonl", "{", "q.jsonl:1: not JSON"),
    (PROMPTS, "q.jsonl", '{"turns": ["x"]}\n{"turns": []}', "q.jsonl:2: turns must be"),
    (PROMPTS, "q.jsonl", "", "holds no prompts"),
    (PROMPTS.replace("path", "characters_per_token: 1e-18, path"), "q.jsonl", '{"turns": ["hello world"]}\n',
     r"a prompt has 1.1e\+19 tokens at characters_per_token; at most 1000000000"),
    *((reader, f"t.{ending}", content, rf"t\.{ending}") for reader in (ARRIVALS, LENGTHS)
      for ending in ("csv", "jsonl", "csv.gz") for content in ("tokens\udcff\n1,2\n", "\x1f\udc8b\x08\x00", "")),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "name", "content", "words"), TABLES)
def test_tables_of_requests(refused, tmp_path, reader, name, content, words):
    (tmp_path / name).write_text(content, errors="surrogateescape")
    assert re.search(words, refused("run", "-n1", "--out=out", "-s", reader.format(name)))


POINTS = [*synthetic_points()]
CALIBRATIONS = [  # what is changed in meta.json, or what a file holds; None for a file that is not there
    *(({name: None}, "", f"meta.json: missing {name}$") for name in SYNTHETIC_META),
    ({"schema": "other/1"}, "", "meta.json: schema must be"),
    ({"origin": "guessed"}, "", "meta.json: origin must be one of measured, published, synthetic$"),
    ({"run_cv": "x"}, "", "meta.json: run_cv must be"),
    ({"component_cv": 1}, "", "meta.json: component_cv must be a mapping, not 1"),
    ({"kv_bytes_per_token": {"target": None}}, "", "meta.json: kv_bytes_per_token.target must be"),
    ("meta.json", None, "meta.json: no such file"),
    ("meta.json", b'{"schema": ', "meta.json: not JSON: Expecting value"),
    ("meta.json", b"[]", "meta.json: must hold a mapping"),
    ("meta.json", b"\xff", "meta.json: cannot be read: it is not UTF-8"),
    ("points.csv", None, "calibration 'c' not found: give a directory with points.csv, or one of: "),
    ("points.csv", b"component\xff", "points.csv: cannot be read: it is not UTF-8"),
    ("points.csv", b"", "points.csv: cannot be read: No columns"),
    ("points.csv", b"mean\n1\n", r"missing column component, .*, mean_s, .* \(names include the units\)"),
    (None, POINTS[1:], "do not fill a grid"),
    (None, [("warp", *POINTS[0][1:])], "component must be one of prefill"),
    (None, [(*POINTS[0][:6], "", *POINTS[0][7:])], "points.csv: line 2: a value is missing or negative"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "content", "words"), CALIBRATIONS)
def test_calibrations(refused, tmp_path, changed, content, words):
    meta = SYNTHETIC_META | (changed if isinstance(changed, dict) else {})
    points = None if changed else content
    folder = write_calibration(tmp_path / "c", {k: v for k, v in meta.items() if v is not None}, points)
    if isinstance(changed, str):
        (folder / changed).unlink() if content is None else (folder / changed).write_bytes(content)
    assert re.search(words, refused("run", "-n1", "--out=out", "-s", "cost={kind: table, calibration: c}"))


LAW = {
    "intercept": -6.0, "per_tenfold_tokens": 0.8, "per_tenfold_parameters": 0.5,
    "least_training_tokens": 1e3, "most_training_tokens": 1e14, "least_parameters": 1e3, "most_parameters": 1e9,
}  # fmt: skip
LAWS = [
    (None, {}, "law.json: law must be a mapping, not nothing"),
    ({}, {}, r"law.json: law\.intercept is missing"),
    (LAW | {"intercept": float("inf")}, {}, r"law.json: law\.intercept must be finite"),
    (LAW | {"slope": 1}, {}, "law.json: law: unknown key slope"),
    (LAW | {"least_parameters": 1e10}, {}, r"law.json: law\.least_parameters 1e\+10 is above most_parameters 1e\+09"),
    (LAW, {"path": "nowhere.json"}, r"^nowhere\.json: no such scaling law$"),
    *((LAW, {name: value}, rf"^acceptance\.{name} \S+ is outside of the drafts: the law was fitted to ")
      for name, value in (("training_tokens", 999), ("training_tokens", 1.1e14), ("parameters", 999),
                          ("parameters", 1.1e9))),
]  # fmt: skip


@pytest.mark.parametrize(("law", "changes", "words"), LAWS)
def test_scaling_laws(refused, tmp_path, law, changes, words):
    (tmp_path / "law.json").write_text(json.dumps({"law": law, "notes": "whatever else the file says"}))
    given = {"kind": "scaling", "training_tokens": 1e6, "parameters": 1e6, "path": "law.json"} | changes
    assert re.search(words, refused("run", "-n1", "--out=out", "-s", f"acceptance={json.dumps(given)}"))
