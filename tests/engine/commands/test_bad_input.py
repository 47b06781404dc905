"""Bad input: one clear line, and nothing half-written."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from transformers import BatchEncoding

from refimpl import DecodeConfig, InputError, Request, generate, load_pair, make_pair
from refimpl.bench.settings import BenchSettings
from refimpl.core.config import make_config
from refimpl.judging.equivalence import verify
from refimpl.judging.method_runs import runs_to_verify
from refimpl.judging.tie_or_bug import judge_method
from refimpl.pairs.random_pairs import random_pair
from refimpl.planning import plan_memory
from refimpl.streaming import Stream
from refimpl.viz.regrets import regret_histogram
from refimpl.viz.rounds import mask_map, position_map, ragged_batch, timeline
from tests.commands import run_cli


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic': choose autoregressive, speculative"),
        ({"method": "inplace+magic"}, "unknown method"),
        ({"batch_size": 0}, "batch_size must be an integer"),
        ({"num_speculative_tokens": -1}, r"num_speculative_tokens must be an integer in \[0, 64\]"),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer ≥ 1"),
        ({"method": "exspec", "window_size": 4}, "window_size 4 is smaller than batch_size 8"),
        ({"aging_bound": -1}, "aging_bound must be a number ≥ 0"),
        ({"acceptance": "greedy", "temperature": 1.0}, "acceptance 'greedy' needs temperature 0"),
        ({"stop_strings": ("",)}, "a stop string must not be empty"),
        ({"compaction_threshold": 0}, r"compaction_threshold must be a number in \(0, 1\]"),
        ({"acceptance": "forced", "forced_lengths": ("1",)}, "forced_lengths must be probabilities"),
        ({"sped": 3}, "unknown setting sped: choose among"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(InputError, match=message):
        make_config(**settings)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "there are no prompts"),
        ("text", "prompts must be a list"),
        (5, "prompts must be a list"),
        ([{1, 2}], "prompt 0 must be a text or a list of token ids, not set"),
        ([1, 2, 3], "prompts must be a list of texts or of lists of token ids: prompt 0 is 1"),
        ([b"abc"], "prompt 0 must be a text or a list of token ids, not bytes"),
        ([{1: 2}], "prompt 0 must be a text or a list of token ids, not dict"),
        ({1, 2}, "prompts must be a list, not set"),
        ({"input_ids": [1]}, "prompts must be a list, not dict: pass its input_ids"),
        (BatchEncoding({"input_ids": [[1]]}), "prompts must be a list, not BatchEncoding: pass its input_ids"),
        ([BatchEncoding({"input_ids": [1]})], "prompt 0 is a BatchEncoding: pass its input_ids"),
        ([[1, 2.5]], r"prompt 0 is \[1, 2.5\]"),
        ([[1], [True, False]], r"prompt 1 is \[True, False\]"),
        ([[1], []], "prompt 1 is empty"),
        ([[1], [61]], "prompt 1 holds token 61, outside the vocabulary of 61"),
        (["text"], "has no tokenizer"),
        ([[1] * 250], "prompt 0 has 250 tokens: with 64 new ones it does not fit the context of 256"),
    ],
)
def test_prompts(llama, prompts, message):
    with pytest.raises(InputError, match=message):
        generate(llama, prompts)


def test_ids_of_a_chat_template(tiny):
    """README tells how to get them."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chat = [{"role": "user", "content": "def main("}]
    ids = tiny.tokenizer.apply_chat_template(chat, chat_template=template, return_dict=False)
    found = generate(tiny, [ids, "def main("], max_new_tokens=4).sequences
    assert found[0].token_ids == found[1].token_ids
    with pytest.raises(InputError, match="prompt 0 is a BatchEncoding: pass its input_ids"):
        generate(tiny, [tiny.tokenizer("def main(")])


def test_samples_that_would_be_tied(llama):
    """Nothing is drawn in greedy decoding, so nothing can be tied."""
    prompts = [Request([1], sequence_id=1), [1], *[Request([2], seed=3, sequence_id=1)] * 2]
    greedy = generate(llama, prompts, max_new_tokens=4)
    assert greedy.sequences[0].token_ids == greedy.sequences[1].token_ids
    for tied in (prompts[:2], prompts[2:]):
        with pytest.raises(InputError, match=r"share seed . and sequence id 1, .* give one another"):
            generate(llama, tied, temperature=1.0)


@pytest.mark.parametrize("prompt", ["import os", Request("import os", stop_strings=["x", "a<|endoftext|>"])])
def test_stop_strings_that_no_text_holds(tiny, prompt):
    with pytest.raises(InputError, match=r"'a?<\|endoftext\|>' .* special tokens .* put 0 into stop_token_ids"):
        generate(tiny, [prompt], stop_strings=["<|endoftext|>"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": "autoregressive"}, "no method to verify: name one besides autoregressive"),
        ({"methods": "autoregressive", "bitwise": True}, "no method to verify"),
        ({"methods": []}, "no method to verify"),
        ({"methods": "inplace", "batch_sizes": ()}, "no batch size to verify at"),
        ({"batch_sizes": 2}, "batch_sizes must be a list of integers, not 2"),
        ({"batch_sizes": [0]}, "batch_size must be an integer ≥ 1"),
        ({"batch_sizes": ["1"], "window_size": "4"}, "batch_size must be an integer ≥ 1"),
        ({"methods": 3}, "methods must be names, not 3"),
        ({"methods": [1]}, r"methods must be names, not \[1\]"),
        ({"progress": 5}, "progress must be a function, not 5"),
        ({"jobs": 0}, "jobs must be an integer ≥ 1, not 0"),
        ({"jobs": "2"}, "jobs must be an integer ≥ 1, not '2'"),
        ({"acceptance": "rejection", "temperature": 1.0}, "'rejection' preserves the distribution, not the tokens"),
        ({"acceptance": "forced", "forced_lengths": (0, 1)}, "'forced' is for timing"),
    ],
)
def test_impossible_verification(llama, settings, message):
    with pytest.raises(InputError, match=message):
        verify(llama, [[1]], **settings)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda pair: judge_method(pair, [[1], [2]], reference=[[1]]), "there are 2 prompts, but 1 references"),
        (lambda pair: plan_memory(pair, [[1]], budget_gib=None), "finite number of GiB above 0, not None"),
        (lambda pair: make_pair(pair.target.model, vocab_size="5"), "vocab_size must be from 1 to 61, not '5'"),
        (lambda pair: make_pair(pair.target.model, vocab_size=True), "vocab_size must be from 1 to 61, not True"),
        (lambda pair: make_pair(pair.target.model, head=5), "the head must be the path of its file, not int"),
        (lambda _: load_pair(dtype=[]), r"unknown dtype \[\]: choose float64"),
        (lambda pair: Stream(pair, [[1]], DecodeConfig(method="autoregressive")), "has no layout and no scheduler"),
    ],
)
def test_what_python_alone_can_get_wrong(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong(random_pair())


@pytest.mark.parametrize(
    ("draw", "wanted"),
    [
        (ragged_batch, "a round of watch"),
        (position_map, "a round of watch"),
        (mask_map, "a row of a round of watch"),
        (timeline, "the rounds of a result"),
        (regret_histogram, "a mapping from names to the regrets of judgements"),
    ],
)
@pytest.mark.parametrize("given", [5, None, [1]])
def test_what_cannot_be_drawn(draw, wanted, given):
    with pytest.raises(InputError, match=re.escape(f"give {wanted}, not {given}")):
        draw(given)


def test_judged_prompts_may_come_one_by_one(llama):
    assert judge_method(llama, ([token] for token in (1, 2)), max_new_tokens=2).verdict == "exact"


def test_prompts_may_come_one_by_one(llama):
    report = verify(llama, ([token] for token in (1, 2, 3)), methods="inplace", batch_sizes=(2,), max_new_tokens=2)
    assert (report.prompts, report.exact) == (3, True)


def test_processes_are_for_a_cpu():
    pair = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(InputError, match="jobs must be 1 on cuda, not 2"):
        verify(pair, [[1]], methods="inplace", jobs=2)


def test_config_is_frozen():
    with pytest.raises(AttributeError):
        DecodeConfig().batch_size = 3


def test_cut_prompts_are_counted(llama):
    result = generate(llama, [[1] * 30, [2] * 3], max_prompt_tokens=10, max_new_tokens=2)
    assert [s.num_prompt_tokens_cut for s in result.sequences] == [20, 0]
    assert result.stats.num_prompt_tokens_cut == 20


@pytest.mark.parametrize("command", ["verify", "tie-or-bug", "bench", "bench-serving"])
def test_names_of_methods_may_stand_behind_blanks(monkeypatch, capsys, command):
    _, output = run_cli(monkeypatch, capsys, command, "--methods", "inplace, magic")
    assert "unknown method 'magic'" in output.err


def test_names_of_drafters_may_stand_behind_blanks(monkeypatch, capsys):
    _, output = run_cli(monkeypatch, capsys, "bench", "--drafters", "model, magic", "--limit", "1")
    assert "not 'magic'" in output.err


@pytest.mark.parametrize(
    ("command", "wish"),
    [("verify", "--set=cuda_graphs=true"), ("verify", "--bitwise"), ("tie-or-bug", "--set=cuda_graphs=true")],
)
def test_what_a_method_cannot_do_is_refused_before_models_are_loaded(monkeypatch, capsys, command, wish):
    monkeypatch.setattr("refimpl.pairs.load_pair", lambda *_, **__: pytest.fail("loaded"))
    code, output = run_cli(monkeypatch, capsys, command, "--methods", "inplace,eqspec", wish)
    assert code == 2
    assert "eqspec" in output.err


@pytest.mark.parametrize("command", ["tie-or-bug", "bench-serving"])
def test_prompts_with_settings_of_their_own_are_refused_before_models_are_loaded(
    monkeypatch, capsys, tmp_path, command
):
    monkeypatch.setattr("refimpl.pairs.load_pair", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x", "max_new_tokens": 3}')
    code, output = run_cli(monkeypatch, capsys, command, "--prompts", str(tmp_path / "prompts.jsonl"))
    assert code == 2
    assert "leave out the settings that some of them have" in output.err


@pytest.mark.parametrize(
    ("wish", "layouts"), [({"cuda_graphs": True}, {"inplace"}), ({"bitwise": True}, {"inplace", "paged"})]
)
def test_all_methods_are_those_that_can(llama, wish, layouts):
    report = verify(llama, [[1, 2], [3]], batch_sizes=[2], max_new_tokens=3, checks="host", **wish)
    assert {row.method.partition("+")[0] for row in report.results} == layouts
    assert report.exact


@pytest.mark.parametrize("settings", [{}, {"shape_stable": True}])
def test_all_methods_are_those_that_can_overlap(settings):
    runs = runs_to_verify("all", [2], {"execution": "overlapped", **settings})
    stable = [("inplace+fifo", 2), ("paged+fifo", 2)]
    assert runs == (stable if settings else [("speculative", 1), ("inplace", 2), ("paged", 2)])


def test_a_budget_of_tokens_is_for_the_scheduler_that_has_one(llama):
    """As a window is; drafts and budget need not fit for the others."""
    found = [generate(llama, [[1]], max_new_tokens=4, token_budget=budget).sequences for budget in (None, 3)]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["method", "batch_size", "num_speculative_tokens", "max_new_tokens", "stop_token_ids"])
def test_what_all_engines_of_a_benchmark_share_is_no_option_of_ours(name):
    """Its rows would say another batch size, or compare outputs of other lengths."""
    with pytest.raises(InputError, match=f"{name} holds for all engines of a benchmark"):
        BenchSettings(options=((name, 3),))


def test_no_character(tiny):
    with pytest.raises(InputError, match="prompt 1 is no text: surrogates not allowed at character 2"):
        generate(tiny, ["def", "a \ud800"])


def test_what_is_no_pair():
    with pytest.raises(InputError, match="pair must be one of load_pair or make_pair, not 'tiny'"):
        generate("tiny", [[1]])


def test_a_long_prompt_that_is_cut_raises_no_alarm():
    records: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger("transformers")
    handler.emit = records.append  # type: ignore[method-assign]
    pair = load_pair("tiny")
    logger.addHandler(handler)
    try:
        generate(pair, ["word " * 3000], max_prompt_tokens=20, max_new_tokens=2, method="autoregressive")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []
