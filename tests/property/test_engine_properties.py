"""The engine on the integer model: every property, for cases that Hypothesis draws."""

import pytest
from hypothesis import given, settings

from refimpl.config import LAYOUTS
from refimpl.conformance import properties
from refimpl.conformance.cases import Case, Row
from refimpl.conformance.strategies import cases

SLOW = {"schedule_does_not_matter": 6}  # runs a case in all combinations of layout and scheduler


@pytest.mark.parametrize("name", [name for name in properties.PROPERTIES if name not in SLOW])
def test_property_holds(name: str) -> None:
    @given(case=cases())
    def holds(case: Case) -> None:
        properties.PROPERTIES[name](case)

    holds()


@settings(max_examples=max(6, settings().max_examples // 4))
@given(case=cases(max_prompts=4))
def test_schedule_does_not_matter(case: Case) -> None:
    properties.schedule_does_not_matter(case)


@given(case=cases(sampled=True))
def test_sampled_output_equals_the_oracles_sample(case: Case) -> None:
    properties.output_equals_oracle(case)
    properties.order_does_not_matter(case)


@given(case=cases(cancellations=True))
def test_cancellation_changes_no_other_row(case: Case) -> None:
    properties.output_equals_oracle(case, checks="oracle")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("agreements", [(), (False,) * 90, (True, False) * 45], ids=["all", "none", "alternating"])
def test_long_rows_outgrow_the_columns_kept_free(layout: str, agreements: tuple[bool, ...]) -> None:
    rows = (Row((3, 1), 90, 4, None, agreements), Row((5, 2, 2), 90, 4, None, agreements))
    properties.output_equals_oracle(Case(rows, layout, "static", compaction_threshold=1.0), checks="device")
