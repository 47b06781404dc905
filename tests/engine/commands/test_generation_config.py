"""A generation config that changes logits is applied; other ways of decoding are named, and nothing is exact then."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from refimpl import GenerationConfigWarning, InputError, Request, generate, judge_method, load_pair, verify
from refimpl.pairs import make_pair
from tests.commands import run_cli

PROMPT = [5, 9, 5, 3]
SAMPLED = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.8, "min_p": 0.1}


def stock_tokens(model):
    """What transformers' own greedy `generate` gives under the model's generation config."""
    ids = torch.tensor([PROMPT])
    settings = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(PROMPT) :].tolist()


def settings_that_change(plain):
    """One of each kind, made of what the model gives without it."""
    first, second = plain[:2]
    return [
        {"repetition_penalty": 9.0}, {"no_repeat_ngram_size": 1}, {"suppress_tokens": [first]},
        {"begin_suppress_tokens": [first]}, {"bad_words_ids": [[first]]}, {"sequence_bias": [[[first], -99.0]]},
        {"forced_eos_token_id": 8}, {"min_new_tokens": 3, "eos_token_id": first},
        {"min_length": 9, "eos_token_id": [second, 8]}, {"exponential_decay_length_penalty": (0, 99.0)},
        {"encoder_repetition_penalty": 9.0},
    ]  # fmt: skip


def settings_that_do_not():
    return [
        SAMPLED, {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}, {"num_beams": 1, "max_length": 400},
        {"renormalize_logits": True, "remove_invalid_values": True}, 
        {"min_new_tokens": 0, "min_length": 0, "pad_token_id": 0, "eos_token_id": [2, 7]},
    ]  # fmt: skip


def test_greedy_output_is_what_transformers_gives(saved):
    model = AutoModelForCausalLM.from_pretrained(saved / "target", dtype=torch.float64)
    cases = [*((each, True) for each in settings_that_change(stock_tokens(model)))]
    for settings, changes in [({}, False), *cases, *((each, False) for each in settings_that_do_not())]:
        stops = {"eos_token_id": settings.get("eos_token_id", 8)}
        model.generation_config = GenerationConfig(**stops)
        plain = stock_tokens(model)
        model.generation_config = GenerationConfig(**settings | stops)
        wanted, pair = stock_tokens(model), make_pair(model)  # without a warning, which would be an error
        assert (wanted != plain) == changes, settings
        for method in ("autoregressive", "inplace"):
            (found,) = generate(pair, [PROMPT], method=method, drafter="ngram", max_new_tokens=8).sequences
            assert found.token_ids == wanted, settings


def test_a_requests_own_settings_come_first(saved):
    model = AutoModelForCausalLM.from_pretrained(saved / "target", dtype=torch.float64)
    plain = stock_tokens(model)
    own = {"repetition_penalty": 9.0, "bad_words_ids": [[plain[0]]], "min_new_tokens": 3}
    model.generation_config = GenerationConfig(eos_token_id=8, sequence_bias=[[[plain[1]], -99.0]], **own)
    pair = make_pair(model)
    neutral = {"repetition_penalty": 1.0, "bad_words_ids": [], "min_new_tokens": 0, "logit_bias": {}}
    (found,) = generate(pair, [Request(PROMPT, 8, **neutral)], drafter="ngram").sequences
    assert found.token_ids == plain


def test_other_ways_of_decoding_are_named(saved):
    model = AutoModelForCausalLM.from_pretrained(saved / "target")
    for settings in ({"num_beams": 4}, {"penalty_alpha": 0.6, "top_k": 4}, {"stop_strings": ["."]}):
        model.generation_config = GenerationConfig(**settings)
        with pytest.warns(GenerationConfigWarning, match=f"sets {next(iter(settings))} = "):
            make_pair(model)


def test_regrets_of_processed_logits_are_not_judged(saved):
    model = AutoModelForCausalLM.from_pretrained(saved / "target", dtype=torch.float64)
    model.generation_config = GenerationConfig(repetition_penalty=1.05)
    with pytest.raises(InputError, match="regrets are those of plain ones"):
        judge_method(make_pair(model), [PROMPT], drafter="ngram")


def with_beams(folder):
    """Give a checkpoint another way of decoding."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 4}))


def run(monkeypatch, capsys, *arguments):
    code, printed = run_cli(monkeypatch, capsys, *map(str, arguments))
    return code, printed.err.splitlines()


@pytest.mark.filterwarnings("default")
def test_verify_never_calls_exact_what_transformers_would_not_give(saved, tmp_path, monkeypatch, capsys):
    (tmp_path / "ids.jsonl").write_text('{"prompt": [1, 5, 9]}\n')
    given = ["--target", saved / "target", "--draft", saved / "target", "--prompts", tmp_path / "ids.jsonl"]
    given += ["--max-new-tokens", 4]
    assert run(monkeypatch, capsys, "verify", *given, "--methods", "inplace", "--batch-sizes", 1) == (0, [])
    with_beams(saved / "target")
    warning = "warning: the target's generation config sets num_beams = 4: not applied here"
    code, told = run(monkeypatch, capsys, "generate", *given)
    assert code == 0
    assert [line.startswith(warning) for line in told] == [True, False], "one line, and the summary"
    code, (first, second) = run(monkeypatch, capsys, "verify", *given)
    assert (code, first.startswith(warning)) == (2, True)
    assert "error: the target's generation config sets num_beams = 4" in second
    assert "remove it from generation_config.json" in second


def test_no_verdict_from_python(saved):
    with_beams(saved / "target")
    with pytest.warns(GenerationConfigWarning, match="num_beams = 4"):
        pair = load_pair(saved / "target", drafter="ngram")
    for judge in (verify, judge_method):
        with pytest.raises(InputError, match=r"num_beams = 4.* nothing here can be exact"):
            judge(pair, [PROMPT], drafter="ngram")
