"""Block verification: the target's law, exactly; never fewer drafts than rejection accepts; wrong variants show."""

from fractions import Fraction

import pytest
import torch

from refimpl import InputError, generate
from refimpl.core.config import LAYOUTS
from refimpl.core.request import Request
from refimpl.decoding.acceptance.block import left_weights
from refimpl.decoding.engine import Engine
from refimpl.faults import FAULTS
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.selfcheck.enumeration import (
    BranchingSource,
    engine_law,
    law_config,
    scripts,
    target_law,
    total_variation,
)
from refimpl.selfcheck.fraction_model import FractionModel, fraction_pair
from refimpl.selfcheck.law import variation

BLOCK = {"acceptance": "block"}
TWO = [Request([0], 3, 2), Request([1, 0], 2, 1, stop_token_ids=[1])]
THREE = [Request([0], 1, 1), Request([1, 1], 2, 1), Request([1], 2, 1)]  # one of them waits
DEEP = [Request([2], 3, 2)]  # of three tokens: with two, every residual is one token
FAULTY = [name for name, fault in FAULTS.items() if fault.settings.get("acceptance") == "block"]


def expected_accepted(pair: Pair, rule: str, k: int) -> Fraction:
    """Mean number of accepted drafts of a round, over every branch of it."""
    config, mean = law_config(acceptance=rule), Fraction(0)
    for source in scripts(BranchingSource):
        source.sequences = sequences = prepare(pair, [Request([0], k + 1, k)], config)
        record = Engine(pair, sequences, config, source).run_one_round()
        mean += source.weight * record.rows[0].accepted
    return mean


def test_where_rounding_has_left_nothing_the_target_itself_is_drawn_from():
    left, target = torch.zeros(2, 2, 3), torch.tensor([0.5, 0.25, 0.25]).expand(2, 2, 3)
    left[0, 1] = torch.tensor([0.0, 0.0, 0.2])
    weights = left_weights(left, target, torch.tensor([1, 0]))
    assert torch.equal(weights, torch.stack([left[0, 1], target[1, 0]]))


@pytest.mark.parametrize("method", ["inplace+fifo", "rollback+static"])
def test_joint_law_of_rows_that_draft_different_numbers(method):
    assert variation(fraction_pair(2, seed=6), TWO, law_config(method, **BLOCK)) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["paged+grouped", "rollback+fifo", "masked+static", "realigned+grouped"])
def test_joint_law_when_a_waiting_row_takes_a_free_place(method):
    assert variation(fraction_pair(2, seed=5), THREE, law_config(method, **BLOCK)) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [3, 5, 8])
def test_law_of_three_drafts(seed):
    assert variation(fraction_pair(2, seed), [Request([0], 4, 3)], law_config(**BLOCK)) == 0


@pytest.mark.parametrize("top_k", [0, 2])
def test_law_of_three_tokens(top_k):
    pair, config = fraction_pair(3, seed=3), law_config(**BLOCK, top_k=top_k)
    assert total_variation(engine_law(pair, DEEP, config), target_law(pair, DEEP, top_k=top_k)) == 0


@pytest.mark.parametrize("budget", [{"draft_budget": "capacity:1"},
                                    {"draft_budget": "goodput:1=1.6/2.2"},
                                    {"draft_budget": "confidence:0.6"}])  # fmt: skip
@pytest.mark.parametrize("deeper", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_joint_law_under_predictable_budgets(budget, deeper):
    requests = [Request([0], 3, 2) if deeper else Request([0], 2, 1), Request([1, 0], 2, 1)]
    assert variation(fraction_pair(2, seed=3), requests, law_config(**BLOCK, **budget)) == 0


@pytest.mark.parametrize("fault", FAULTY)
def test_enumeration_detects_a_wrong_block(fault):
    with FAULTS[fault].injected():
        assert variation(fraction_pair(3, seed=8), DEEP, law_config(**BLOCK)) > 0.005


@pytest.mark.parametrize(("k", "pairs"), [(1, 4), (2, 6), pytest.param(3, 12, marks=pytest.mark.nightly)])
def test_never_fewer_drafts_than_rejection(k, pairs):
    gains = []
    for seed in range(pairs):
        pair = fraction_pair(2, seed)
        gains.append(expected_accepted(pair, "block", k) - expected_accepted(pair, "rejection", k))
    assert min(gains) >= 0
    assert (max(gains) > 0) == (k > 1)


def test_the_published_example():
    """Two independent drafts from (2/3, 1/3) for a target of (1/3, 2/3)."""
    third = Fraction(1, 3)
    laws = [third, 2 * third], [2 * third, third]
    contexts = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    target, draft = (FractionModel(dict.fromkeys(contexts, law)) for law in laws)
    pair = Pair(target, draft, vocab_size=2, name="example")
    assert expected_accepted(pair, "rejection", 2) == Fraction(10, 9)
    assert expected_accepted(pair, "block", 2) == Fraction(11, 9)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "rollback"])
def test_tokens_do_not_depend_on_the_batch(llama, layout):
    settings = {"acceptance": "block", "temperature": 1.0, "seed": 2, "max_new_tokens": 12, "stop_token_ids": ()}
    prompts = [[1, 2], [3], [5, 4, 3, 2, 1], [9, 9]]
    alone = generate(llama, prompts, method="speculative", **settings)
    together = generate(llama, prompts, method=f"{layout}+fifo", batch_size=3, **settings)
    assert [s.token_ids for s in together.sequences] == [s.token_ids for s in alone.sequences]


def test_what_would_change_the_law_is_refused(llama):
    own = {"draft_budget": "capacity_own_token:3"}
    with pytest.raises(InputError, match="which changes the law under acceptance 'block'"):
        generate(llama, [[1]], temperature=1.0, **BLOCK, **own)
    shared = {"draft_budget": "capacity:3", "method": "rollback"}
    with pytest.raises(InputError, match="changes the law of acceptance 'block' where all rows commit the batch minim"):
        generate(llama, [[1]], temperature=1.0, **BLOCK, **shared)
