"""Broken models, and what is drawn from what: one clear line for each error."""

import math

import pytest
import torch

from refimpl import InputError, InvariantViolation, SamplingConfig, generate
from refimpl.decoding.acceptance import CoupledRule, GreedyRule, Proposal, RejectionRule, RowNumbers
from refimpl.decoding.acceptance.rejection import next_weights
from refimpl.decoding.sampling import RowKeys
from refimpl.pairs.random_pairs import random_pair

KEYS = RowKeys(torch.tensor([0, 0]), torch.tensor([0, 1]))
POSITION = torch.tensor([[4, 5], [4, 5]])
LIMITS = torch.tensor([1, 1])
NUMBERS = RowNumbers(KEYS, POSITION, LIMITS)
SAMPLING = SamplingConfig(temperature=1.0)
UNIFORM = torch.zeros(2, 2, 3)
ROWS = [3, 7]  # of the results


def test_a_draft_without_mass_where_it_drew():
    mass = torch.tensor([[[1.0, 0, 0]], [[0.5, 0.5, 0]]]).double()
    proposal = Proposal(torch.tensor([[0], [2]]), mass)
    message = "INV-12 in row 7: .*expected the draft to put mass on the token it drew, found 0 on token 2"
    with pytest.raises(InvariantViolation, match=message):
        RejectionRule(SAMPLING).decide(proposal, UNIFORM, NUMBERS).require_mass(ROWS)
    unused = RowNumbers(KEYS, POSITION, LIMITS * torch.tensor([1, 0]))  # a row that may use no draft may hold any
    RejectionRule(SAMPLING).decide(proposal, UNIFORM, unused).require_mass(ROWS)


@pytest.mark.parametrize("rule", [CoupledRule, RejectionRule])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_target_that_computes_no_distribution(rule, value):
    logits = UNIFORM.clone()
    logits[1, 0, 0] = value
    proposal = Proposal(torch.tensor([[0], [1]]), torch.full((2, 1, 3), 1 / 3).double())
    with pytest.raises(InputError, match="the target's logits are not finite in row 7"):
        rule(SAMPLING).decide(proposal, logits, NUMBERS).require_mass(ROWS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_greedy_target_without_numbers(value):
    logits = UNIFORM.clone()
    logits[1, 0, 0] = value
    proposal = Proposal(torch.tensor([[0], [0]]))
    decision = GreedyRule(SamplingConfig()).decide(proposal, logits, NUMBERS)
    assert decision.table()[:, 1].tolist() == [0, 1]
    with pytest.raises(InputError, match="the target's logits are not finite in row 7"):
        decision.require_mass(ROWS)
    later = UNIFORM.clone()
    later[1, 1, 0] = value  # after a rejection nothing is drawn there
    proposal = Proposal(torch.tensor([[0], [2]]))
    GreedyRule(SamplingConfig()).decide(proposal, later, NUMBERS).require_mass(ROWS)


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "inplace", "exspec"])
@pytest.mark.parametrize("acceptance", ["greedy", "coupled", "rejection", "block"])
def test_models_without_numbers_are_told_with_the_prompt(method, acceptance):
    pair = random_pair("llama")
    with torch.no_grad():
        pair.target.model.model.embed_tokens.weight[5] = math.nan
    settings = {"temperature": float(acceptance != "greedy"), "max_new_tokens": 4, "checks": "off"}
    with pytest.raises(InputError, match="the target's logits are not finite in row 2"):
        generate(pair, [[4, 6], [6], [4, 5]], method=method, acceptance=acceptance, **settings)


def test_equal_distributions_leave_no_residual_and_draw_from_the_target():
    p = torch.tensor([[[0.0, 0.25, 0.75]] * 2]).double()
    weights = next_weights(p, p[:, :1], torch.tensor([0]), torch.tensor([1]))
    assert torch.equal(weights, p[:, 0])


def test_a_cut_row_draws_from_the_target_and_a_rejected_one_from_the_residual():
    p = torch.tensor([[[0.5, 0.25, 0.25]] * 2] * 2).double()
    q = torch.tensor([[[0.25, 0.5, 0.25]]] * 2).double()
    weights = next_weights(p, q, accepted=torch.tensor([0, 0]), limits=torch.tensor([0, 1]))
    assert weights.tolist() == [[0.5, 0.25, 0.25], [0.25, 0, 0]]
