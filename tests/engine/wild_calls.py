"""Careless and hostile calls of the library, each with what the one line about it says."""

from inspect import unwrap
from pathlib import Path

from refimpl import Request, generate, judge_method, judge_outputs, load_pair, make_pair, read_prompts, verify, watch
from refimpl.bench.forced import parse_forced
from refimpl.core.config import make_config
from refimpl.decoding.trace import write_trace
from refimpl.generation import stream
from simulator import plots
from simulator.runner import simulate
from simulator.settings.calibration import load_calibration
from simulator.settings.scenario import Engine, Scenario, Study
from simulator.settings.tables import read_provenance
from simulator.settings.traces import read_engine_trace, read_service_trace
from simulator.studies.attribution import attribute
from simulator.studies.comparison import compare
from simulator.studies.designs import build_sweep
from simulator.studies.sweeps import sweep
from simulator.studies.whatif import WhatIf, outlook

SMALL = Scenario(study=Study(num_requests=2))
UNTYPED = unwrap(judge_outputs)  # itself, also where a check of types is put before it
CALLS = [  # of the library
    (lambda _: make_config(seed=10**5000), "seed must be an integer .* too long to show"),
    (lambda _: make_config(stop_token_ids=[[1]]), "a stop token id must be an integer ≥ 0, not \\(1,\\)"),
    (lambda _: make_config(stop_token_ids=[-1]), "not -1"),
    (lambda _: Request([1], stop_token_ids=[-1]), "not -1"),
    (lambda pair: generate(pair, [[1]], stop_token_ids=[61]), r"an integer in \[0, 60\], not 61"),
    (lambda pair: generate(pair, [Request([1], stop_token_ids=[99])]), r"in \[0, 60\], not 99"),
    (lambda pair: make_pair(pair.target.model, pair.draft.model, stop_token_ids=[[1]]), r"not \[1\]"),
    (lambda pair: make_pair(pair.target.model, pair.draft.model, stop_token_ids=[61]), r"in \[0, 60\], not 61"),
    (lambda pair: make_pair(pair.target.model, pair.draft.model, stop_token_ids=5), "must be a list of token ids"),
    (lambda pair: generate(pair, [[10**5000]]), "outside the vocabulary"),
    (lambda pair: generate(pair, ["x\0"]), "has no tokenizer"),
    (lambda pair: stream(pair, [[1]]).cancel("a"), "there is no sequence 'a'"),
    (lambda pair: stream(pair, [[1]]).cancel(1), "there is no sequence 1: 1 have come"),
    (lambda _: load_pair("x" * 5000, "y"), "cannot load the target 'x{59}….*"),
    (lambda _: load_pair("/" + "x" * 5000, "y"), "there is no such folder"),
    (lambda _: write_trace(Path("/dev/full"), {}, []), "cannot write /dev/full: No space left on device"),
    (lambda _: write_trace(Path("x" * 5000), {}, []), "File name too long"),
    (lambda _: write_trace(Path("a\0b"), {}, []), "no name holds a NUL"),
    (lambda _: SMALL.save("/dev/full"), "cannot write /dev/full: No space left on device"),
    (lambda _: SMALL.save(None), "give the path of a file, not None"),
    (lambda _: read_prompts(None), "give the path of a file, not None"),
    (lambda _: read_provenance("/dev/null"), "/dev/null: no such file"),
    (lambda _: read_provenance(Path(__file__)), "is no Parquet file that raggedspec wrote"),
    (lambda _: load_pair(trust_remote_code="no"), "trust_remote_code must be true or false, not 'no'"),
    (lambda _: load_pair(compile_modules=1), "compile_modules must be true or false, not 1"),
    (lambda _: load_pair(fuse_norms=1), "fuse_norms must be true or false, not 1"),
    (lambda _: load_pair(prepack_weights=0), "prepack_weights must be true or false, not 0"),
    (lambda _: load_pair("qwen3", random_weights="yes"), "random_weights must be true or false"),
    (lambda _: load_pair(seed="x"), "seed must be an integer in .* not 'x'"),
    (lambda pair: verify(pair, [[1]], bitwise="no"), "bitwise must be true or false, not 'no'"),
    (lambda pair: UNTYPED(pair, [[1]], None), "outputs must be lists of token ids, one a prompt, not None"),
    (lambda pair: UNTYPED(pair, [[1]], ["x"]), "output 0 is not a list of token ids below 61"),
    (lambda pair: judge_outputs(pair, [[1], [2]], [[3], []]), "output 1 is empty"),
    (lambda pair: judge_outputs(pair, [[1]], [[3, True]]), "output 0 is not a list of token ids below 61"),
    (lambda pair: judge_outputs(pair, [[1]], [[1] * 9999]), "output 0 has 9999 tokens: after 1 of its"),
    (lambda pair: judge_method(pair, [[1]], reference=[[61]]), "reference 0 is not a list of token ids below 61"),
    (lambda pair: generate(pair, [[1]], progress=5), "progress must be a function, not 5"),
    (lambda pair: watch(pair, [Request([1], arrival_s=1)]), "watched prompts are all there at the start: leave out"),
    (lambda pair: make_pair(pair.target.model, tokenizer="x"), "the tokenizer must be one of transformers, not str"),
    (lambda pair: make_pair(pair.target.model).decode([1]), "the pair 'pair' has no tokenizer"),
    (lambda _: simulate(SMALL, 1, keep_rows="no"), "keep_rows must be true or false, not 'no'"),
    (lambda _: simulate(SMALL, 1, progress="yes"), "progress must be True or a function, not 'yes'"),
    (lambda _: simulate(SMALL, 1)["magic"], "metric must be one of tokens_per_s, .* not 'magic'"),
    (lambda _: simulate(SMALL, 1).to_frame("rows"), "the rows were not kept: simulate with keep_rows=True"),
    (lambda _: compare({"a": SMALL, "b": SMALL}, replications=2)["magic"], "name must be one of b, not 'magic'"),
    (lambda _: compare({"a": SMALL, "b": SMALL}, replications=2).of("magic"), "metric must be one of"),
    (lambda _: sweep(SMALL), "give a SweepSpec .build_sweep. or the path of a YAML file"),
    (lambda _: attribute(SMALL, SMALL.but(method="eqspec"), 2, level=1.0), r"level must be a number in \(0, 1\), not"),
    (lambda _: outlook(WhatIf(), SMALL, ("inplace", "masked"), 2).margin(2), r"level must be a number in \(0, 1\)"),
    (lambda _: plots.band_against(None, "seed", level=float("nan")), r"level must be a number in \(0, 1\), not nan"),
    (lambda _: simulate(SMALL, 1).relative_error("foo"), "metric must be one of tokens_per_s, .* not 'foo'"),
    (lambda _: plots.backlog(simulate(SMALL, 2), replication=9), "replication must be one of 0 … 1, not 9"),
    (lambda _: plots.raggedness_map(simulate(SMALL, 1, keep_rows=True), replication=9), "one of 0 … 0, not 9"),
    (lambda _: outlook(WhatIf(), SMALL, ("inplace", "inplace"), 2), "methods must be named once each, not inplace"),
    (lambda _: parse_forced("iid:nan", 3), "with a number in 0 … 1"),
    (lambda _: parse_forced("trace:" + "x" * 5000, 3), "File name too long"),
    (lambda _: simulate(SMALL, precision="x"), "precision must be a number in .* not 'x'"),
    (lambda _: simulate(SMALL, precision=0.1, max_replications=0), "max_replications must be an integer ≥ 1, not 0"),
    (lambda _: simulate(SMALL, "x"), "replications must be an integer ≥ 1, not 'x'"),
    (lambda _: simulate(SMALL, 1, workers=10**6), "workers must be at most"),
    (lambda _: compare(SMALL, SMALL, "x"), "replications must be an integer ≥ 2"),
    (lambda _: build_sweep(SMALL, grid={}), "grid: names no setting"),
    (lambda _: Scenario(seed=10**5000), "seed must be an integer in .* too long to show"),
    (lambda _: Engine(window_size=10**10), "window_size must be at most 1048576"),
    (lambda _: load_calibration("x" * 5000), "not found"),
    (lambda _: load_calibration("a\0b"), "not found"),
    (lambda _: SMALL.but({5: 1}), "the path of a setting must be a text, not 5"),
    (lambda _: SMALL.but(5), "changes must be a mapping, not 5"),
    (lambda _: build_sweep(SMALL, replications=1, grid={5: [1]}), "the path of a setting must be a text, not 5"),
    (lambda _: compare(SMALL, SMALL, 10**400), "replications must be at most 1000000, not 10"),
    (lambda pair: verify(pair, [[1]], method="inplace"), "verify takes methods, a list, not method"),
    (lambda pair: verify(pair, [[1]], batch_size=2), "verify takes batch_sizes, a list, not batch_size"),
    (lambda _: make_config(temperature=10**400), "temperature must be a number ≥ 0, not 10"),
    (lambda _: make_config(kv_memory_gib=10**400), "kv_memory_gib must be"),
    (lambda _: read_engine_trace("x" * 5000), "no such trace"),
    (lambda _: read_service_trace("x" * 5000), "no such trace"),
]  # fmt: skip
