"""Rejection rules as they are got wrong in the wild: every law test must find each of them out."""

from dataclasses import replace
from unittest.mock import patch

import torch

from refimpl.core import kernels
from refimpl.core.config import SamplingConfig
from refimpl.decoding.acceptance import BlockRule, Decision, Proposal, RejectionRule, rejection
from refimpl.decoding.acceptance.rejection import next_weights
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys, exponentials, probabilities


class ResidualNotTaken(RejectionRule):
    """Draws from p after a rejection."""

    def decide(self, proposal, target_logits, numbers):
        with patch.object(rejection, "next_weights", lambda target, draft, accepted, limits: _at(target, accepted)):
            return super().decide(proposal, target_logits, numbers)


class ResidualNotRenormalised(RejectionRule):
    """Inverts the distribution function of p − q, not divided by its mass: the last possible token gets the rest."""

    def decide(self, proposal, target_logits, numbers):
        with patch.object(rejection, "next_weights", _leaky_weights):
            return super().decide(proposal, target_logits, numbers)


class RatioFromUnprocessedLogits(RejectionRule):
    """Draws from the processed distributions but accepts with the ratio of the plain softmax."""

    def propose(self, logits, keys, position):
        plain = probabilities(logits, SamplingConfig(temperature=1.0))
        return Proposal(super().propose(logits, keys, position).tokens, plain)

    def _num_accepted(self, draft, target, numbers):
        return super()._num_accepted(draft, self._plain, numbers)

    def decide(self, proposal, target_logits, numbers):
        self._plain = probabilities(target_logits, SamplingConfig(temperature=1.0))
        return super().decide(proposal, target_logits, numbers)


class GreedyDraft(RejectionRule):
    """The draft takes its most probable token, the ratio pretends it was drawn."""

    def propose(self, logits, keys, position):
        return Proposal(logits.argmax(dim=-1), probabilities(logits, self.sampling))


class MassNotCapped(BlockRule):
    """A block's mass is the ratio of the whole prefix, so that a likely draft pays for all that follow."""

    def decide(self, proposal, target_logits, numbers):
        with patch.object(kernels, "block_mass", lambda mass, target, draft: mass * target / draft):
            return super().decide(proposal, target_logits, numbers)


class BlockEndsAtTheFirstRejection(BlockRule):
    """Takes the leading run of drafts that pass, as if each were tested alone."""

    def decide(self, proposal, target_logits, numbers):
        with patch.object(kernels, "last_accepted", kernels.num_accepted):
            return super().decide(proposal, target_logits, numbers)


class RollbackRedraws(RejectionRule):
    """Rows cut back to the batch minimum redraw their last token from p."""

    group_size: int | None = None  # rows that roll back together; None for the whole batch

    def decide(self, proposal, target_logits, numbers):
        decision = super().decide(proposal, target_logits, numbers)
        groups = decision.num_accepted.view(-1, self.group_size or len(numbers.limits))
        least = groups.amin(dim=1, keepdim=True).expand(groups.shape).flatten()
        weights = _at(probabilities(target_logits, self.sampling), least)
        at = least[:, None]
        redrawn = self.source.draw(weights[:, None], numbers.keys, numbers.position.gather(1, at), Purpose.NEXT)
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


class OneUniformARound(RejectionRule):
    """All accept tests of a round use the number of its first position."""

    def __init__(self, sampling, source=None):
        super().__init__(sampling, _OneUniform())


class RecoveryWithDraftNoise(RejectionRule):
    """The token after a rejection is drawn with the noise that drew the rejected draft."""

    def __init__(self, sampling, source=None):
        super().__init__(sampling, _DraftNoiseForNext())


class SeedlessBonus(RejectionRule):
    """The token after a full acceptance ignores the seed."""

    def decide(self, proposal, target_logits, numbers):
        decision = super().decide(proposal, target_logits, numbers)
        k = proposal.tokens.shape[1]
        weights = probabilities(target_logits[:, k:], self.sampling)
        seedless = replace(numbers.keys, seed=torch.zeros_like(numbers.keys.seed))
        bonus = self.source.draw(weights, seedless, numbers.position[:, k:], Purpose.NEXT)
        emitted = torch.where(torch.arange(k + 1) < k, decision.emitted, bonus)
        return replace(decision, emitted=torch.where(decision.num_accepted[:, None] == k, emitted, decision.emitted))


