"""Rejection rules as they are got wrong in the wild: those that are not in `refimpl/faults`."""

from dataclasses import replace
from unittest.mock import patch

import torch

from refimpl.core import kernels
from refimpl.decoding.acceptance import Proposal, RejectionRule, rejection
from refimpl.decoding.acceptance.rejection import next_weights
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys, exponentials, probabilities

ZOO = (  # those of refimpl/faults that any rejection rule may have
    "residual-forgotten",
    "ratio-upside-down",
    "draft-drawn-from-another-q",
    "ratio-of-the-raw-draft",
    "recovery-reuses-draft-noise",
    "matches-counted-past-mismatch",
)


class GreedyDraft(RejectionRule):
    """The draft takes its most probable token, the ratio pretends it was drawn."""

    def propose(self, logits, keys, position):
        return Proposal(logits.argmax(dim=-1), probabilities(logits, self.sampling))


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


class _OneUniform(RandomSource):
    def accepts(self, target_probability, draft_probability, keys, position):
        return super().accepts(target_probability, draft_probability, keys, position[:, :1].expand_as(position))


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


ALL = (
    OneUniformARound,
    SeedlessBonus,
    GreedyDraft,
    OneStreamForAllPurposes,
    OneStreamForAllRows,
    BonusFromTheLastDraftsPosition,
    ResidualAfterFullAcceptance,
)
