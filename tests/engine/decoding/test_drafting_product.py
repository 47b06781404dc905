"""Every drafter with every draft budget that it can have: 64 bundled prompts, equal to the oracle."""

import pytest

from refimpl import generate
from refimpl.core.drafting import DRAFT_BUDGETS, DRAFTERS
from refimpl.judging.equivalence import compare
from refimpl.pairs import load_pair
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts

BUDGETS = {
    "fixed": "fixed",
    "by_load": "by_load:2=3,6=1",
    "capacity": "capacity:9",
    "capacity_own_token": "capacity_own_token:9",
    "goodput": "goodput:1=1.2/1.4/1.7/2.1,6=1.3/1.8",
    "confidence": "confidence:0.3",
}
RULES = {"greedy": {}, "coupled": {"temperature": 0.8, "seed": 5}}
METHODS = ("inplace", "paged+continuous")
SETTINGS = {"max_new_tokens": 12, "num_speculative_tokens": 4, "max_prompt_tokens": 64}
PRODUCT = [
    (drafter, budget)
    for drafter, facts in DRAFTERS.items()
    for budget in DRAFT_BUDGETS
    if facts.has_probabilities or not DRAFT_BUDGETS[budget].reads_probabilities
]


@pytest.fixture(scope="module")
def oracle():
    """The bundled pair, 64 prompts, and what ordinary decoding makes of them under each rule."""
    pair, prompts = load_pair("tiny"), read_prompts(TINY / "prompts.jsonl")[:64]
    runs = {name: generate(pair, prompts, method="autoregressive", **SETTINGS, **rule) for name, rule in RULES.items()}
    return pair, prompts, {name: [s.token_ids for s in run.sequences] for name, run in runs.items()}


def test_the_product_has_every_budget():
    assert set(BUDGETS) == set(DRAFT_BUDGETS)
    by_probabilities = sum(facts.reads_probabilities for facts in DRAFT_BUDGETS.values())
    without = sum(not facts.has_probabilities for facts in DRAFTERS.values())
    assert len(PRODUCT) == len(DRAFTERS) * len(BUDGETS) - without * by_probabilities


@pytest.mark.nightly
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("drafter", "budget"), PRODUCT)
def test_equal_to_the_oracle(oracle, drafter, budget, rule):
    pair, prompts, wanted = oracle
    drafting = {"drafter": drafter, "draft_budget": BUDGETS[budget]}
    for method in METHODS:
        found = generate(pair, prompts, method=method, batch_size=8, **SETTINGS, **RULES[rule], **drafting)
        comparison = compare(wanted[rule], [s.token_ids for s in found.sequences])
        assert (comparison.exact, comparison.prompts) == (64, 64)
        assert found.stats.acceptance.drafted > 0
