"""Careless and hostile input: one line, exit code 2, nothing written, and nothing that goes on without end."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from refimpl import InputError, Request, generate, load_pair, make_pair
from refimpl.bench.forced import parse_forced
from refimpl.cli import main as refimpl_main
from refimpl.core.config import make_config
from refimpl.decoding.trace import write_trace
from refimpl.generation import stream
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from simulator.cli import main as simulator_main
from simulator.runner import simulate
from simulator.settings.calibration import load_calibration
from simulator.settings.scenario import Engine, Scenario, Study
from simulator.settings.traces import read_engine_trace, read_service_trace
from simulator.studies.comparison import compare
from simulator.studies.designs import build_sweep

sys.path.append(str(Path(__file__).parents[1] / "simulator"))
from synthetic_inputs import HEADER, LINES, SYNTHETIC_META, write_calibration, write_engine_trace

DEEP, LONG = 5000, "9" * 5000
BOMB = "a: &a [0,0,0,0,0,0,0,0,0]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)

YAML = [  # a scenario's text
    (BOMB, "more than 200000 values"),
    ("&a [*a]", "the alias \\*a contains itself"),
    ("a: {<<: &b {<<: *b}}", "contains itself"),
    ("[" * DEEP, "nested deeper than 64"),
    ("{a: " * DEEP, "nested deeper than 64"),
    ("- " * DEEP + "1", "nested deeper than 64"),
    (f"seed: {LONG}", "an integer has 5000 digits, at most 100"),
    (f"seed: 0x{'f' * 5000}", "an integer has 5002 digits"),
    (f"seed: 1{':1' * 5000}", "digits, at most 100"),
    (f"name: 1{':1' * 5000}.5", "not YAML"),
    ("seed: 1\nseed: 2", "the key 'seed' is given twice, again in line 2"),
    ("study: {num_requests: 4, num_requests: 5}", "the key 'num_requests' is given twice"),
    ("seed: 1\n'seed': 2", "given twice"),
    ("study: !!python/object/apply:os.system [true]", "not YAML: could not determine a constructor"),
    ("study: !!python/name:os.system", "could not determine a constructor"),
    ("name: !!binary '%'", "name must be a text"),
    ("name: 2001-99-99", "month must be"),
    ("? [1, 2]\n: 3", "unhashable key"),
    ("a: *nowhere", "undefined alias"),
    ("--- 1\n--- 2", "not YAML"),
    ("\x00", "not YAML"),
    ("%YAML 9.9\n--- 1", "not YAML"),
    ("name: \ud800", "not UTF-8"),
    ("a secret text", "the scenario must be a mapping, not a text"),
    ("[1]", "the scenario must be a mapping, not a list"),
    ("{? a : 1, 2: 3, null: 4}", "unknown key 2, None, a"),
    ("{" + ", ".join(f"key{i}: 0" for i in range(1000)) + "}", "unknown key key0, key1, "),
    ("#" * 2**20 + "\n", "more than 1048576 bytes"),
    ("study: {kind: open, duration_s: 1.0e+300}", "duration_s must be at most"),
    ("study: {kind: open, duration_s: 1.0e+9, arrivals: {kind: poisson, rate_per_s: 1.0e+9}}", "requests"),
    (
        "study: {kind: open, duration_s: 1, arrivals: {kind: fixed, interval_s: 1.0e-300}}",
        "interval_s must be at least",
    ),
    ("acceptance: {kind: profile, probabilities: []}", "probabilities must be a list"),
    ("workload: {prompt_tokens: {kind: values, tokens: [1, -1]}}", r"tokens\[1\] must be an integer ≥ 1"),
]
SETTINGS = [  # of a scenario
    ("study.num_requests=100000000000", "num_requests must be at most 10000000, .* would need about .* GiB"),
    ("study.num_requests=-1", "num_requests must be an integer ≥ 1"),
    ("study.num_requests=1e3", "num_requests must be an integer ≥ 1, not 1000.0"),
    ("engine.window_size=10000000000", "window_size must be at most 1048576, .* GiB"),
    ("engine.batch_size=1000000", "batch_size must be an integer in"),
    ("engine.max_new_tokens=1000000000", "max_new_tokens must be an integer in"),
    ("service.replicas=1000000000", "replicas must be at most 4096, .* GiB"),
    ("switches.wait_for_rows=1000000000000", "wait_for_rows must be at most"),
    ("switches.bucket_tokens=100000000000000000000", "bucket_tokens must be at most"),
    ("engine.drafts_by_load=[[1]]", "drafts_by_load"),
    ("cost.run_cv=1e300", "run_cv must be a number in"),
    ("cost.noise_cv=1e300", "noise_cv must be a number in"),
    ("cost.verify_base_s=1e300", "verify_base_s must be at most"),
    ("cost.verify_base_s=1e-300", "verify_base_s must be at least"),
    ("cost.verify_base_s=.nan", "verify_base_s must be a number"),
    ("cost.verify_base_s=.inf", "verify_base_s must be finite"),
    ("seed=" + "9" * 99, "seed must be an integer in .* not 9{60}…$"),
    ("seed=" + LONG, "5000 digits"),
    ("name=" + "[" * DEEP, "nested deeper"),
    ("workload.prompt_tokens={kind: fixed, tokens: 10000000000000000}", "tokens must be at most"),
    ("workload.prompt_tokens={kind: lognormal, median_tokens: 1, sigma: 1e300}", "sigma must be a number in"),
    ("workload.prompt_tokens={kind: geometric, mean_tokens: 1e300}", "mean_tokens must be at most"),
    ("workload.prompt_tokens={kind: uniform, low_tokens: 9, high_tokens: 1}", "low_tokens 9 is larger"),
    ("workload.prompt_tokens={kind: file, path: /, column: a}", "no such file"),
    ("workload.prompt_tokens={kind: file, path: empty.csv, column: a}", "empty.csv: holds no lengths"),
    ("workload.prompt_tokens={kind: spec_bench, path: /dev/zero}", "no such file"),
    ("workload.prompt_tokens={kind: file, path: " + "x" * 5000 + ", column: a}", "no such file"),
    ("acceptance={kind: beta, a: 1e-300, b: 1}", "acceptance.a must be a number in"),
    ("acceptance={kind: replay, path: [1]}", "path must be a text"),
    ('acceptance={kind: replay, path: "a\\0b"}', "no such trace"),
    ("acceptance={kind: replay, path: " + "x" * 5000 + "}", "no such trace"),
    ("cost={kind: table, calibration: " + "x" * 5000 + "}", "not found"),
    ("cost={kind: table, calibration: ../../..}", "not found"),
    ("study={kind: open, num_requests: 2, arrivals: {kind: gamma, rate_per_s: 1, cv: 1e300}}", "cv must be a number"),
    ("study={kind: open, num_requests: 2, arrivals: {kind: weibull, rate_per_s: 1, shape: 1e-9}}", "shape must be"),
    ("study={kind: open, num_requests: 2, arrivals: {kind: on_off, rate_per_s: 1, mean_on_s: 1e-9, mean_off_s: 1}}",
     "mean_on_s"),
    ("study={kind: closed, clients: 1000000000000, duration_s: 1}", "clients must be at most"),
    ("study={kind: open, num_requests: 2, arrivals: {kind: trace, path: a.csv, speedup: 1e-300}}", "speedup must be"),
    ("cost={kind: table, calibration: mars/tiny}", "calibration 'mars/tiny' not found"),
    ("study={kind: open, num_requests: 50, warmup: mser5}", "mser5 needs 100 finished requests"),
    ("=1", "no such setting"),
    ("....=1", "no such setting"),
    ("engine=5", "engine must be a mapping, not a number"),
]  # fmt: skip
SWEEPS = [  # a sweep's text
    ("grid: {}", "grid: names no setting"),
    ("grid: {seed: []}", "every path needs a list of values"),
    ("replications: 100000000000\ngrid: {seed: [0]}", "replications must be at most 1000000, .* GiB"),
    ("replications: 1000000\ngrid: {seed: [0,1,2,3,4,5,6,7,8,9,10]}", "11 points × 1000000 replications are"),
    ("grid: {" + ", ".join(f"a{i}: [0,1,2,3,4,5,6,7,8,9]" for i in range(9)) + "}", "1000000000 points, "),
    ("latin: {samples: 1000000000, ranges: {seed: [0, 9]}}", "latin.samples must be at most 100000"),
    ("latin: {samples: 2, seed: -1, ranges: {seed: [0, 9]}}", "latin.seed must be"),
    ("sobol: {samples: 1073741824, ranges: {seed: [0, 9]}}", "sobol.samples must be at most 100000"),
    ("sobol: {samples: 65536, ranges: {seed: [0, 9]}}", "196608 points"),
    ("sobol: {samples: x, ranges: {seed: [0, 9]}}", "sobol.samples must be an integer"),
    ("base: other.txt\ngrid: {seed: [0]}", "other.txt: the scenario must be a mapping, not a text$"),
    ("base: [1]\ngrid: {seed: [0]}", "the scenario must be a mapping, not a list"),
    (f"grid: {{seed: [{LONG}]}}", "5000 digits"),
    (BOMB, "more than 200000 values"),
]  # fmt: skip
JSON_LINES = [  # a line of a prompt file
    ("[" * DEEP, "line 2: lists and mappings are nested deeper than 64"),
    ('{"prompt": ' + "[" * 65 + "]" * 65 + "}", "line 2: lists and mappings are nested deeper than 64"),
    ('{"a":' * DEEP, "nested deeper than 64"),
    (f'{{"prompt": [{LONG}]}}', "line 2: an integer has 5000 digits, at most 100"),
    (f'{{"prompt": "a", "seed": -{"9" * 99}}}', "seed must be an integer"),
    ('{"prompt": "a", "prompt": "b"}', "line 2: the key 'prompt' is given twice"),
    ('{"prompt": "a", "meta": {"x": 1, "x": 2}}', "the key 'x' is given twice"),
    ('{"prompt": "a", "stop_token_ids": [[1]]}', r"a stop token id must be .* not \[1\]"),
    ('{"prompt": "a", "stop_token_ids": [-1]}', "a stop token id must be an integer at least 0, not -1"),
    ('{"prompt": "a", "max_new_tokens": 1e999}', "max_new_tokens must be an integer"),
    ('{"prompt": NaN}', "a prompt must be a text"),
    ('{"prompt": [true]}', "a prompt must be a text"),
    ("nul", "line 2: not JSON"),
    ("\ud800", "not UTF-8"),
    ("1", "an object with `prompt`"),
]
TRACES = [  # what differs in the header, and in a line
    ({"num_sequences": 10**14}, {}, ":1: num_sequences must be at most 1000000000"),
    ({"num_sequences": 10**60}, {}, ":1: num_sequences must be at most"),
    ({"prompt_lens": [4, -5]}, {}, r":1: prompt_lens\[1\] must be an integer ≥ 1, not -5"),
    ({"prompt_lens": [4, "5"]}, {}, r":1: prompt_lens\[1\] must be an integer ≥ 1, not '5'"),
    ({"prompt_lens": [4, 10**30]}, {}, r":1: prompt_lens\[1\] must be at most"),
    ({"output_lens": [6, -6]}, {}, r":1: output_lens\[1\] must be an integer ≥ 0, not -6"),
    ({"max_new_tokens_each": [0, 6]}, {}, r":1: max_new_tokens_each\[0\] must be"),
    ({"num_speculative_tokens_each": [2, 10**9]}, {}, r":1: num_speculative_tokens_each\[1\] must be"),
    ({"num_speculative_tokens": 10**9}, {}, ":1: num_speculative_tokens must be"),
    ({"batch_size": 10**12}, {}, ":1: batch_size must be at most"),
    ({"schema": ["x" * 999]}, {}, ":1: schema must be"),
    ({}, {"seq_len": 10**15}, ":2: seq_len must be a whole number"),
    ({}, {"seq_len": 10**9}, ":2: seq_len must be the prompt and at most"),
    ({}, {"seq_len": 1}, ":2: seq_len must be the prompt and at most"),
    ({}, {"drafted": 10**9, "accepted": 10**9}, ":2: drafted must be at most 64"),
    ({}, {"kept": 10**9}, ":2: kept must be at most drafted"),
    ({}, {"sequence": 10**18}, ":2: sequence must be"),
    ({}, {"round": 10**90}, ":2: round must be"),
    ({}, {"round": "1" * 99}, ":2: round must be"),
    ({}, {"draft_s": [1]}, ":2: draft_s must be a number"),
    ({}, {"k": {"a": 1}}, ":2: k must be a whole number"),
    ({}, {"seq_len": float("inf")}, ":2: seq_len must be a whole number"),
    ({}, {"chunk": "x"}, ":2: chunk must be a whole number"),
    ({}, {"chunk": 3, "sequence": 9}, ":2: sequence must be below num_sequences"),
    ({}, {"finished": "x"}, ":2: finished must be true or false"),
    ({}, {"mode": ["a"]}, ":2: mode must be a text"),
    ({}, {"num_moves": "x"}, ":2: num_moves must be a whole number"),
    ({"texts": [[], []], "block_size": 0}, {}, ":1: block_size must be an integer ≥ 1, not 0"),
]
MODELS = [  # file of a model's folder, its content
    ("config.json", "{", "config.json: not JSON"),
    ("config.json", "[]", "config.json: must hold a mapping"),
    ("config.json", "[" * DEEP, "config.json: lists and mappings are nested deeper than 64"),
    ("config.json", '{"vocab_size": ' + LONG + "}", "config.json: an integer has 5000 digits"),
    ("config.json", '{"model_type": "llama", "model_type": "gpt2"}', "config.json: the key .model_type. is given"),
    ("config.json", "\udcff", "config.json: .* not UTF-8"),
    ("config.json", "{}", "config.json: "),
    ("config.json", '{"model_type": 5}', "config.json: "),
    ("config.json", '{"model_type": ["llama"]}', "config.json: "),
    ("config.json", {"hidden_size": "x"}, "config"),
    ("config.json", {"hidden_size": None}, "config"),
    ("config.json", {"hidden_size": -64}, "config"),
    ("config.json", {"num_attention_heads": 0}, "config"),
    ("config.json", {"num_hidden_layers": 10**9}, "config.json: num_hidden_layers must be at most 4096, not"),
    ("config.json", {"eos_token_id": "x"}, "config.json: eos_token_id must be a token id or a list of them, not 'x'"),
    ("config.json", {"rope_parameters": 5}, "config"),
    ("config.json", {"dtype": "x"}, "config"),
    ("generation_config.json", "{", "generation_config.json: not JSON"),
    ("generation_config.json", '{"eos_token_id": [[1]]}', r"generation_config.json: eos_token_id .* not \[\[1\]\]"),
    ("generation_config.json", '{"eos_token_id": -5}', "generation_config.json: eos_token_id .* not -5"),
    ("generation_config.json", "[" * DEEP, "generation_config.json: .* nested deeper"),
    ("tokenizer_config.json", "[1]", "tokenizer_config.json: must hold a mapping"),
    ("tokenizer.json", "{", "tokenizer's files"),
    ("tokenizer.json", "[]", "tokenizer's files"),
    ("tokenizer.json", '{"model": 5}', "tokenizer's files"),
    ("tokenizer.json", "[" * DEEP, "tokenizer's files"),
    ("model.safetensors.index.json", "{}", "model.safetensors.index.json: weight_map must map tensors to files"),
    ("model.safetensors.index.json", '{"weight_map": {"a": 5}}', "weight_map must map tensors to files"),
    ("model.safetensors.index.json", '{"weight_map": {"a": "../../x.safetensors"}}', "must name files of its folder"),
    ("model.safetensors.index.json", '{"weight_map": {"a": "/etc/passwd"}}', "must name files of its folder"),
    ("model.safetensors.index.json", '{"weight_map": {"a": "b"}}', "weight_map names 'b', which is not there"),
    ("model.safetensors.index.json", "[" * DEEP, "index.json: .* nested deeper"),
    ("model.safetensors", "", "weights"),
    ("model.safetensors", "\xff" * 64, "weights"),
]  # fmt: skip
COMMANDS = [  # of either program
    (refimpl_main, "generate --prompts nowhere.txt", "nowhere.txt: cannot be read: No such file"),
    (refimpl_main, "generate --prompts .", "cannot be read: Is a directory"),
    (refimpl_main, "generate --method magic", "unknown method 'magic'"),
    (refimpl_main, "generate --output no/such/folder/out.jsonl", "the folder no/such/folder does not exist"),
    (refimpl_main, "generate --output " + "x" * 300, "File name too long"),
    (refimpl_main, "generate --device cuda:99", "CUDA"),
    (refimpl_main, "generate --device meta", "cannot run on meta"),
    (refimpl_main, "generate --target only-one", "--target and --draft go together"),
    (refimpl_main, "generate --temperature -1", "temperature must be"),
    (refimpl_main, "generate --temperature 1e400", "temperature must be a finite number"),
    (refimpl_main, "generate --pair " + "x" * 5000, "unknown pair"),
    (refimpl_main, "generate --target " + "x" * 5000 + " --draft y", "cannot load the target"),
    (refimpl_main, "generate --max-new-tokens " + "9" * 50 + " --limit 1", "does not fit the context"),
    (refimpl_main, "generate --batch-size 99999999999", "batch_size must be"),
    (refimpl_main, "generate --method exspec --window-size 10000000000", "window_size must be"),
    (refimpl_main, "generate --kv-memory-gib -1", "kv_memory_gib must be"),
    (refimpl_main, "generate --stop <|endoftext|> --limit 1", "special tokens"),
    (refimpl_main, "verify --batch-sizes 1,x", "comma-separated integers"),
    (refimpl_main, "verify --methods inplace,magic", "unknown method 'magic'"),
    (refimpl_main, "verify --methods autoregressive", "no method to verify"),
    (refimpl_main, "verify --methods autoregressive --bitwise", "no method to verify"),
    (refimpl_main, "tie-or-bug --plot x.exe", "--plot must end in"),
    (refimpl_main, "conformance --engine os:getcwd", ""),
    (refimpl_main, "conformance --engine refimpl.conformance.adapters:method:magic", "unknown method 'magic'"),
    (
        refimpl_main,
        "conformance --engine os:getcwd --prompt-length 1000000000",
        "prompt_tokens must be an integer in 1",
    ),
    (refimpl_main, "conformance --engine os:getcwd --law-samples 100000000000", "law_samples must be an integer in"),
    (
        refimpl_main,
        "conformance --engine os:getcwd --max-batch 4096 --prompt-length 9999",
        "would have 40955904 tokens",
    ),
    (refimpl_main, "bench-serving --num-requests 1000000000000", "the number of requests must be an integer in"),
    (refimpl_main, "memory-plan --budget 1e300", "the budget must be a finite number of GiB"),
    (refimpl_main, "calibrate --threads 1000000000", "threads must be an integer in 1 … "),
    (simulator_main, "run missing.yaml", "missing.yaml: cannot be read: No such file"),
    (simulator_main, "run /dev/zero", "has more than 1048576 bytes"),
    (simulator_main, "run " + "x" * 5000, "File name too long"),
    (simulator_main, "run -s engine.batch_size=-4", "engine.batch_size must be an integer"),
    (simulator_main, "run -s engine.batch=4", "engine.batch: no such setting; allowed: layout, scheduler"),
    (simulator_main, "run -s engine.batch_size", "--set engine.batch_size: must be PATH=VALUE"),
    (simulator_main, "run -s cost={kind:\xa0table}", "cost must be a mapping"),
    (simulator_main, "run -n 0", "replications must be an integer ≥ 1"),
    (simulator_main, "run -n 100000000000", "replications must be at most 1000000, not 100000000000: .* GiB of memory"),
    (simulator_main, "run --precision 2", "precision must be a number in"),
    (simulator_main, "run --precision nan", "precision must be a number in"),
    (simulator_main, "run --workers 0 -n 2", "^error: --workers"),
    (simulator_main, "run --workers 100000 -n 2", "workers must be at most .* GiB of memory"),
    (simulator_main, "run --metric magic --precision 0.1", "metric must be one of"),
    (simulator_main, "run --out /proc/nothing/out", "/proc/nothing"),
    (simulator_main, "runn", "no such command 'runn'"),
    (simulator_main, "capacity example --tolerance 1e-300", "tolerance must be a number in"),
    (simulator_main, "run --replicas 2", "no such option"),
    (simulator_main, "run -s name=[1", r"--set name=\[1: not YAML: while parsing a flow sequence"),
    (simulator_main, "fit validation/cpu/tiny/fit/acceptance.ndjson.gz -n 0", "replications must be an integer ≥ 1"),
    (simulator_main, "parity none.ndjson", "none.ndjson: no such trace"),
    (simulator_main, "parity /dev/zero", "no such trace"),
    (simulator_main, "validate --runs nowhere", "holds no held-out traces"),
    (simulator_main, "trace --out /nowhere/x.json", "the folder /nowhere does not exist"),
    (simulator_main, "bench --repeats 10000000000", "^error: --repeats"),
    (simulator_main, "bench --batch-size 10000000000", "^error: --batch-size"),
]
SMALL = Scenario(study=Study(num_requests=2))
CALLS = [  # of the library
    (lambda _: make_config(method=["inplace"]), r"unknown method \['inplace'\]"),
    (lambda _: make_config(method={}), "unknown method {}"),
    (lambda _: make_config(checks=["host"]), "checks must be one of"),
    (lambda _: make_config(seed=10**5000), "seed must be an integer .* too long to show"),
    (lambda _: make_config(stop_token_ids=[[1]]), r"a stop token id must be an integer at least 0, not \[1\]"),
    (lambda _: make_config(stop_token_ids=[-1]), "not -1"),
    (lambda _: Request([1], stop_token_ids=[-1]), "not -1"),
    (lambda pair: generate(pair, [[1]], stop_token_ids=[61]), "a stop token id must be an integer in 0 … 60, not 61"),
    (lambda pair: generate(pair, [Request([1], stop_token_ids=[99])]), "in 0 … 60, not 99"),
    (lambda pair: make_pair(pair.target.model, pair.draft.model, stop_token_ids=[[1]]), r"not \[1\]"),
    (lambda pair: make_pair(pair.target.model, pair.draft.model, stop_token_ids=[61]), "in 0 … 60, not 61"),
    (lambda pair: make_pair(pair.target.model, pair.draft.model, stop_token_ids=5), "must be a list of token ids"),
    (lambda pair: generate(pair, [[10**5000]]), "outside the vocabulary"),
    (lambda pair: generate(pair, ["x\0"]), "has no tokenizer"),
    (lambda pair: stream(pair, [[1]]).cancel("a"), "there is no sequence 'a'"),
    (lambda pair: stream(pair, [[1]]).cancel(1.0), "there is no sequence 1.0"),
    (lambda pair: stream(pair, [[1]]).cancel(1), "there is no sequence 1: 1 have come"),
    (lambda _: load_pair("x" * 5000, "y"), "cannot load the target 'x{59}….*"),
    (lambda _: load_pair("/" + "x" * 5000, "y"), "there is no such folder"),
    (lambda _: write_trace(Path("/dev/full"), {}, []), "cannot write /dev/full: No space left on device"),
    (lambda _: write_trace(Path("x" * 5000), {}, []), "File name too long"),
    (lambda _: write_trace(Path("a\0b"), {}, []), "no name holds a NUL"),
    (lambda _: SMALL.save("/dev/full"), "cannot write /dev/full: No space left on device"),
    (lambda _: parse_forced("iid:nan", 3), "with a number in 0 … 1"),
    (lambda _: parse_forced("trace:" + "x" * 5000, 3), "File name too long"),
    (lambda _: simulate(SMALL, precision="x"), "precision must be a number in .* not 'x'"),
    (lambda _: simulate(SMALL, precision=0.1, max_replications=0), "max_replications must be an integer ≥ 1, not 0"),
    (lambda _: simulate(SMALL, "x"), "replications must be an integer ≥ 1, not 'x'"),
    (lambda _: simulate(SMALL, 1, workers=10**6), "workers must be at most"),
    (lambda _: compare(SMALL, SMALL, "x"), "replications must be an integer ≥ 2"),
    (lambda _: build_sweep(SMALL, grid={}), "grid: names no setting"),
    (lambda _: Scenario(seed=10**5000), "seed must be an integer in .* too long to show"),
    (lambda _: Scenario(engine={"batch_size": 0}), r"engine\.batch_size must be an integer in"),
    (lambda _: Scenario(engine=2), "engine must be a mapping, not a number"),
    (lambda _: Engine(window_size=10**10), "window_size must be at most 1048576"),
    (lambda _: load_calibration("x" * 5000), "not found"),
    (lambda _: load_calibration("a\0b"), "not found"),
    (lambda _: read_engine_trace("x" * 5000), "no such trace"),
    (lambda _: read_service_trace("x" * 5000), "no such trace"),
]  # fmt: skip
META = [  # a field of a calibration's meta.json
    ({"run_cv": 1e300}, "meta.json: run_cv must be a number in"),
    ({"round_cv": -1}, "meta.json: round_cv must be a number in"),
    ({"component_cv": {"verify": 1e300}}, "meta.json: component_cv.verify must be"),
    ({"kv_bytes_per_token": {"target": 1e300}}, "meta.json: kv_bytes_per_token.target must be at most"),
    ({"schema": "x" * 999}, "meta.json: schema must be"),
    ({"run_cv": 10**99}, "meta.json: run_cv must be"),
]
TABLES = [  # name and content of a service trace
    ("t.csv", "time_s,prompt_tokens,output_tokens\n0,10000000000,1\n", "prompt_tokens must be"),
    ("t.csv", "time_s,prompt_tokens,output_tokens\n1e400,1,1\n", "time_s"),
    ("t.csv", 'time_s,"\n' * 9, "t.csv"),
    ("t.csv", "time_s,prompt_tokens,output_tokens\n", "t.csv: contains no requests"),
    ("t.csv", "time_s,prompt_tokens,output_tokens\n0,1,1,1,1\n", "more values than the first line has names"),
    ("t.csv", "Timestamp,Request tokens,Response tokens\n1,5,0\n", "t.csv: contains no requests but failed ones"),
    ("t.csv", "Timestamp,Request tokens,Response tokens\n1,5,x\n", "Response tokens must be a number of tokens"),
    ("t.jsonl", '{"time_s": null, "prompt_tokens": 1, "output_tokens": 1}', "missing, or numbers .* in record 1"),
    ("t.jsonl", '{"time_s": 1%s, "prompt_tokens": 1, "output_tokens": 1}' % ("0" * 98), "time_s: missing, or numbers"),
    ("t.jsonl", '{"time_s": [1], "prompt_tokens": 1, "output_tokens": 1}', "time_s: missing, or numbers"),
    ("t.jsonl", '{"timestamp": ' + LONG + "}", "t.jsonl:1: an integer has 5000 digits"),
    ("t.jsonl", "[" * DEEP, "t.jsonl:1: lists and mappings are nested deeper"),
    ("t.jsonl", '{"a": 1, "a": 2}', "t.jsonl:1: the key 'a' is given twice"),
    ("t.jsonl", "[1]\n", "t.jsonl:1: must hold a mapping"),
]


def called(function, *arguments):
    """What InputError said."""
    with pytest.raises(InputError) as error:
        function(*arguments)
    return f"error: {error.value}\n"


class Cases:
    """How each kind of input is given; a method returns what stderr holds."""

    def __init__(self, folder, capsys, monkeypatch, pair):
        self.folder, self.capsys, self.monkeypatch, self.pair = folder, capsys, monkeypatch, pair

    def write(self, name, text):
        content = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        (self.folder / name).write_bytes(content)
        self.before = sorted(self.folder.rglob("*"))
        return self.folder / name

    def command(self, program, arguments):
        self.monkeypatch.setattr("sys.argv", ["program", *arguments])
        try:
            code = program()
        except SystemExit as end:
            code = end.code
        printed = self.capsys.readouterr()
        assert (code, printed.out) == (2, "")
        return printed.err

    def commands(self, program, line):
        return self.command(program, line.split(" "))

    def yaml(self, text):
        self.write("s.yaml", text)
        return self.command(simulator_main, ["run", "s.yaml", "-n", "1"])

    def settings(self, setting):
        self.write("empty.csv", "a\n")
        return self.command(simulator_main, ["run", "-n", "1", "-s", setting])

    def sweeps(self, text):
        self.write("other.txt", "a secret text")
        self.write("sweep.yaml", text)
        error = self.command(simulator_main, ["sweep", "sweep.yaml", "--out", "out"])
        assert "secret" not in error
        return error

    def json_lines(self, line):
        path = self.write("p.jsonl", '{"prompt": "a"}\n' + line)
        return called(read_prompts, path).replace(f"{path}, ", "")

    def traces(self, header, line):
        write_engine_trace(self.folder / "t.ndjson", HEADER | header, [LINES[0] | line, *LINES[1:]])
        return called(read_engine_trace, self.folder / "t.ndjson")

    def models(self, file, content):
        shutil.copytree(TINY / "target", self.folder / "model", copy_function=lambda a, b: Path(b).symlink_to(a))
        if isinstance(content, dict):
            content = json.dumps(json.loads((TINY / "target" / file).read_text()) | content)
        (self.folder / "model" / file).unlink(missing_ok=True)
        self.write(f"model/{file}", content)
        error = called(load_pair, self.folder / "model", TINY / "draft")
        assert error.startswith(f"error: cannot load the target {self.folder / 'model'}: ")
        return error

    def calls(self, function):
        return called(function, self.pair)

    def meta(self, change):
        folder = write_calibration(self.folder / "c", SYNTHETIC_META | change)
        return called(load_calibration, str(folder))

    def tables(self, name, text):
        return called(read_service_trace, self.write(name, text))


KINDS = {
    "yaml": YAML, "settings": SETTINGS, "sweeps": SWEEPS, "json_lines": JSON_LINES, "traces": TRACES, "models": MODELS,
    "commands": COMMANDS, "calls": CALLS, "meta": META, "tables": TABLES,
}  # fmt: skip
CASES = [
    pytest.param(kind, case[:-1], case[-1], id=f"{kind}{i}")
    for kind, cases in KINDS.items()
    for i, case in enumerate(cases)
]


@pytest.mark.parametrize(("kind", "given", "message"), CASES)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, capsys, monkeypatch, llama, kind, given, message):
    monkeypatch.chdir(tmp_path)
    cases = Cases(tmp_path, capsys, monkeypatch, llama)
    error = getattr(cases, kind)(*given)
    assert error.startswith("error: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1
    assert re.search(message, error.rstrip("\n"))
    assert sorted(tmp_path.rglob("*")) == getattr(cases, "before", sorted(tmp_path.rglob("*")))


def test_a_bad_row_behind_chunks_is_named_by_its_line(tmp_path):
    chunk = LINES[0] | {"chunk": 3}
    write_engine_trace(tmp_path / "t.ndjson", HEADER, [chunk, chunk, LINES[0] | {"k": "x"}, *LINES[1:]])
    with pytest.raises(InputError, match=r"t\.ndjson:4: k must be a whole number"):
        read_engine_trace(tmp_path / "t.ndjson")
