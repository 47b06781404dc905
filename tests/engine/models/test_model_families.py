"""Every causal family of transformers is driven exactly, or refused for the reason that the table gives."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from refimpl import generate, load_pair

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))
families = importlib.import_module("model_families")
table = importlib.import_module("models_table")

EVERY_DAY = (
    "mixtral", "deepseek_v3", "mistral, sliding window", "gemma3_text, mixed windows",
    "llama4_text, attention scaled by position", "granitemoehybrid", "doge", "whisper", "kimi_k25, reads images",
    "granitemoehybrid, attention only", "gemma4_text, heads of two widths", "olmo_hybrid",
)  # fmt: skip
NUM_NEW = 15
VERSION = f"\n| {transformers.__version__} | "


def some_of(names):
    """The twelve of every day; the others are for the night."""
    return [pytest.param(name, marks=[] if name in EVERY_DAY else pytest.mark.nightly) for name in names]


def stock_tokens(model, prompt):
    """What transformers' own generation makes of a prompt, with the simplest attention there is."""
    settings = {"max_new_tokens": NUM_NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = torch.tensor([prompt])
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()


def uncached_tokens(model, prompt, generated):
    """The most probable token at each place of a row, from one pass over all of it without a cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + generated]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


@pytest.mark.parametrize("name", some_of(families.BY_NAME))
def test_exact_or_refused_as_the_table_says(name):
    family = families.BY_NAME[name]
    verdict = families.judge(family)
    assert table.committed()[family.name] == table.place(family, verdict), "run tools/models_table.py, look at the diff"
    if verdict.pair is None:
        return
    context = verdict.pair.target.max_positions
    prompts = [[5], [7, 0, 2, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5], [1 + i % 60 for i in range(context - NUM_NEW)]]
    settings = {"max_new_tokens": NUM_NEW, "stop_token_ids": []}
    expected = [s.token_ids for s in generate(verdict.pair, prompts, method="autoregressive", **settings).sequences]
    twice = family.name == "falcon, with ALiBi"  # is added by transformers' eager attention
    model, _ = family.models(attn_implementation="sdpa" if twice else "eager")
    assert [stock_tokens(model, prompt) for prompt in prompts] == expected
    assert [uncached_tokens(model, *row) for row in zip(prompts, expected, strict=True)] == expected
    drafter = "model" if verdict.pair.draft else "ngram"
    for method in ("inplace", "exspec"):
        checks = "device" if family.partly_float32 else "oracle"
        found = generate(verdict.pair, prompts, method=method, drafter=drafter, batch_size=3, checks=checks, **settings)
        assert [s.token_ids for s in found.sequences] == expected, method


HYBRID = "granitemoehybrid, attention only"


OF_OTHER_ATTENTION = ["mamba2", "bloom"]  # without any, and with one that takes no name of a kernel


@pytest.mark.parametrize(
    "name",
    some_of([f.name for f in families.FAMILIES if "architectures" in f.settings] + [HYBRID]) + OF_OTHER_ATTENTION,
)
def test_loaded_from_a_folder_and_exact(name, tmp_path):
    """Those that no mapping of causal models has, by the class that they name; and one whose class can keep a state."""
    target, draft = families.BY_NAME[name].models()
    target.save_pretrained(tmp_path / "target")
    draft.save_pretrained(tmp_path / "draft")
    pair = load_pair(tmp_path / "target", tmp_path / "draft", dtype="float64", stop_token_ids=[])
    assert type(pair.target.model) is type(target)
    prompts = [[5], [7, 0, 2, 9], [1 + i % 60 for i in range(25)]]
    checks = "device" if families.BY_NAME[name].partly_float32 else "oracle"
    found = generate(pair, prompts, batch_size=3, max_new_tokens=NUM_NEW, checks=checks)
    assert [s.token_ids for s in found.sequences] == [stock_tokens(target, prompt) for prompt in prompts]


def test_settings_in_no_release_stand_beside_those_of_one():
    kinds = {
        mark: {f.kind for f in families.FAMILIES if f.release == mark} for mark in ("as released", "in no release")
    }
    assert kinds["as released"] == kinds["in no release"] >= {"gemma3n_text", "gemma4_text", "llama4_text"}


def test_twelve_families_every_day():
    assert len(set(EVERY_DAY) & set(families.BY_NAME)) == 12
    assert len({family.kind for family in families.FAMILIES}) >= 40


@pytest.mark.nightly
@pytest.mark.skipif(VERSION not in table.FULL_PAGE.read_text("utf-8"), reason="the table is of another transformers")
def test_table_is_fresh():
    check = [sys.executable, "tools/models_table.py", "--check"]
    run = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
