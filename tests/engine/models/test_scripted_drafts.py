"""Models with windows, sinks, shared K/V and recurrent states, under drafts that are right, wrong, ragged and missing.

Rows outgrow every window. The reference is transformers' own generation, one row at a time, with its own cache.
"""

import importlib
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from refimpl import generate, stream
from refimpl.decoding import drafters
from refimpl.decoding.memory import pool_gib
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import random_models
from refimpl.placement import num_states

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
families = importlib.import_module("model_families")

NUM_NEW = 12
NOISE = 0.002  # of drafts that are often right
EVERY_DAY = (
    "gemma2",
    "gpt_oss",
    "gemma4_text, layers that share K/V",
    "qwen3_next",
    "falcon_h1",
    "lfm2, with convolutions",
)
PROMPTS = [[5], [7, 0, 2, 9], [1 + i % 60 for i in range(27)], [3, 1, 4, 1, 5, 9, 2, 6, 5], [8, 8], [2] * 19]
SCRIPTS = {  # of a round that begins with so many generated tokens, in row i: right drafts, then wrong ones
    "right": lambda at, row: (4, 0),
    "wrong": lambda at, row: (0, 3),
    "ragged": lambda at, row: ((at + row) % 5, (2 * at + row) % 3),
    "missing": lambda at, row: ((0, 0), (2, 1), (0, 2))[(at + row) % 3],
}
METHODS = ["inplace", "paged", "exspec", "masked", "rollback", "paged+continuous"]


@lru_cache(maxsize=4)
def driven(name):
    """A family's pair, and what transformers generates."""
    return families.judge(families.BY_NAME[name]).pair, texts_of(families.BY_NAME[name], PROMPTS)


