"""Draft budgets: what each one cuts, that none reads what it cuts, and that no token depends on them."""

from dataclasses import dataclass, replace
from itertools import cycle, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refimpl import InputError, InvariantViolation, generate
from refimpl.core.config import LAYOUTS, SamplingConfig, make_config
from refimpl.core.drafting import DraftingConfig
from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import RULES, Proposal
from refimpl.decoding.drafters import CheckedBudget
from refimpl.decoding.drafters.proposal_tracker import ProposalTracker, survival
from refimpl.drafting.budgets import BUDGETS as ALL_BUDGETS
from refimpl.drafting.budgets import (
    CapacityBudget,
    ConfidenceBudget,
    DraftBudget,
    GoodputBudget,
    LoadBudget,
    make_budget,
)
from refimpl.faults import FAULTS
from refimpl.pairs.random_pairs import random_pair

SETTINGS = {"max_new_tokens": 16, "num_speculative_tokens": 4, "stop_token_ids": ()}
BUDGETS = {
    "fixed": "fixed",
    "by_load": "by_load:2=3,3=1",
    "capacity": "capacity:5",
    "capacity_own_token": "capacity_own_token:5",
    "goodput": "goodput:1=1.3/1.6/1.9,3=1.6/2.2",
    "confidence": "confidence:0.02",
}
ESTIMATES = st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), max_size=4), min_size=1, max_size=4)


@dataclass
class Row:
    draft_limit: int
    num_evaluated: int = 0
    num_accepted: int = 0


# budget: (score, stops, shares, predictable)
FACTS = {
    "fixed": (None, False, False, True),
    "by_load": (None, False, False, True),
    "goodput": (None, False, False, True),
    "capacity": ("expected", False, True, True),
    "capacity_own_token": ("own_token", False, True, False),
    "confidence": ("confidence", True, False, True),
}
# rule: (output kept token for token, numbers of its own for each round)
RULE_FACTS = {
    "greedy": (True, False), "coupled": (True, False), "rejection": (False, False), "block": (False, True),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL_BUDGETS)
def test_what_a_budget_says_of_itself(name):
    budget = make_budget(DraftingConfig(draft_budget=BUDGETS[name]))
    assert (budget.score, budget.stops, budget.shares, budget.predictable) == FACTS[name]


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_says_of_itself(name):
    assert (RULES[name].keeps_tokens, RULES[name].fresh_numbers) == RULE_FACTS[name]


def test_where_nothing_is_decided_every_row_goes_on():
    assert DraftBudget().go_on([0.1, 0.9]) == [True, True]


def test_fewer_drafts_in_a_crowd():
    budget = LoadBudget(((2, 3), (3, 1)))
    assert [budget.before([Row(5)] * rows) for rows in (1, 2, 3)] == [[5], [3, 3], [1, 1, 1]]
    assert budget.before([Row(0), Row(5)]) == [0, 3]


def test_what_is_not_decided_on_does_not_count():
    row = Sequence(0, [1], 99)
    for drafted, accepted, kept in ((4, 2, 3), (4, 4, 5), (4, 0, 1), (0, 0, 1), (4, 3, 2), (4, 2, 2)):
        row.note_drafts(drafted, accepted, kept)
    assert row.num_accepted == 2 + 4 + 0 + 0 + 2 + 2
    assert row.num_evaluated == 3 + 4 + 1 + 0 + 2 + 2  # a rejection counts once; what was cut off does not


def test_goodput_takes_the_number_with_most_tokens_per_second():
    """By hand: rates (30 + 4 · 40/61) / 34 and (9 + 4 · 40/61) / 34, so 2, 3.30 and 4.34 tokens in two rows."""
    rows = [Row(2, 30, 30), Row(2, 30, 9)]
    for seconds, wanted in (((1.7, 2.5), 0), ((1.5, 2.1), 1), ((1.3, 1.5), 2), ((1.3,), 1)):
        assert GoodputBudget(((1, seconds),)).before(rows) == [wanted] * 2, seconds


def test_goodput_looks_up_the_rows_of_the_round():
    budget = GoodputBudget(((4, (9.0,)), (2, (1.1, 9.0))))
    assert [budget.seconds(rows) for rows in (1, 2, 3, 4, 99)] == [[1, 1.1, 9]] * 3 + [[1, 9]] * 2
    assert [budget.before([Row(5)] * rows) for rows in (1, 4)] == [[1], [0] * 4]
    assert budget.before([Row(0), Row(5)]) == [0, 1]
    assert budget.before([Row(0)]) == [0]


