"""Every layout × scheduler gives the oracle's tokens, for six architectures and good, bad and adversarial drafts."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from refimpl import generate
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair
from tests.outputs import tokens

PAIRS = [f"{layout}+{scheduler}" for layout, scheduler in itertools.product(LAYOUTS, SCHEDULERS)]
DRAFTS = {"perfect": 0.0, "good": 0.01, "adversarial": 2.0}
SETTINGS = {"max_new_tokens": 14, "num_speculative_tokens": 4, "stop_token_ids": [5]}


@pytest.fixture(scope="module")
def runs():
    """Pairs and their oracle outputs, made once."""
    cache = {}

    def get(kind, draft, prompts):
        if (kind, draft) not in cache:
            pair = random_pair(kind, draft_noise=DRAFTS[draft])
            cache[kind, draft] = pair, tokens(generate(pair, prompts, method="autoregressive", **SETTINGS))
        return cache[kind, draft]

    return get


@pytest.mark.parametrize("method", PAIRS)
@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_equal_to_the_oracle(runs, ragged_prompts, kind, method):
    pair, expected = runs(kind, "good", ragged_prompts)
    assert tokens(generate(pair, ragged_prompts, method=method, batch_size=3, **SETTINGS)) == expected


TURNS = itertools.cycle(["perfect", "adversarial", "perfect"])  # three in turn: each of four schedulers meets both


@pytest.mark.parametrize(("method", "draft"), [*zip(PAIRS, TURNS, strict=False)])
def test_equal_whatever_the_draft(runs, ragged_prompts, draft, method):
    pair, expected = runs("llama", draft, ragged_prompts)
    assert tokens(generate(pair, ragged_prompts, method=method, batch_size=4, **SETTINGS)) == expected


@pytest.mark.parametrize("method", ["eqspec", "exspec", "masked", "inplace", "rollback"])
def test_kv_equal_to_a_fresh_forward_pass(runs, ragged_prompts, method):
    pair, expected = runs("gpt2", "good", ragged_prompts)
    result = generate(pair, ragged_prompts, method=method, batch_size=4, checks="oracle", **SETTINGS)
    assert tokens(result) == expected


@pytest.mark.parametrize("methods", [("inplace", "inplace"), ("eqspec", "masked")])
def test_threads_may_share_a_pair(llama, ragged_prompts, methods):
    expected = tokens(generate(llama, ragged_prompts, method="autoregressive", **SETTINGS))
    with ThreadPoolExecutor(4) as threads:
        runs = [
            threads.submit(generate, llama, ragged_prompts, method=method, batch_size=size, **SETTINGS)
            for method, size in zip(methods * 2, (2, 3, 4, 5), strict=True)
        ]
    assert [tokens(run.result()) for run in runs] == [expected] * 4


def test_lazy_compaction_happens_and_keeps_the_output(llama, ragged_prompts):
    settings = SETTINGS | {"max_new_tokens": 60, "stop_token_ids": []}
    expected = tokens(generate(llama, ragged_prompts[:3], method="autoregressive", **settings))
    results = {
        threshold: generate(llama, ragged_prompts[:3], method="masked", compaction_threshold=threshold, **settings)
        for threshold in (0.02, 0.25, 1.0)
    }
    assert all(tokens(result) == expected for result in results.values())
    assert results[0.02].stats.num_moves > results[0.25].stats.num_moves >= results[1.0].stats.num_moves


def test_no_row_throttles_another(ragged_prompts):
    pair = random_pair("llama", draft_noise=0.0)
    from refimpl import Request

    prompts = [Request(ragged_prompts[5], max_new_tokens=2), Request(ragged_prompts[6], max_new_tokens=24)]
    result = generate(pair, prompts, method="inplace", num_speculative_tokens=5, stop_token_ids=[])
    assert result.sequences[1].stats.row_rounds == 24 // 6
