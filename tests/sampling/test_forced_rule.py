"""Acceptance of asked-for lengths: the drafts are taken as they are, the token after them is the target's own."""

import pytest
import torch

from refimpl.core.config import SamplingConfig
from refimpl.decoding.acceptance import ForcedRule, Proposal, RowNumbers, forced
from refimpl.decoding.sampling import RandomSource, RowKeys

DRAFTS = torch.tensor([[7, 8, 9], [4, 5, 6]])
LOGITS = torch.eye(12)[torch.tensor([[1, 2, 3, 0], [3, 2, 1, 11]])]  # the target would say 1, 2, 3, 0 and 3, 2, 1, 11
KEYS = RowKeys(torch.tensor([0, 0]), torch.tensor([0, 1]))
POSITION = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


@pytest.mark.parametrize(
    ("lengths", "limits", "accepted", "emitted"),
    [
        ((1.0, 0.0, 0.0, 0.0), [3, 3], [0, 0], [[1], [3]]),
        ((0.0, 0.0, 1.0, 0.0), [3, 3], [2, 2], [[7, 8, 3], [4, 5, 1]]),
        ((0.0, 0.0, 0.0, 1.0), [3, 3], [3, 3], [[7, 8, 9, 0], [4, 5, 6, 11]]),
        ((0.0, 0.0, 0.0, 1.0), [1, 0], [1, 0], [[7, 2], [3]]),
    ],
)
def test_drafts_then_the_targets_token(lengths, limits, accepted, emitted):
    rule = ForcedRule(SamplingConfig(), lengths=lengths)
    decision = rule.decide(Proposal(DRAFTS), LOGITS, RowNumbers(KEYS, POSITION, torch.tensor(limits)))
    assert decision.num_accepted.tolist() == accepted
    assert [row[: n + 1] for row, n in zip(decision.emitted.tolist(), accepted, strict=True)] == emitted


def test_the_draft_is_the_most_probable_token():
    proposal = ForcedRule(SamplingConfig(), (1.0,)).propose(LOGITS[:, :1], KEYS, POSITION[:, :1])
    assert proposal.tokens.tolist() == [[1], [3]]
    assert proposal.probabilities is None


def test_a_length_of_probability_zero_is_never_drawn(monkeypatch):
    """Not even by the smallest random number."""
    monkeypatch.setattr(forced, "uniform", lambda keys, position, purpose: torch.zeros(position.shape).double())
    rule = ForcedRule(SamplingConfig(), lengths=(0.0, 0.5, 0.5))
    numbers = RowNumbers(KEYS, POSITION[:, :3], torch.tensor([2, 2]))
    decision = rule.decide(Proposal(DRAFTS[:, :2]), LOGITS[:, :3], numbers)
    assert decision.num_accepted.tolist() == [1, 1]


def test_it_is_built_like_every_rule():
    sampling, source = SamplingConfig(seed=3), RandomSource()
    rule = ForcedRule(sampling, (1.0,), source)
    assert (rule.sampling, rule.source) == (sampling, source)
    assert isinstance(ForcedRule(sampling, (1.0,)).source, RandomSource)
