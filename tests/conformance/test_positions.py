"""A constant shift of all positions: seen with learned positions, hidden by rotary embeddings."""

from dataclasses import replace
from typing import Any

import pytest

from refimpl.conformance.adapters import MethodEngine
from refimpl.conformance.kit import check_engine
from refimpl.faults import FAULTS
from refimpl.faults.engine import FaultyEngine
from refimpl.layouts import base as layouts_base
from refimpl.layouts.packed import PackedBlock
from refimpl.models.adapter import HuggingFaceLM
from refimpl.pairs.random_pairs import LEARNED_POSITIONS, TINY_ARCHITECTURES, random_pair
from refimpl.selfcheck.cases import Case, Row
from refimpl.selfcheck.pair_cases import PairCase
from refimpl.selfcheck.properties import failure_of
from refimpl.selfcheck.strategies import KINDS

OFF_BY_ONE = FAULTS["positions-off-by-one"]


def shifted(original: Any) -> Any:
    """Every position of every pass is one too large; plain decoding does not come here."""
    return lambda self, block, num_logits: original(
        self, replace(block, position_ids=block.position_ids + 1), num_logits
    )


def shifted_prompt(tokens: Any, positions: Any, *rest: Any, **more: Any) -> PackedBlock:
    """The same of a packed prefill."""
    return PackedBlock(tokens, positions + 1, *rest, **more)


def shifted_rows(block: Any, counts: Any, original: Any = PackedBlock.of_rows) -> PackedBlock:
    """The same of packed rows that decode."""
    packed = original(block, counts)
    return replace(packed, position_ids=packed.position_ids + 1)


PROMPTS_TOO = ((layouts_base, "PackedBlock", shifted_prompt), (PackedBlock, "of_rows", staticmethod(shifted_rows)))
SHIFT = replace(OFF_BY_ONE, owner=HuggingFaceLM, attribute="forward", make=shifted, conditions=PROMPTS_TOO)


def status(engine: Any) -> str:
    return check_engine(engine, max_examples=3, properties=["equals_reference"], shrink=False).verdicts[0].status


@pytest.mark.parametrize("fault", [OFF_BY_ONE, SHIFT], ids=["of the zoo", "of every pass"])
@pytest.mark.parametrize("kind", LEARNED_POSITIONS)
def test_outputs_alone_show_a_shift_of_learned_positions(kind: str, fault: Any) -> None:
    assert status(FaultyEngine(fault, checks="off", pair=random_pair(kind))) == "fail"


def test_rotary_embeddings_hide_a_shift_of_every_pass() -> None:
    assert status(FaultyEngine(SHIFT, checks="off", pair=random_pair("llama"))) == "pass"


def test_a_right_engine_passes_with_learned_positions() -> None:
    assert status(MethodEngine("inplace", random_pair(LEARNED_POSITIONS[0]), checks="device")) == "pass"


@pytest.mark.parametrize("kind", KINDS)
def test_cases_on_pairs_see_a_shift_where_positions_are_learned(kind: str) -> None:
    drawn = PairCase(kind, 0, 0.02, 61, Case((Row((5, 6), 9, 3, None, None),)))
    assert drawn.pair.target  # built before the fault, which far positions of the checks would show
    with SHIFT.injected():
        assert (failure_of(drawn.check, "off") is not None) == (kind in LEARNED_POSITIONS)


def test_searches_begin_with_learned_positions() -> None:
    assert KINDS[: len(LEARNED_POSITIONS)] == LEARNED_POSITIONS
    assert set(KINDS) == set(TINY_ARCHITECTURES)
