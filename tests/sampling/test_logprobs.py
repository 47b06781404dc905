"""Log-probabilities are the target's own, as an autoregressive run reports them."""

import math

import pytest
import torch

from refimpl import Request, generate
from refimpl.pairs import load_pair
from refimpl.pairs.random_pairs import random_pair

SHAPE = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 8, "max_prompt_tokens": 16}


METHODS = ["exspec", "rollback", "masked+fifo", "inplace"]
KINDS = ["llama", "qwen3", "opt", "gpt2"]


def decode(pair, prompts, method, logprobs=4):
    return generate(pair, prompts, method=method, batch_size=2, logprobs=logprobs, **SHAPE).sequences


def require_the_oracles_tokens_in_its_order(found, oracle):
    for mine, expected in zip(found, oracle, strict=True):
        assert [e.token_id for e in mine.logprobs] == mine.token_ids == expected.token_ids
        for a, b in zip(mine.logprobs, expected.logprobs, strict=True):
            assert [token for token, _ in a.top] == [token for token, _ in b.top]


def emitted_and_alternatives(sequences):
    entries = [entry for sequence in sequences for entry in sequence.logprobs]
    return [e.logprob for e in entries], [p for e in entries for _, p in e.top]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_them_equal_the_oracles_in_float32(kind, method):
    """The whole vocabulary as alternatives, down to a probability of 1e-3."""
    pair = random_pair(kind, dtype=torch.float32)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3]]
    found, wanted = decode(pair, prompts, method, 61), decode(pair, prompts, "autoregressive", 61)
    require_the_oracles_tokens_in_its_order(found, wanted)
    for mine, expected in zip(emitted_and_alternatives(found), emitted_and_alternatives(wanted), strict=True):
        assert mine == pytest.approx(expected, abs=1e-5, rel=0)


@pytest.mark.parametrize("method", METHODS)
def test_the_bundled_pairs_equal_the_oracles_in_float64(tiny_in_double, bundled_prompts, method):
    pair, oracle = tiny_in_double
    found = decode(pair, bundled_prompts[:3], method)
    require_the_oracles_tokens_in_its_order(found, oracle)
    for mine, expected in zip(emitted_and_alternatives(found), emitted_and_alternatives(oracle), strict=True):
        assert mine == pytest.approx(expected, abs=1e-12, rel=0)


@pytest.fixture(scope="module")
def tiny_in_double(bundled_prompts):
    pair = load_pair("tiny", dtype="float64")
    return pair, decode(pair, bundled_prompts[:3], "autoregressive")


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


@pytest.mark.parametrize("method", ["inplace+static", "eqspec", "rollback", "masked"])
def test_they_stay_with_their_rows_beside_rows_that_have_finished(llama, method):
    """A static batch carries the first and the third row to its end."""
    budgets = (2, 12, 4, 9)
    requests = [Request([3 + i, 1], max_new_tokens=n, stop_token_ids=[]) for i, n in enumerate(budgets)]
    wanted = generate(llama, requests, method="autoregressive", logprobs=3).sequences
    found = generate(llama, requests, method=method, batch_size=4, logprobs=3).sequences
    require_the_oracles_tokens_in_its_order(found, wanted)
    for mine, expected in zip(emitted_and_alternatives(found), emitted_and_alternatives(wanted), strict=True):
        assert mine == pytest.approx(expected, abs=1e-9, rel=0)
