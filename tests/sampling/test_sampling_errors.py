"""Bad settings and broken models: one clear line each."""

import math

import pytest
import torch

from refimpl import InputError, InvariantViolation, Request, SamplingConfig, generate
from refimpl.core.config import make_config
from refimpl.decoding.acceptance import CoupledRule, GreedyRule, Proposal, RejectionRule, RowNumbers
from refimpl.decoding.acceptance.rejection import next_weights
from refimpl.decoding.sampling import RowKeys
from refimpl.pairs.random_pairs import random_pair

BAD_SAMPLING = [
    ({"temperature": -0.1}, "temperature must be a number ≥ 0, not -0.1"),
    ({"temperature": math.inf}, "temperature must be finite, not inf"),
    ({"top_p": 0}, r"top_p must be a number in \(0, 1\], not 0"),
    ({"top_p": 1.01}, r"top_p must be a number in \(0, 1\], not 1.01"),
    ({"min_p": -1}, r"min_p must be a number in \[0, 1\], not -1"),
    ({"top_k": -1}, "top_k must be an integer ≥ 0, not -1"),
    ({"seed": 2**63}, "seed must be an integer in .*, not 9223372036854775808"),
]


@pytest.mark.parametrize(("setting", "message"), BAD_SAMPLING)
def test_bad_sampling_settings(setting, message):
    for build in (SamplingConfig, make_config):
        with pytest.raises(InputError, match=message) as caught:
            build(**setting)
        assert "\n" not in str(caught.value)


BAD_REQUESTS = [
    ({"stop_strings": [""]}, "a stop string must not be empty"),
    ({"stop_strings": ""}, "stop_strings must be a list of texts, not ''"),
    ({"stop_strings": "end"}, "stop_strings must be a list of texts, not 'end'"),
    ({"stop_strings": [3]}, "a stop string must be a text, not 3"),
    ({"stop_token_ids": [-1]}, "a stop token id must be an integer ≥ 0, not -1"),
    ({"stop_token_ids": ["</s>"]}, "a stop token id must be an integer ≥ 0, not '</s>'"),
    ({"num_speculative_tokens": -1}, r"num_speculative_tokens must be an integer in \[0, 64\], not -1"),
    ({"num_speculative_tokens": 65}, r"num_speculative_tokens must be an integer in \[0, 64\], not 65"),
    ({"max_new_tokens": 0}, "max_new_tokens must be an integer ≥ 1, not 0"),
]


@pytest.mark.parametrize(("setting", "message"), BAD_REQUESTS)
def test_bad_requests_and_configurations(setting, message):
    with pytest.raises(InputError, match=message):
        Request([1], **setting)
    with pytest.raises(InputError, match=message):
        make_config(**setting)


def test_two_requests_must_not_share_their_noise(llama):
    with pytest.raises(InputError, match="two prompts share seed 0 and sequence id 1"):
        generate(llama, [Request([3], sequence_id=1), [4]], temperature=1.0)


def test_stop_strings_need_a_tokenizer(llama):
    with pytest.raises(InputError, match=r"prompt 0 has stop strings, but the pair .* has no tokenizer"):
        generate(llama, [[1]], stop_strings=["x"])


def test_no_more_alternatives_than_tokens(llama):
    with pytest.raises(InputError, match="logprobs must be at most the vocabulary of 61, not 62"):
        generate(llama, [[1]], logprobs=62)


def test_greedy_acceptance_needs_temperature_zero():
    with pytest.raises(InputError, match=r"acceptance 'greedy' needs temperature 0, not 0.7"):
        make_config(acceptance="greedy", temperature=0.7)


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
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("acceptance", [None, "coupled", "rejection", "block"])
def test_models_without_numbers_are_told_with_the_prompt(method, temperature, acceptance):
    pair = random_pair("llama")
    with torch.no_grad():
        pair.target.model.model.embed_tokens.weight[5] = math.nan
    settings = {"temperature": temperature, "acceptance": acceptance, "max_new_tokens": 4, "checks": "off"}
    with pytest.raises(InputError, match="the target's logits are not finite in row 2"):
        generate(pair, [[4, 6], [6], [4, 5]], method=method, **settings)


def test_equal_distributions_leave_no_residual_and_draw_from_the_target():
    p = torch.tensor([[[0.0, 0.25, 0.75]] * 2]).double()
    weights = next_weights(p, p[:, :1], torch.tensor([0]), torch.tensor([1]))
    assert torch.equal(weights, p[:, 0])


def test_a_cut_row_draws_from_the_target_and_a_rejected_one_from_the_residual():
    p = torch.tensor([[[0.5, 0.25, 0.25]] * 2] * 2).double()
    q = torch.tensor([[[0.25, 0.5, 0.25]]] * 2).double()
    weights = next_weights(p, q, accepted=torch.tensor([0, 0]), limits=torch.tensor([0, 1]))
    assert weights.tolist() == [[0.5, 0.25, 0.25], [0.25, 0, 0]]
