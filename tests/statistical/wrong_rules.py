"""Rejection rules as they are got wrong in the wild: every law test must find each of them out."""

from unittest.mock import patch

import torch

from refimpl import acceptance, kernels
from refimpl.acceptance import Decision, Proposal, RejectionRule
from refimpl.config import SamplingConfig
from refimpl.sampling import Purpose, RandomSource, RowKeys, exponentials, probabilities


class ResidualNotTaken(RejectionRule):
    """Draws from p after a rejection."""

    def decide(self, proposal, target_logits, keys, position, limits):
        with patch.object(acceptance, "next_weights", lambda target, draft, accepted, limits: _at(target, accepted)):
            return super().decide(proposal, target_logits, keys, position, limits)


class ResidualNotRenormalised(RejectionRule):
    """Inverts the distribution function of p − q, not divided by its mass: the last possible token gets the rest."""

    def decide(self, proposal, target_logits, keys, position, limits):
        with patch.object(acceptance, "next_weights", _leaky_weights):
            return super().decide(proposal, target_logits, keys, position, limits)


class RatioFromUnprocessedLogits(RejectionRule):
    """Draws from the processed distributions but accepts with the ratio of the plain softmax."""

    def propose(self, logits, keys, position):
        plain = probabilities(logits, SamplingConfig(temperature=1.0))
        return Proposal(super().propose(logits, keys, position).tokens, plain)

    def _num_accepted(self, draft, target, keys, position):
        return super()._num_accepted(draft, self._plain, keys, position)

    def decide(self, proposal, target_logits, keys, position, limits):
        self._plain = probabilities(target_logits, SamplingConfig(temperature=1.0))
        return super().decide(proposal, target_logits, keys, position, limits)


class GreedyDraft(RejectionRule):
    """The draft takes its most probable token, the ratio pretends it was drawn."""

    def propose(self, logits, keys, position):
        return Proposal(logits.argmax(dim=-1), probabilities(logits, self.sampling))


class RollbackRedraws(RejectionRule):
    """Rows cut back to the batch minimum redraw their last token from p."""

    group_size: int | None = None  # rows that roll back together; None for the whole batch

    def decide(self, proposal, target_logits, keys, position, limits):
        decision = super().decide(proposal, target_logits, keys, position, limits)
        groups = decision.num_accepted.view(-1, self.group_size or len(limits))
        least = groups.amin(dim=1, keepdim=True).expand(groups.shape).flatten()
        weights = _at(probabilities(target_logits, self.sampling), least)
        at = least[:, None]
        redrawn = self.source.draw(weights[:, None], keys, position.gather(1, at), Purpose.NEXT)
        cut = decision.num_accepted[:, None] > at
        token = torch.where(cut, redrawn, decision.emitted.gather(1, at))
        return Decision(least, decision.emitted.scatter(1, at, token))


class OneStreamForAllPurposes(RejectionRule):
    """The draft's noise serves the acceptance test and the next token too."""

    def __init__(self, sampling, source=None):
        super().__init__(sampling, _OnePurpose())


class OneStreamForAllRows(RejectionRule):
    """Every row uses the first row's numbers."""

    def __init__(self, sampling, source=None):
        super().__init__(sampling, _OneRow())


class _OnePurpose(RandomSource):
    def draw(self, weights, keys, position, purpose):
        return super().draw(weights, keys, position, Purpose.DRAFT)

    def accepts(self, target_probability, draft_probability, keys, position):
        uniform = torch.exp(-exponentials(keys, position, Purpose.DRAFT, 1))[..., 0]
        return kernels.accepts(uniform, target_probability, draft_probability)


class _OneRow(RandomSource):
    def draw(self, weights, keys, position, purpose):
        return super().draw(weights, _first_row(keys), position, purpose)

    def accepts(self, target_probability, draft_probability, keys, position):
        return super().accepts(target_probability, draft_probability, _first_row(keys), position)


def _first_row(keys: RowKeys) -> RowKeys:
    return RowKeys(keys.seed[:1].expand_as(keys.seed), keys.sequence[:1].expand_as(keys.sequence))


def _at(target, accepted):
    return target[torch.arange(len(accepted)), accepted]


def _leaky_weights(target, draft, accepted, limits):
    p, q = _at(target, accepted), _at(draft, accepted.clamp(max=draft.shape[1] - 1))
    residual = kernels.residual(p, q)
    last = torch.where(p > 0, torch.arange(p.shape[-1]), -1).amax(dim=-1, keepdim=True)
    residual.scatter_add_(1, last, 1 - residual.sum(dim=-1, keepdim=True))
    return torch.where((accepted < limits)[:, None], residual, p)
