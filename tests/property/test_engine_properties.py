"""The engine on the integer model: every property, for cases that Hypothesis draws."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.invariants import InvariantViolation
from refimpl.faults import FAULTS, Fault
from refimpl.faults.detection import example
from refimpl.layouts.store import Block
from refimpl.models.table_model import MAX_POSITIONS, VOCAB_SIZE
from refimpl.selfcheck import properties
from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case
from refimpl.selfcheck.properties import PropertyFailure, failure_of
from refimpl.selfcheck.strategies import OWN_GRAMMAR, OWN_SETTINGS, cases

SLOW = {"schedule_does_not_matter": 6}  # runs a case in all combinations of layout and scheduler


@pytest.mark.parametrize("name", [name for name in properties.PROPERTIES if name not in SLOW])
def test_property_holds(name: str) -> None:
    @given(case=cases(recurrent=True))
    def holds(case: Case) -> None:
        failure = failure_of(properties.PROPERTIES[name], case)
        assert failure is None, failure

    holds()


@settings(max_examples=max(6, settings().max_examples // 4))
@given(case=cases(recurrent=True, max_prompts=4))
def test_schedule_does_not_matter(case: Case) -> None:
    failure = failure_of(properties.schedule_does_not_matter, case)
    assert failure is None, failure


@given(case=cases(sampled=True))
def test_sampled_output_equals_the_oracles_sample(case: Case) -> None:
    for check in (properties.output_equals_oracle, properties.order_does_not_matter):
        failure = failure_of(check, case)
        assert failure is None, failure


@pytest.mark.parametrize("own", [OWN_SETTINGS, OWN_GRAMMAR], ids=["processors", "grammars"])
@given(data=st.data())
def test_rows_with_settings_of_their_own_equal_the_oracles_sample(own: dict, data: st.DataObject) -> None:
    case = data.draw(cases(sampled=True, own=own))
    for check in (properties.output_equals_oracle, properties.order_does_not_matter):
        failure = failure_of(check, case, **{"checks": "device"} if check is properties.output_equals_oracle else {})
        assert failure is None, failure


@given(case=cases())
def test_passes_of_one_shape_change_no_token(case: Case) -> None:
    case = replace(case, layout="inplace")
    assert run_case(case, checks="device", shape_stable=True).outputs == oracle_outputs(case)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_passes_of_one_shape_have_one_shape(scheduler: str) -> None:
    rows = [Row((3, 1) * (i + 1), 4 + i, 3, None, (False, True) * 4) for i in range(5)]
    case = Case(tuple(rows), "inplace", scheduler, batch_size=2, window_size=4)
    pair, shapes = case.pair, set()
    forward = pair.target.forward

    def watched(block: Block, num_logits: int) -> Tensor:
        if num_logits > 1:  # a verification, not a prefill
            shapes.add((*block.tokens.shape, block.mask.shape[-1]))
        return forward(block, num_logits)

    with patch.object(pair.target, "forward", watched):
        run = run_case(case, pair=pair, shape_stable=True)
    assert run.outputs == oracle_outputs(case)
    assert len(shapes) == 1
    assert next(iter(shapes))[:2] == (2, 4)


@given(case=cases(recurrent=True, cancellations=True))
def test_cancellation_changes_no_other_row(case: Case) -> None:
    failure = failure_of(properties.output_equals_oracle, case, checks="oracle")
    assert failure is None, failure


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("agreements", [(), (False,) * 90, (True, False) * 45], ids=["all", "none", "alternating"])
def test_long_rows_outgrow_the_columns_kept_free(layout: str, agreements: tuple[bool, ...]) -> None:
    rows = (Row((3, 1), 90, 4, None, agreements), Row((5, 2, 2), 90, 4, None, agreements))
    case = Case(rows, layout, "static", compaction_threshold=1.0)
    assert run_case(case, checks="device").outputs == oracle_outputs(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("agreements", [(), (False,) * 3], ids=["all", "few first"])
def test_a_round_may_be_longer_than_the_columns_kept_free(layout: str, agreements: tuple[bool, ...]) -> None:
    rows = (Row((3, 1), 70, 60, None, agreements), Row((5,), 70, 60, None, agreements))
    for threshold in (0.01, 1.0):
        case = Case(rows, layout, "static", compaction_threshold=threshold)
        assert run_case(case, checks="device").outputs == oracle_outputs(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("checks", ["off", "device"])
def test_rows_may_fill_the_models_context(layout: str, checks: str) -> None:
    """In its last rounds the long row has fewer drafts left than its neighbour, and no positions for the others."""
    prompt = tuple(token % VOCAB_SIZE for token in range(3, MAX_POSITIONS - 6 + 3))
    rows = (Row(prompt, 6, 5, None, (False,) * 6), Row((5, 2), 30, 5, None, (True, True, False) * 10))
    case = Case(rows, layout, "static")
    assert run_case(case, checks=checks).outputs == oracle_outputs(case)


CAN_FAIL = {  # property → a fault that must break it
    "output_equals_oracle": "dsd-next-token-from-draft",
    "schedule_does_not_matter": "mask-one-too-wide",
    "order_does_not_matter": "outputs-in-sorted-order",
    "invariants_hold": "draft-cache-not-rolled-back",
    "acceptance_follows_script": "one-accepted-too-many",
    "statistics_add_up": "statistics-count-the-cut",
    "stop_and_budget_are_exact": "budget-one-too-small",
}


def break_property(name: str, fault: Fault) -> None:
    with fault.injected():
        for number in range(1, 40):
            properties.PROPERTIES[name](example(fault, number))


@pytest.mark.parametrize("name", properties.PROPERTIES)
def test_property_can_fail(name: str) -> None:
    with pytest.raises((PropertyFailure, InvariantViolation)):
        break_property(name, FAULTS[CAN_FAIL[name]])
