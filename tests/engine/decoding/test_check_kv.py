"""INV-4 in numbers: a rounding is no stale row, one token's K/V in another's place is."""

from types import SimpleNamespace

import pytest

from refimpl.core.invariants import InvariantViolation
from refimpl.decoding.invariants import check_kv
from refimpl.pairs.random_pairs import random_pair

TOKENS = [7, 3, 11, 5, 9, 2]


@pytest.fixture(scope="module")
def model():
    return random_pair("llama").target


@pytest.mark.parametrize(("error", "stale"), [(0.0, False), (1e-11, False), (1e-8, True)])
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