def texts_of(family, prompts):
    """What transformers generates with a family's target."""
    model, _ = family.models(attn_implementation="eager")
    settings = {"max_new_tokens": NUM_NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    rows = [torch.tensor([prompt]) for prompt in prompts]
    return [model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist() for ids in rows]


class Scripted:
    """An index that knows how each row goes on, and follows a script."""

    def __init__(self, script, texts, prompts, vocab_size):
        self.script, self.texts, self.prompts, self.vocab_size = script, texts, prompts, vocab_size

    def read(self, token_ids):
        self.row = next(i for i, text in enumerate(self.texts) if text[: len(token_ids)] == token_ids)
        self.at = len(token_ids)

    def propose(self, limit):
        right, wrong = self.script(self.at - len(self.prompts[self.row]), self.row)
        ahead = self.texts[self.row][self.at : self.at + right + wrong]
        return [token if i < right else (token + 1) % self.vocab_size for i, token in enumerate(ahead)][:limit]


def check(name, method, script, monkeypatch, **settings):
    return compare(*driven(name), PROMPTS, method, script, monkeypatch, **settings)


def compare(pair, texts, prompts, method, script, monkeypatch, **settings):
    index = lambda: Scripted(SCRIPTS[script], texts, prompts, pair.vocab_size)  # noqa: E731
    monkeypatch.setitem(drafters.DRAFTER_MAKERS, "ngram", lambda make: drafters.LookupDrafter(index))
    found = generate(
        pair, prompts, method=method, drafter="ngram", num_speculative_tokens=5, max_new_tokens=NUM_NEW,
        stop_token_ids=[], **{"batch_size": 3, "checks": "device"} | settings,
    )  # fmt: skip
    assert [s.token_ids for s in found.sequences] == [t[len(p) :] for t, p in zip(texts, prompts, strict=True)]
    return found


@pytest.mark.parametrize("name", EVERY_DAY)
def test_exact_under_ragged_drafts(name, monkeypatch):
    for method in ("inplace", "paged+continuous"):
        found = check(name, method, "ragged", monkeypatch)
        assert {row.accepted for record in found.rounds for row in record.rows} >= {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2, with convolutions", "mamba2"])
def test_recurrent_models_draft(name):
    """Rows keep the states behind some of the tokens of all passes of a round, also where all are accepted."""
    _, texts = driven(name)
    config = families.BY_NAME[name].config()
    models = random_models(config, seed=3, dtype=torch.float64, draft_noise=NOISE, attn_implementation=None)
    pair = make_pair(*models, stop_token_ids=())
    assert pair.draft.kv_shape.states
    for method in ("inplace", "exspec", "paged+continuous"):
        found = generate(
            pair, PROMPTS, method=method, num_speculative_tokens=3, max_new_tokens=NUM_NEW, stop_token_ids=[],
            batch_size=3, checks="oracle",
        )  # fmt: skip
        assert [s.token_ids for s in found.sequences] == [t[len(p) :] for t, p in zip(texts, PROMPTS, strict=True)]
        rows = [row for record in found.rounds for row in record.rows]
        assert {row.draft_lag for row in rows} == {1}
        assert {row.accepted for row in rows} > {0, 3}


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2, with convolutions"])
def test_rows_that_come_go_and_are_sent_back(name):
    """In a pool that holds little more than the longest row, with a recurrent draft; the last two rows come later."""
    pair, texts = driven(name)
    pool = pool_gib(pair, 12, 4, num_states=num_states(3, 3, 3))
    run = stream(
        pair, PROMPTS[:4], method="paged+continuous", batch_size=3, window_size=3, num_speculative_tokens=2,
        max_new_tokens=NUM_NEW, stop_token_ids=[], block_size=4, max_model_len=39, kv_memory_gib=pool, checks="device",
    )  # fmt: skip
    for _ in range(4):
        run.run_one_round()
    run.submit(PROMPTS[4:])
    run.cancel(1)
    for _ in run:
        pass
    result = run.result()
    wanted = [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)]
    wanted[1] = wanted[1][: len(result.sequences[1].token_ids)]
    assert [s.token_ids for s in result.sequences] == wanted
    assert 0 < len(wanted[1]) < NUM_NEW
    assert result.stats.num_preemptions > 0


KINDS = (
    "gemma2", "vaultgemma", "jamba", "mamba", "mamba2", "bailing_hybrid", "lfm3", "falcon_h1", "qwen3_next",
    "qwen3_5_text", "nemotron_h", "llama4_text",
)  # fmt: skip
WORDS = ("sliding", "sinks", "num_kv_shared", "linear", "conv")  # of settings
ODD = [f.name for f in families.FAMILIES if f.kind in KINDS or any(word in str(f.settings) for word in WORDS)]


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ODD)
def test_exact_in_every_layout_under_every_script(name, method, monkeypatch):
    pair, _ = driven(name)
    if pair is None:
        pytest.skip("refused, as docs/models.md says")
    for script in SCRIPTS:
        check(name, method, script, monkeypatch)


LLAMA_4 = "llama4_text, attention scaled by position"
CHUNKED = {"layer_types": ["chunked_attention", "full_attention"], "floor_scale": 8192}
PUBLISHED = {  # windows, or chunks, of releases
    "gpt_oss": 128, "gemma3n_text, layers that share K/V": 512, "gemma4_text, layers that share K/V": 512,
    "gemma3_text, mixed windows": 1024, "gemma2": 4096, "mistral, sliding window": 4096, "olmo3, mixed windows": 4096,
    LLAMA_4: 8192,
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_windows_are_outgrown(name, monkeypatch):
    """One row grows out of its window, one begins beyond it, and a short one runs beside them."""
    family, size = families.BY_NAME[name], PUBLISHED[name]
    released = {"sliding_window": size} if name != LLAMA_4 else {"attention_chunk_size": size} | CHUNKED
    released |= {"max_position_embeddings": size + 64}
    long = replace(family, settings=family.settings | released)
    pair, prompts = families.judge(long).pair, [[1 + i % 60 for i in range(n)] for n in (size - 5, size + 20, 3)]
    assert {span.size for span in pair.target.kv_shape.spans} - {0} == {size}
    for method in ("inplace", "paged"):
        compare(pair, texts_of(long, prompts), prompts, method, "ragged", monkeypatch)
