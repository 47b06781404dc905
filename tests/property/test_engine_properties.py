"""The engine on the integer model: every property, for cases that Hypothesis draws."""

import pytest
from hypothesis import given, settings

from refimpl.conformance import properties
from refimpl.conformance.cases import Case
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
