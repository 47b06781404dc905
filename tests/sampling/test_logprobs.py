"""Log-probabilities are the target's own, as an autoregressive run reports them."""

import math

import pytest
import torch

from refimpl import generate

SHAPE = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 8, "max_prompt_tokens": 16}


@pytest.fixture(scope="module")
def oracle(tiny, bundled_prompts):
    return generate(tiny, bundled_prompts[:3], method="autoregressive", logprobs=4, **SHAPE).sequences


@pytest.mark.parametrize("method", ["exspec", "rollback", "masked+fifo", "inplace"])
def test_equal_to_the_oracle_in_float32_and_in_its_order(tiny, bundled_prompts, oracle, method):
    result = generate(tiny, bundled_prompts[:3], method=method, batch_size=2, logprobs=4, **SHAPE)
    for found, expected in zip(result.sequences, oracle, strict=True):
        assert [e.token_id for e in found.logprobs] == found.token_ids == expected.token_ids
        for a, b in zip(found.logprobs, expected.logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
            assert [token for token, _ in a.top] == [token for token, _ in b.top]
            # An improbable alternative has a large logarithm, and float32 errs in proportion to it.
            assert [p for _, p in a.top] == pytest.approx([p for _, p in b.top], abs=1e-5, rel=1e-5)


def test_alternatives_are_the_best_in_descending_order(oracle):
    for entry in (entry for sequence in oracle for entry in sequence.logprobs):
        values = [p for _, p in entry.top]
        assert values == sorted(values, reverse=True)
        assert entry.logprob <= values[0] <= 0
        assert dict(entry.top).get(entry.token_id, entry.logprob) == entry.logprob


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_they_belong_to_the_unprocessed_target_whatever_the_temperature(llama, acceptance):
    prompt = [5, 9, 30]
    result = generate(llama, [prompt], acceptance=acceptance, temperature=2.0, top_k=5, max_new_tokens=7, logprobs=61)
    feed, fed = llama.target.fresh_row(), prompt
    for entry in result.sequences[0].logprobs:
        table = feed(fed).log_softmax(dim=-1)
        assert entry.logprob == pytest.approx(float(table[entry.token_id]), abs=1e-9)
        assert math.fsum(math.exp(p) for _, p in entry.top) == pytest.approx(1)
        assert [token for token, _ in entry.top] == torch.argsort(table, descending=True).tolist()
        fed = [entry.token_id]


def test_only_what_was_asked_for(llama):
    assert generate(llama, [[1]], max_new_tokens=2).sequences[0].logprobs == ()
    alone = generate(llama, [[1]], max_new_tokens=2, logprobs=0).sequences[0].logprobs
    assert [len(entry.top) for entry in alone] == [0, 0]
    assert all(entry.logprob < 0 for entry in alone)