@given(rows=st.lists(st.builds(Row, st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=5))
def test_goodput_drafts_nothing_where_drafts_cost_more_than_they_can_bring(rows):
    limits = [row.draft_limit for row in rows]
    assert GoodputBudget(((1, (2.1, 3.1, 4.1, 5.1)),)).before(rows) == [0] * len(rows)
    assert (
        GoodputBudget(((1, (1.0, 1.0, 1.0, 1.0)),)).before(
            [replace(row, num_accepted=row.num_evaluated) for row in rows]
        )
        == limits
    )


def test_what_has_never_been_tried_is_tried():
    budget = GoodputBudget(((1, (1.9,)),))
    assert budget.before([Row(1)] * 3) == [1] * 3
    assert budget.before([Row(1, 1, 0), *[Row(1)] * 2]) == [0] * 3


def test_confidence_compares_with_its_threshold():
    assert ConfidenceBudget(0.4).go_on([0.5, 0.4, 0.3]) == [True, True, False]


def test_a_row_stops_before_the_draft_that_is_not_sure():
    """The first drafts have probabilities 0.9 and 0.3 and the second ones 0.4: the second pass gives nobody a draft."""
    tracker = ProposalTracker(ConfidenceBudget(0.5), SamplingConfig(), [4, 4])
    steps: list[Proposal] = []
    for masses in ((0.9, 0.3), (0.4, 0.4), (0.4, 0.4)):
        q = torch.tensor([[[mass, *[(1 - mass) / 10] * 10]] for mass in masses], dtype=torch.float64)
        if not tracker.note_pass(q.log(), steps):
            break
        steps.append(Proposal(torch.zeros(2, 1, dtype=torch.long)))
    assert tracker.finish(Proposal.join(steps).tokens) == [1, 0]
    assert tracker.passes == 2


@given(estimates=ESTIMATES, capacity=st.integers(0, 12))
def test_capacity_goes_to_the_likeliest_draft_that_is_next_in_its_row(estimates, capacity):
    """Handed out one by one: a draft survives no more often than those before it, and of equals the first in its row
    comes first. The checked budget asks again with redrawn drafts, and raises where an answer changes."""
    lengths = [len(row) for row in estimates]
    wanted = [0] * len(lengths)
    for _ in range(min(capacity, sum(lengths))):
        open_rows = [row for row, length in enumerate(lengths) if wanted[row] < length]
        wanted[max(open_rows, key=lambda row: (min(estimates[row][: wanted[row] + 1]), -wanted[row], -row))] += 1
    assert CheckedBudget(CapacityBudget(capacity)).after(lengths, estimates) == wanted


def test_a_budget_that_reads_what_it_cuts_is_noticed():
    with FAULTS["argmax-budget"].injected(), pytest.raises(InvariantViolation, match="INV-20 in row 0"):
        CheckedBudget(CapacityBudget(9)).after([3], [[0.015, 0.015, 0.015]])


class Remembering(DraftBudget):
    """Lets the drafts of the round before decide on those of the next."""

    last = 3

    def before(self, rows):
        return [min(row.draft_limit, self.last) for row in rows]


def test_a_budget_that_remembers_drafts_is_noticed():
    budget = Remembering()
    checked, rows = CheckedBudget(budget), [Row(5), Row(2)]
    assert checked.before(rows) == [3, 2]
    budget.last = 1
    with pytest.raises(InvariantViolation, match=r"INV-20: .*expected drafts \[3, 2\], from what .* found \[1, 1\]"):
        checked.before(rows)


@pytest.mark.parametrize("score", ["expected", "confidence"])
def test_scores_do_not_read_the_draft_that_they_rank(score):
    generator = torch.Generator().manual_seed(1)
    q = torch.rand(5, 4, 7, generator=generator, dtype=torch.float64).softmax(dim=-1)
    tokens = torch.randint(7, (5, 4), generator=generator)
    wanted = survival(score, q, tokens)
    for depth in range(4):
        redrawn = tokens.clone()
        redrawn[:, depth:] = (tokens[:, depth:] + 3) % 7
        assert torch.equal(survival(score, q, redrawn)[:, : depth + 1], wanted[:, : depth + 1])
        assert not torch.equal(survival("own_token", q, redrawn)[:, depth], survival("own_token", q, tokens)[:, depth])


def test_scores_by_hand():
    q = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]], dtype=torch.float64)
    tokens = torch.tensor([[1, 0]])
    assert survival("expected", q, tokens).tolist() == [[0.625, 0.125]]
    assert survival("own_token", q, tokens).tolist() == [[0.25, 0.125]]
    assert survival("confidence", q, tokens).tolist() == [[0.75, 0.375]]


