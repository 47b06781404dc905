"""Coupled sampling equals autoregressive sampling with the same seed, token for token.

Under every layout and scheduler: the golden runs. Under every filter: `test_mixed_requests.py`.
"""

import random

import pytest

from refimpl import generate
from refimpl.pairs import random_pair

_rng = random.Random(3)
PROMPTS = [[_rng.randrange(61) for _ in range(n)] for n in (1, 4, 4, 9, 2, 6)]
LIMITS = {"max_new_tokens": 10, "stop_token_ids": [2], "checks": "host"}


def tokens(pair, method, prompts=PROMPTS, **settings):
    return [s.token_ids for s in generate(pair, prompts, method=method, **LIMITS, **settings).sequences]


@pytest.mark.parametrize("draft_noise", [0.0, 5.0])
def test_the_draft_never_changes_the_output(llama, draft_noise):
    """Drafter-invariance: a perfect and a useless draft of the same target."""
    sampling = {"temperature": 1.0, "top_p": 0.95}
    found = tokens(random_pair("llama", draft_noise=draft_noise), "exspec", batch_size=3, **sampling)
    assert found == tokens(llama, "autoregressive", **sampling)
    assert len(set(map(str, found))) == len(PROMPTS)


@pytest.mark.parametrize(
    ("temperature", "methods"), [(0.7, ["exspec", "inplace"]), (1.0, ["eqspec", "masked", "rollback"])]
)
def test_the_bundled_pair_equals_its_oracle_in_float32(tiny, bundled_prompts, temperature, methods):
    settings = {"temperature": temperature, "top_p": 0.95, "max_prompt_tokens": 16}
    expected = tokens(tiny, "autoregressive", bundled_prompts[:2], **settings)
    for method in methods:
        assert tokens(tiny, method, bundled_prompts[:2], batch_size=2, **settings) == expected