class BonusFromTheLastDraftsPosition(RejectionRule):
    """The token after a full acceptance is drawn from the distribution before it."""

    def decide(self, proposal, target_logits, numbers):
        late = torch.cat([target_logits[:, :-1], target_logits[:, -2:-1]], dim=1)
        return super().decide(proposal, late, numbers)


class ResidualAfterFullAcceptance(RejectionRule):
    """A row that has used all drafts it may use draws from the residual, too."""

    def decide(self, proposal, target_logits, numbers):
        def always(target, draft, accepted, limits):
            return next_weights(target, draft, accepted, limits + 1)

        with patch.object(rejection, "next_weights", always):
            return super().decide(proposal, target_logits, numbers)


class TopPAfterTheRatio(RejectionRule):
    """Draws drafts and accepts them by the distributions before top-p; only the token after them is filtered."""

    @property
    def _unfiltered(self):
        return replace(self.sampling, top_p=1.0)

    def propose(self, logits, keys, position):
        return RejectionRule(self._unfiltered, self.source).propose(logits, keys, position)

    def _num_accepted(self, draft, target, numbers):
        return super()._num_accepted(draft, self._before, numbers)

    def decide(self, proposal, target_logits, numbers):
        self._before = probabilities(target_logits, self._unfiltered)
        return super().decide(proposal, target_logits, numbers)


class TemperatureIgnoredInTheRatio(RejectionRule):
    """The draft samples at the temperature, its q in ratio and residual is that of temperature 1."""

    def propose(self, logits, keys, position):
        proposal = super().propose(logits, keys, position)
        return Proposal(proposal.tokens, probabilities(logits, replace(self.sampling, temperature=1.0)))


class DraftDrawnFromAnotherQ(RejectionRule):
    """The draft samples without filters, its q in ratio and residual has them."""

    def propose(self, logits, keys, position):
        unfiltered = probabilities(logits, replace(self.sampling, top_k=0, top_p=1.0))
        tokens = self.source.draw(unfiltered, keys, position, Purpose.DRAFT)
        return Proposal(tokens, probabilities(logits, self.sampling))


class RatioUpsideDown(RejectionRule):
    """Accepts with probability q/p."""

    def __init__(self, sampling, source=None):
        super().__init__(sampling, _UpsideDown())


class AcceptedPastARejection(RejectionRule):
    """Counts every draft that passes its test, not the leading run of them."""

    def decide(self, proposal, target_logits, numbers):
        with patch.object(kernels, "num_accepted", lambda matches, limit: kernels.minimum(sum(matches), limit)):
            return super().decide(proposal, target_logits, numbers)


class _OneUniform(RandomSource):
    def accepts(self, target_probability, draft_probability, keys, position):
        return super().accepts(target_probability, draft_probability, keys, position[:, :1].expand_as(position))


class _DraftNoiseForNext(RandomSource):
    def draw(self, weights, keys, position, purpose):
        return super().draw(weights, keys, position, Purpose.DRAFT)


class _UpsideDown(RandomSource):
    def accepts(self, target_probability, draft_probability, keys, position):
        return super().accepts(draft_probability, target_probability, keys, position)


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


ALL = (
    OneUniformARound,
    RecoveryWithDraftNoise,
    SeedlessBonus,
    ResidualNotRenormalised,
    TopPAfterTheRatio,
    TemperatureIgnoredInTheRatio,
    DraftDrawnFromAnotherQ,
    ResidualNotTaken,
    RatioFromUnprocessedLogits,
    GreedyDraft,
    OneStreamForAllPurposes,
    OneStreamForAllRows,
    BonusFromTheLastDraftsPosition,
    ResidualAfterFullAcceptance,
    RatioUpsideDown,
    AcceptedPastARejection,
    RollbackRedraws,
)
OF_BLOCKS = (MassNotCapped, BlockEndsAtTheFirstRejection)
