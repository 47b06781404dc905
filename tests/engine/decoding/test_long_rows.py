"""Rows longer than one prefill chunk, and rows that outgrow the columns their batch began with."""

import random

import pytest

from refimpl import generate
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair

CHUNK = 512  # queries of a prefill pass
STABLE_CHUNK = 64  # the same under shape-stable execution
_rng = random.Random(5)
LONG = [[_rng.randrange(61) for _ in range(2 * CHUNK + n)] for n in (3, 2, 1, 0)]


@pytest.fixture(scope="module")
def long_llama():
    """A random Llama pair whose context spans three prefill chunks."""
    name, config = TINY_ARCHITECTURES["llama"]
    with pytest.MonkeyPatch.context() as patch:
        long = config | {"max_position_embeddings": 3 * CHUNK}
        patch.setitem(TINY_ARCHITECTURES, "llama", (name, long))
        return random_pair("llama", draft_noise=0.01)


def test_prompts_around_the_borders_of_prefill_chunks(long_llama):
    """A prompt's last token is not prefilled, so the second chunk ends at 1,025 tokens."""
    prompts = [*LONG, *(prompt[CHUNK:] for prompt in LONG), [7]]
    settings = {"max_new_tokens": 4, "num_speculative_tokens": 2, "checks": "host", "stop_token_ids": []}
    expected = generate(long_llama, prompts, method="autoregressive", logprobs=0, **settings).sequences
    for method in ("inplace+static", "eqspec"):
        found = generate(long_llama, prompts, method=method, batch_size=9, logprobs=0, **settings).sequences
        for mine, wanted in zip(found, expected, strict=True):
            assert mine.token_ids == wanted.token_ids
            assert [e.logprob for e in mine.logprobs] == pytest.approx([e.logprob for e in wanted.logprobs], abs=1e-9)


@pytest.mark.parametrize("method", ["eqspec", "exspec", "rollback", "masked"])
@pytest.mark.parametrize("prompts", [[[3, 1, 4]], [[3, 1, 4], [3, 1, 4]]], ids=["alone", "twins"])
def test_rows_that_never_become_ragged_outgrow_their_first_columns(llama, method, prompts):
    """Nothing is realigned, so only the lack of columns makes the batch grow."""
    settings = {"max_new_tokens": 120, "num_speculative_tokens": 3, "stop_token_ids": []}
    expected = generate(llama, prompts[:1], method="autoregressive", **settings).sequences[0].token_ids
    result = generate(llama, prompts, method=method, batch_size=len(prompts), **settings)
    assert [s.token_ids for s in result.sequences] == [expected] * len(prompts)


def test_prompts_around_the_borders_of_shape_stable_chunks(llama):
    """Shape-stable execution prefills rectangles of 64 tokens a row; logits show what tokens may hide."""
    prompts = [[1 + i % 7 for i in range(length)] for length in (STABLE_CHUNK + 1, STABLE_CHUNK + 2, 1)]
    settings = {"max_new_tokens": 4, "num_speculative_tokens": 2, "stop_token_ids": [], "logprobs": 0}
    expected = generate(llama, prompts, method="autoregressive", **settings).sequences
    found = generate(llama, prompts, method="inplace", batch_size=3, shape_stable=True, **settings).sequences
    for mine, wanted in zip(found, expected, strict=True):
        assert [e.logprob for e in mine.logprobs] == pytest.approx([e.logprob for e in wanted.logprobs], abs=1e-9)
