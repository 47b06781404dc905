"""The bundled pair on real prompts: every method equals the oracle in float32.

Set SPEC_BENCH to the path of Spec-Bench's question.jsonl to use 24 of its prompts instead of bundled ones.
"""

import os
import random
from pathlib import Path

import pytest

from refimpl import verify
from refimpl.core.config import NAMED_METHODS
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts

SETTINGS = {"max_new_tokens": 16, "max_prompt_tokens": 64, "checks": "host"}


@pytest.fixture(scope="module")
def prompts(bundled_prompts):
    """24 prompts in an order that mixes lengths and categories."""
    chosen = read_prompts(os.environ["SPEC_BENCH"]) if "SPEC_BENCH" in os.environ else bundled_prompts
    return random.Random(0).sample(chosen, 24)


def test_every_method_equals_the_oracle(tiny, prompts):
    report = verify(tiny, prompts, batch_sizes=(8,), **SETTINGS)
    assert [(r.method, r.comparison.exact, r.violations) for r in report.results] == [
        (r.method, 24, ()) for r in report.results
    ]
    assert {r.method for r in report.results} == set(NAMED_METHODS) - {"autoregressive"}


def test_speculation_pays_and_is_ragged(tiny, prompts):
    report = verify(tiny, prompts[:8], methods="inplace", batch_sizes=(8,), **SETTINGS | {"max_new_tokens": 24})
    stats = report.results[0].stats.acceptance
    assert stats.mean_acceptance_length > 1.5
    assert all(count > 0 for count in stats.histogram)


def test_size_and_number_of_prompts(bundled_prompts, tiny):
    assert sum(f.stat().st_size for f in Path(TINY).rglob("*") if f.is_file()) < 30e6
    lengths = [len(tiny.tokenizer(p)["input_ids"]) for p in bundled_prompts]
    assert len(lengths) >= 64
    assert 5 <= min(lengths) < 20
    assert 200 < max(lengths) <= 300
