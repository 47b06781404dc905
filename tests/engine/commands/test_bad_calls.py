"""Calls that cannot be done: one line that says what to change, exit code 2, nothing written.

Values that a declared range refuses are in `tests/property/test_settings.py`, for every setting.
"""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BatchEncoding

from refimpl import (
    DecodeConfig,
    InputError,
    Request,
    generate,
    judge_method,
    judge_outputs,
    load_pair,
    make_pair,
    stream,
    verify,
    watch,
)
from refimpl.bench.forced import parse_forced
from refimpl.bench.settings import BenchSettings
from refimpl.core.config import make_config
from refimpl.decoding.trace import write_trace
from refimpl.pairs.names import TINY
from refimpl.planning import plan_memory
from refimpl.streaming import Stream
from refimpl.viz.rounds import ragged_batch
from tests.commands import run_cli

FILES = {"p.txt": "import os\n", "own.jsonl": '{"prompt": "a", "max_new_tokens": 3}\n', "bad.jsonl": "{}\n\nnot json\n"}
COMMANDS = [
    ("generate --prompts nowhere.txt", "nowhere.txt: cannot be read: No such file"),
    ("generate --prompts .", "cannot be read: Is a directory"),
    ("generate --prompts bad.jsonl", "line 1: an object with `prompt`"),
    ("generate --output ", "--output: must name a file, and is empty$"),
    ("generate --output -", "cannot write -: standard output is /dev/stdout"),
    ("generate --output no/such/out.jsonl", "the folder no/such does not exist"),
    ("generate --output p.txt/out.jsonl", "p.txt is not a folder"),
    ("generate --output " + "x" * 300, "File name too long"),
    ("generate --prompts p.txt --output ./p.txt", "cannot write p.txt: another option reads or writes it"),
    ("generate --trace new --output new", "cannot write new: another option reads or writes it"),
    ("generate --limit 1 --max-new-tokens 1 --trace /dev/full", "No space left on device"),
    ("generate --method magic", "unknown method 'magic': choose autoregressive, speculative"),
    ("generate --device cuda:99", "CUDA"),
    ("generate --device meta", "cannot run on meta"),
    ("generate --target only-one", "--target and --draft go together"),
    ("generate --target p.txt --draft x", "it is a file, give the folder of"),
    ("generate --pair magic", "unknown pair 'magic'"),
    ("generate --max-new-tokens 5000 --limit 1", "does not fit the context"),
    ("generate --set batch=4", "batch"),
    ("generate --temperature 1 --acceptance greedy", "acceptance 'greedy' needs temperature 0"),
    ("generate --stop <|endoftext|> --limit 1", "special tokens .* put 0 into stop_token_ids"),
    ("generat", "no such command 'generat'. Did you mean 'generate'"),
    ("generate --limit 1.5", "--limit"),
    ("verify --batch-sizes 1,x", "comma-separated integers"),
    ("verify --methods autoregressive", "no method to verify"),
    ("verify --methods inplace,\xa0magic", "unknown method 'magic'"),
    ("verify --methods inplace,eqspec --bitwise", "eqspec"),
    ("tie-or-bug --methods inplace,eqspec --set cuda_graphs=true", "eqspec"),
    ("tie-or-bug --plot x.exe", "--plot must end in"),
    ("tie-or-bug --prompts own.jsonl", "leave out the settings that some of them have"),
    ("bench --drafters magic --limit 1", "not 'magic'"),
    ("bench --acceptance forced:trace:p.txt --output p.txt", "cannot write p.txt: another option reads or writes it"),
    ("bench --acceptance forced:magic", "write iid:A, rate:R or trace:FILE"),
    ("bench --batch-sizes 0", "--batch-sizes must be at least 1"),
    ("anatomy --acceptance natural", "write iid:A, rate:R or trace:FILE"),
    ("bench-serving --traces /dev/null/runs", "cannot write to /dev/null/runs: /dev/null is not a folder"),
    ("anatomy --contexts 64 --rounds 100000 --batch-sizes 2", "do not fit the models' 4096"),
    ("memory-plan --budget 1e300", "the budget must be a finite number of GiB"),
    ("conformance --engine refimpl.conformance.adapters:method:magic", "unknown method 'magic'"),
]


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=[words[:60] for words, _ in COMMANDS])
def test_commands(monkeypatch, capsys, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    code, output = run_cli(monkeypatch, capsys, *words.split(" "))
    assert (code, output.out) == (2, "")
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert re.search(message, output.err.removeprefix("error: ").rstrip("\n"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FILES


PROMPTS = [
    ([], "there are no prompts"),
    ("text", "prompts must be a list; put a single prompt into one"),
    ({1, 2}, "prompts must be a list, not set"),
    (BatchEncoding({"input_ids": [[1]]}), "prompts must be a list, not BatchEncoding: pass its input_ids"),
    ([BatchEncoding({"input_ids": [1]})], "prompt 0 is a BatchEncoding: pass its input_ids"),
    ([b"abc"], "prompt 0 must be a text or a list of token ids, not bytes"),
    ([1, 2, 3], "prompts must be a list of texts or of lists of token ids: prompt 0 is 1"),
    ([[1, 2.5]], r"prompt 0 is \[1, 2.5\]"),
    ([[1], [True, False]], r"prompt 1 is \[True, False\]"),
    ([[1], []], "prompt 1 is empty"),
    ([[1], [61]], "prompt 1 holds token 61, outside the vocabulary of 61"),
    (["text"], "has no tokenizer"),
    ([[1] * 250], "prompt 0 has 250 tokens: with 64 new ones it does not fit the context of 256"),
    ([Request([1], stop_token_ids=[99])], r"in \[0, 60\], not 99"),
]
CALLS = [
    *((lambda pair, prompts=prompts: generate(pair, prompts), message) for prompts, message in PROMPTS),
    (lambda _: generate("tiny", [[1]]), "pair must be one of load_pair or make_pair, not 'tiny'"),
    (lambda pair: generate(pair, [[1]], progress=5), "progress must be a function, not 5"),
    (lambda pair: generate(pair, [[1]], sped=3), "unknown setting sped: choose among"),
    (lambda pair: generate(pair, [[1]], logprobs=62), "logprobs must be at most the vocabulary of 61, not 62"),
    (lambda pair: generate(pair, [[1]], stop_strings=["x"]), "prompt 0 has stop strings, but the pair .* no tokenizer"),
    (lambda _: make_config(stop_strings=("",)), "a stop string must not be empty"),
    (lambda _: Request([1], stop_strings="end"), "stop_strings must be a list of texts, not 'end'"),
    (lambda _: Request([1], stop_token_ids=["</s>"]), "a stop token id must be an integer ≥ 0, not '</s>'"),
    (lambda _: Request([1], num_speculative_tokens=65), r"num_speculative_tokens must be an integer in \[0, 64\]"),
    (lambda _: Request([1], max_new_tokens=0), "max_new_tokens must be an integer ≥ 1, not 0"),
    (lambda _: make_config(stop_token_ids=[[1]]), r"a stop token id must be an integer ≥ 0, not \(1,\)"),
    (lambda _: make_config(acceptance="magic"), "acceptance must be one of greedy, .* or forced:P/P/…, not 'magic'"),
    (lambda _: make_config(acceptance="forced"), "or forced:P/P/…, not 'forced'"),
    (lambda _: make_config(acceptance="forced:0.5/x"), "acceptance 'forced' needs probabilities .* not '0.5/x'"),
    (lambda _: make_config(acceptance="forced:0.5/nan"), "needs probabilities that sum to 1"),
    (lambda _: make_config(method="exspec", window_size=4), "window_size 4 is smaller than batch_size 8"),
    (lambda _: make_config(seed=10**5000), "seed must be an integer .* too long to show"),
    (lambda _: make_config(temperature=10**400), "temperature must be a number ≥ 0, not 10"),
    (lambda _: Request([1], arrival_s=-1), "arrival_s must be a number of seconds in"),
    (lambda pair: stream(pair, [[1]]).cancel("a"), "there is no sequence 'a'"),
    (lambda pair: Stream(pair, [[1]], DecodeConfig(method="autoregressive")), "has no layout and no scheduler"),
    (lambda pair: watch(pair, [Request([1], arrival_s=1)]), "watched prompts are all there at the start: leave out"),
    (lambda _: write_trace(Path("/dev/full"), {}, []), "cannot write /dev/full: No space left on device"),
    (lambda _: load_pair("x" * 5000, "y"), "cannot load the target 'x{59}….*"),
    (lambda _: load_pair(dtype=[]), r"unknown dtype \[\]: choose float64"),
    (lambda _: load_pair("qwen3", random_weights="yes"), "random_weights must be true or false"),
    (lambda pair: make_pair(pair.target.model, vocab_size=True), "vocab_size must be from 1 to 61, not True"),
    (lambda pair: make_pair(pair.target.model, head=5), "the head must be the path of its file, not int"),
    (lambda pair: make_pair(pair.target.model, stop_token_ids=[61]), r"in \[0, 60\], not 61"),
    (lambda pair: make_pair(pair.target.model, tokenizer="x"), "the tokenizer must be one of transformers, not str"),
    (lambda pair: verify(pair, [[1]], methods=[]), "no method to verify"),
    (lambda pair: verify(pair, [[1]], methods=[1]), r"methods must be names, not \[1\]"),
    (lambda pair: verify(pair, [[1]], batch_sizes=2), "batch_sizes must be a list of integers, not 2"),
    (lambda pair: verify(pair, [[1]], batch_size=2), "verify takes batch_sizes, a list, not batch_size"),
    (lambda pair: verify(pair, [[1]], jobs=0), "jobs must be an integer ≥ 1, not 0"),
    (lambda pair: verify(pair, [[1]], acceptance="rejection", temperature=1.0), "the distribution, not the tokens"),
    (lambda pair: judge_method(pair, [[1], [2]], reference=[[1]]), "there are 2 prompts, but 1 references"),
    (lambda pair: judge_outputs(pair, [[1]], [[3, True]]), "output 0 is not a list of token ids below 61"),
    (lambda pair: judge_outputs(pair, [[1]], [[1] * 9999]), "output 0 has 9999 tokens: after 1 of its"),
    (lambda pair: plan_memory(pair, [[1]], budget_gib=None), "finite number of GiB above 0, not None"),
    (lambda _: BenchSettings(options=(("batch_size", 3),)), "batch_size holds for all engines of a benchmark"),
    (lambda _: parse_forced("iid:nan", 3), "with a number in 0 … 1"),
    (lambda _: ragged_batch(5), "give a round of watch, not 5"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_calls_of_the_library(llama, call, message):
    with pytest.raises(InputError, match=message) as error:
        call(llama)
    assert "\n" not in str(error.value)


MODELS = [  # file of a model's folder, its content
    ("config.json", "{", "config.json: not JSON"),
    ("config.json", "[" * 20_000, "config.json: lists and mappings are nested too deeply"),
    ("config.json", '{"model_type": 5}', "config.json: "),
    ("config.json", {"num_hidden_layers": 10**9}, "config.json: num_hidden_layers must be at most 4096, not"),
    ("generation_config.json", '{"eos_token_id": [[1]]}', r"generation_config.json: eos_token_id .* not \[\[1\]\]"),
    ("tokenizer.json", "[]", "tokenizer's files"),
    ("model.safetensors.index.json", '{"weight_map": {"a": "../../x.safetensors"}}', "must name files of its folder"),
    ("model.safetensors", "", "weights"),
]


@pytest.mark.parametrize(("file", "content", "message"), MODELS)
def test_models_that_cannot_be_loaded(tmp_path, file, content, message):
    folder = tmp_path / "model"
    shutil.copytree(TINY / "target", folder, copy_function=lambda a, b: Path(b).symlink_to(a))
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / file).read_text()) | content)
    (folder / file).unlink(missing_ok=True)
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        load_pair(folder, TINY / "draft")
    assert str(error.value).startswith(f"cannot load the target {folder}: ")
    assert "\n" not in str(error.value)


def test_processes_are_for_a_cpu():
    pair = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(InputError, match="jobs must be 1 on cuda, not 2"):
        verify(pair, [[1]], methods="inplace", jobs=2)


def test_samples_that_would_be_tied(llama):
    """Nothing is drawn in greedy decoding, so nothing can be tied."""
    prompts = [Request([1], sequence_id=1), [1], *[Request([2], seed=3, sequence_id=1)] * 2]
    greedy = generate(llama, prompts, max_new_tokens=4)
    assert greedy.sequences[0].token_ids == greedy.sequences[1].token_ids
    for tied in (prompts[:2], prompts[2:]):
        with pytest.raises(InputError, match=r"share seed . and sequence id 1, .* give one another"):
            generate(llama, tied, temperature=1.0)


def test_ids_of_a_chat_template(tiny):
    """README tells how to get them."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chat = [{"role": "user", "content": "def main("}]
    ids = tiny.tokenizer.apply_chat_template(chat, chat_template=template, return_dict=False)
    found = generate(tiny, [ids, "def main("], max_new_tokens=4).sequences
    assert found[0].token_ids == found[1].token_ids
    with pytest.raises(InputError, match="prompt 1 is no text: surrogates not allowed at character 2"):
        generate(tiny, ["def", "a \ud800"])
