"""Masking is not what breaks BSP: with explicit positions it is exact, without them it depends on the model."""

import random

import pytest

from refimpl.conformance.protocol import EngineSettings
from refimpl.faults.published import UnmaskedEngine, bsp, bsp_as_shipped
from refimpl.generation import generate
from refimpl.pairs.random_pairs import random_pair

SETTINGS = EngineSettings(max_new_tokens=16, batch_size=12, num_speculative_tokens=3)
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(3, 61) for _ in range(n)] for n in (2, 3, 4, 5, 6, 8, 9, 11, 12, 14, 17, 20)]


def num_right(outputs: list[list[int]], kind: str) -> int:
    oracle = generate(random_pair(kind), PROMPTS, method="autoregressive", max_new_tokens=16, stop_token_ids=())
    return sum(found == row.token_ids for found, row in zip(outputs, oracle.sequences, strict=True))


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_masking_is_exact_with_explicit_positions(kind: str) -> None:
    assert num_right(bsp(kind)(PROMPTS, SETTINGS), kind) == 12


def test_as_shipped_is_wrong_on_llama() -> None:
    assert num_right(bsp_as_shipped("llama")(PROMPTS, SETTINGS), "llama") <= 3


def test_as_shipped_is_exact_on_opt_which_sums_the_mask() -> None:
    assert num_right(bsp_as_shipped("opt")(PROMPTS, SETTINGS), "opt") == 12


def test_dsd_is_wrong_for_every_row_and_alone_too() -> None:
    pair = random_pair("llama")
    engine = UnmaskedEngine(pair.target.model, pair.draft.model)
    assert num_right(engine(PROMPTS, SETTINGS), "llama") <= 2
    alone = [engine([prompt], SETTINGS)[0] for prompt in PROMPTS]
    assert num_right(alone, "llama") <= 2  # no pads, but the draft's token at every mismatch
