"""A failing case can be read: the story names rows, rounds and the first different token."""

from unittest.mock import patch

import pytest

from refimpl.core import kernels
from refimpl.core.tokens import first_difference
from refimpl.selfcheck.cases import Case, Row
from refimpl.selfcheck.properties import PropertyFailure, output_equals_oracle

CASE = Case((Row((5, 6), 4, 2, None, (False, True)), Row((7,), 4, 2)), "masked", "grouped")


def test_a_failure_is_told_round_by_round() -> None:
    with (
        patch.object(kernels, "num_accepted", lambda matches, limit: limit),
        pytest.raises(PropertyFailure) as failure,
    ):
        output_equals_oracle(CASE)
    told = failure.value.story.splitlines()
    assert told[0] == "masked × grouped, batch 2, window 4, greedy"
    assert told[1].startswith("row 0: prompt [5, 6], budget 4, k 2, draft -+")
    assert any(line.startswith("round 0 (") for line in told)
    assert any("different from token" in line for line in told)


@pytest.mark.parametrize(
    ("found", "wanted", "at"), [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([], [], None)]
)
def test_first_difference(found: list[int], wanted: list[int], at: int | None) -> None:
    assert first_difference(found, wanted) == at
