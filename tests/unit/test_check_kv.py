"""INV-4 in numbers: a rounding is no stale row, one token's K/V in another's place is."""

from types import SimpleNamespace

import pytest
import torch

from refimpl.core.errors import InvariantViolation
from refimpl.decoding.invariants import check_kv
from refimpl.pairs.random_pairs import random_pair

TOKENS = [7, 3, 11, 5, 9, 2]


@pytest.fixture(scope="module")
def model():
    return random_pair("llama").target


def test_a_norm_of_a_float64_model_rounds_to_float32(model):
    """So passes of other shapes, a last bit apart, may differ by a rounding of float32."""
    norm = model.model.model.layers[0].input_layernorm
    low = torch.full((norm.weight.numel(),), 1.0, dtype=torch.float64)
    low[0] = 1 + 2.0**-24  # half-way between two numbers of float32
    high = low.clone()
    high[0] += 2.0**-52
    apart = (norm(high) - norm(low)).abs().max()
    assert 1e-9 < apart < 1e-6


@pytest.mark.parametrize(("error", "stale"), [(0.0, False), (2e-7, False), (1e-4, True)])
def test_a_rounding_is_no_stale_row(model, error, stale):
    row = SimpleNamespace(index=3, token_ids=TOKENS)
    found = model.fresh_kv(TOKENS)
    found = found + error * found.abs().max()
    if not stale:
        check_kv(row, found, model)
        return
    with pytest.raises(InvariantViolation, match="INV-4") as caught:
        check_kv(row, found, model)
    assert "row 3" in str(caught.value)


def test_one_wrong_token_is_stale(model):
    wrong = model.fresh_kv([*TOKENS[:-1], TOKENS[-1] + 1])
    with pytest.raises(InvariantViolation, match="INV-4"):
        check_kv(SimpleNamespace(index=0, token_ids=TOKENS), wrong, model)
