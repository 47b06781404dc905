"""The engine on tiny random Hugging Face pairs: any architecture, layout, schedule and acceptance, in float64."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings

from refimpl.core import kernels
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES
from refimpl.selfcheck.cases import Case, Row
from refimpl.selfcheck.pair_cases import PairCase
from refimpl.selfcheck.properties import PropertyFailure, failure_of
from refimpl.selfcheck.strategies import pair_cases

FEWER = max(10, settings().max_examples // 4)  # a case costs a hundred times one of the table model's
CASE = Case((Row((5, 6), 9, 3, None, None), Row((7,), 7, 2, 3, None)), "masked", "fifo")


@settings(max_examples=settings().max_examples if FEWER == 10 else FEWER)
@given(drawn=pair_cases())
def test_output_equals_the_oracles(drawn: PairCase) -> None:
    failure = failure_of(drawn.check)
    assert failure is None, failure


@settings(max_examples=FEWER)
@given(drawn=pair_cases(sampled=True))
def test_sampled_output_equals_the_oracles_sample(drawn: PairCase) -> None:
    failure = failure_of(drawn.check)
    assert failure is None, failure


@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_a_stop_token_is_one_that_the_target_generates(kind: str) -> None:
    drawn = PairCase(kind, 0, 0.02, 61, CASE)
    first, second = drawn.resolved.rows
    assert first.stop_token_ids == ()
    assert len(second.stop_token_ids) == 1
    assert failure_of(drawn.check, "oracle") is None


@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_a_wrong_engine_is_told_with_its_pair(kind: str) -> None:
    drawn = PairCase(kind, 1, 0.5, 53, replace(CASE, layout="inplace"))
    with (
        patch.object(kernels, "num_accepted", lambda matches, limit: limit),
        pytest.raises(PropertyFailure) as failure,
    ):
        drawn.check("off")
    told = failure.value.story.splitlines()
    assert told[0] == f"{kind} of 53 tokens, seed 1, draft noise 0.5"
    assert told[2] == "row 0: prompt [5, 6], budget 9, k 3, draft without script"
    assert any("different from token" in line for line in told)
