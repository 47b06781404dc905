"""Coupled sampling equals autoregressive sampling with the same seed, token for token."""

import random

import pytest

from refimpl import generate
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.pairs import random_pair

METHODS = [f"{layout}+{scheduler}" for layout in LAYOUTS for scheduler in SCHEDULERS]
SETTINGS = [
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 5},
]
_rng = random.Random(3)
PROMPTS = [[_rng.randrange(61) for _ in range(n)] for n in (1, 4, 4, 9, 2, 6)]
LIMITS = {"max_new_tokens": 10, "stop_token_ids": [2], "checks": "host"}


def tokens(pair, method, prompts=PROMPTS, **settings):
    return [s.token_ids for s in generate(pair, prompts, method=method, **LIMITS, **settings).sequences]


@pytest.fixture(scope="module")
def oracle(llama):
    """Outputs of the oracle by setting, each decoded once."""
    return [tokens(llama, "autoregressive", **setting) for setting in SETTINGS]


@pytest.mark.parametrize("method", METHODS)
def test_every_layout_and_scheduler_equals_the_oracle(llama, oracle, method):
    assert tokens(llama, method, batch_size=3, acceptance="coupled", **SETTINGS[1]) == oracle[1]


@pytest.mark.parametrize("method", ["eqspec", "exspec", "masked", "rollback", "inplace"])
@pytest.mark.parametrize("at", [0, 2, 3, 4])
def test_named_methods_equal_the_oracle_under_every_filter(llama, oracle, method, at):
    assert tokens(llama, method, batch_size=4, **SETTINGS[at]) == oracle[at]  # coupled is the default


def test_the_setting_is_not_trivial(oracle):
    """Sampling, not greedy: the settings give different texts, and neighbouring prompts too."""
    assert len({str(outputs) for outputs in oracle}) == len(SETTINGS)
    assert len({str(output) for output in oracle[1]}) == len(PROMPTS)


@pytest.mark.parametrize("draft_noise", [0.0, 5.0])
def test_the_draft_never_changes_the_output(oracle, draft_noise):
    """Drafter-invariance: a perfect and a useless draft of the same target."""
    pair = random_pair("llama", draft_noise=draft_noise)
    assert tokens(pair, "exspec", batch_size=3, **SETTINGS[1]) == oracle[1]


@pytest.mark.parametrize(
    ("temperature", "methods"), [(0.7, ["exspec", "inplace"]), (1.0, ["eqspec", "masked", "rollback"])]
)
def test_the_bundled_pair_equals_its_oracle_in_float32(tiny, bundled_prompts, temperature, methods):
    settings = {"temperature": temperature, "top_p": 0.95, "max_prompt_tokens": 16}
    expected = tokens(tiny, "autoregressive", bundled_prompts[:2], **settings)
    for method in methods:
        assert tokens(tiny, method, bundled_prompts[:2], batch_size=2, **settings) == expected