@pytest.fixture(scope="module")
def small():
    pair, prompts = random_pair("gpt2", draft_noise=0.01, vocab_size=17), [[3], [1, 2, 3], [4, 5], [9, 8, 7, 6], [2]]
    rules = {"greedy": {}, "coupled": {"temperature": 0.5, "seed": 3}}
    plain = {
        name: generate(pair, prompts, method="autoregressive", **SETTINGS, **rule).sequences
        for name, rule in rules.items()
    }
    return pair, prompts, rules, {name: [s.token_ids for s in found] for name, found in plain.items()}


METHODS = [*(f"{layout}+fifo" for layout in LAYOUTS), "exspec", "masked"]
CUTTING = [name for name in BUDGETS if name != "fixed"]


@pytest.mark.parametrize(
    ("method", "budget", "rule"),
    [(*each, rule) for each, rule in zip(product(METHODS, CUTTING), cycle(["greedy", "coupled"]), strict=False)],
)
def test_equal_to_the_oracle(small, method, budget, rule):
    pair, prompts, rules, wanted = small
    given = SETTINGS | rules[rule] | {"draft_budget": BUDGETS[budget]}
    result = generate(pair, prompts, method=method, batch_size=3, window_size=4, **given)
    assert [s.token_ids for s in result.sequences] == wanted[rule]
    full = generate(pair, prompts, method=method, batch_size=3, window_size=4, **SETTINGS, **rules[rule])
    assert 0 < result.stats.acceptance.drafted < full.stats.acceptance.drafted


@pytest.mark.parametrize("drafter", ["ngram", "hybrid"])
def test_budgets_cut_what_is_looked_up(small, drafter):
    pair, prompts, _, wanted = small
    given = SETTINGS | {"drafter": drafter, "draft_budget": "by_load:1=1"}
    result = generate(pair, prompts, method="inplace", batch_size=3, **given)
    assert [s.token_ids for s in result.sequences] == wanted["greedy"]
    assert max(row.drafted for record in result.rounds for row in record.rows) == 1


def test_the_published_score_is_refused_where_it_is_biased(small):
    pair, prompts, _, wanted = small
    own = SETTINGS | {"draft_budget": "capacity_own_token:3", "batch_size": 3}
    assert [s.token_ids for s in generate(pair, prompts, **own).sequences] == wanted["greedy"]
    with pytest.raises(InputError, match="ranks a draft by what was drawn, which changes the law"):
        generate(pair, prompts, temperature=1.0, acceptance="rejection", **own)
    shared = own | {"draft_budget": "capacity:3", "method": "rollback"}
    with pytest.raises(InputError, match="where all rows commit the batch minimum: choose another layout"):
        generate(pair, prompts, temperature=1.0, acceptance="rejection", **shared)


BAD = [
    ({"draft_budget": "by_load:8=3,8=2"}, "numbers of rows of draft_budget must be at least 1, each another"),
    ({"draft_budget": "by_load:0=2"}, "numbers of rows of draft_budget must be at least 1, each another"),
    ({"draft_budget": "by_load:1=65"}, "drafts of draft_budget must be in 0 … 64"),
    ({"draft_budget": "by_load"}, "draft_budget must look like by_load:1=7,4=5,16=2, not 'by_load'"),
    ({"draft_budget": "by_load:3"}, "draft_budget must look like by_load:1=7,4=5,16=2, not 'by_load:3'"),
    ({"draft_budget": "capacity"}, "draft_budget must look like capacity:16, not 'capacity'"),
    ({"draft_budget": "capacity:-1"}, "drafts of draft_budget must be at least 0, not -1"),
    ({"draft_budget": "confidence:1.5"}, "the survival of draft_budget must be in 0 … 1, not 1.5"),
    ({"draft_budget": "goodput"}, "draft_budget must look like goodput:1=1.2/1.4,8=1.3/1.7, not 'goodput'"),
    ({"draft_budget": "goodput:1="}, "draft_budget must look like goodput:1=1.2/1.4,8=1.3/1.7"),
    ({"draft_budget": "goodput:1=0.0"}, "seconds of draft_budget must be finite and above 0"),
    ({"draft_budget": "goodput:1=inf"}, "seconds of draft_budget must be finite and above 0"),
    ({"draft_budget": "fixed:3"}, "draft_budget must look like fixed, not 'fixed:3'"),
    (
        {"draft_budget": "confidence", "drafter": "ngram"},
        "the draft's probabilities, which drafter 'ngram' does not",
    ),
    ({"draft_budget": "confidence", "cuda_graphs": True}, "with draft_budget 'confidence' decides on the host"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        make_config(**settings)
    assert "\n" not in str(caught.value)
