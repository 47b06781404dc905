"""How many drafted tokens survive, and which token follows them. Pure functions on ``[batch, k]``.

A rule proposes the draft's tokens and later decides on them. The three rules differ in how a token is chosen from a
distribution; greedy and coupled then accept a draft when the target chose the same token.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl import kernels
from refimpl.config import AcceptanceName, SamplingConfig
from refimpl.errors import InvariantViolation
from refimpl.sampling import Purpose, RandomSource, RowKeys, probabilities


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the draft proposes at consecutive positions.

    Attributes:
        tokens: ``[batch, k]``
        probabilities: the distributions they were drawn from ``[batch, k, vocab]``; None when the rule needs none.
    """

    tokens: Int[Tensor, "batch k"]
    probabilities: Float[Tensor, "batch k vocab"] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What the target makes of a proposal.

    Attributes:
        num_accepted: longest accepted prefix within each row's limit ``[batch]``.
        emitted: accepted drafts, then the next token; arbitrary after that ``[batch, k+1]``.
    """

    num_accepted: Int[Tensor, " batch"]
    emitted: Int[Tensor, "batch k1"]


class AcceptanceRule(ABC):
    """Chooses draft tokens and decides on them.

    Args:
        sampling: shape of both models' distributions.
        source: where random numbers come from.
    """

    def __init__(self, sampling: SamplingConfig, source: RandomSource | None = None):
        self.sampling = sampling
        self.source = source or RandomSource()

    @abstractmethod
    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Choose the draft's token for `position` (``[batch, 1]``) in every row."""

    @abstractmethod
    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Accept a prefix of the proposal and add one token of the target's.

        Args:
            proposal: k tokens a row.
            target_logits: after 0 … k of them.
            keys: of the rows.
            position: positions that the k+1 choices fill.
            limits: drafts that each row may use.
        """


class MatchingRule(AcceptanceRule):
    """The target chooses its own token at every position; drafts are accepted as long as they are the same."""

    @abstractmethod
    def choose(
        self, logits: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"]
    ) -> Int[Tensor, "batch q"]:
        """Choose one token per row and position."""

    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Choose as the target would, from the draft's logits."""
        return Proposal(self.choose(logits, keys, position))

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Compare position by position."""
        target_tokens = self.choose(target_logits, keys, position)
        matches = (proposal.tokens == target_tokens[:, :-1]).long().unbind(dim=1)
        return Decision(kernels.num_accepted(matches, limits), target_tokens)


class GreedyRule(MatchingRule):
    """The most probable token, ties to the lowest id."""

    def choose(
        self, logits: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"]
    ) -> Int[Tensor, "batch q"]:
        """Take the argmax; the keys are not used."""
        return logits.argmax(dim=-1)


class CoupledRule(MatchingRule):
    """Both models sample with the same noise, so the output is the sample that autoregressive decoding draws.

    Source: Daliri, Musco, Suresh 2024 (drafter-invariant speculative decoding).
    """

    def choose(
        self, logits: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"]
    ) -> Int[Tensor, "batch q"]:
        """Run the exponential race of each position."""
        return self.source.draw(probabilities(logits, self.sampling), keys, position, Purpose.COUPLED)


class RejectionRule(AcceptanceRule):
    """Accept with probability min(1, p/q), else draw from the residual max(p − q, 0).

    Source: Leviathan, Kalman, Matias 2023; Chen et al. 2023. Preserves the target's law, not its very tokens.
    """

    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Draw from the draft's processed distribution and keep it for the ratio."""
        mass = probabilities(logits, self.sampling)
        return Proposal(self.source.draw(mass, keys, position, Purpose.DRAFT), mass)

    def decide(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "batch k1 vocab"],
        keys: RowKeys,
        position: Int[Tensor, "batch k1"],
        limits: Int[Tensor, " batch"],
    ) -> Decision:
        """Accept a prefix; a row whose limit cut the run short draws from p itself, as after a full acceptance."""
        target = probabilities(target_logits, self.sampling)
        k = proposal.tokens.shape[1]
        if k == 0 or proposal.probabilities is None:
            return Decision(torch.zeros_like(limits), self.source.draw(target, keys, position, Purpose.NEXT))
        p = target[:, :k].gather(-1, proposal.tokens[..., None])[..., 0]
        q = proposal.probabilities.gather(-1, proposal.tokens[..., None])[..., 0]
        require_draft_mass(q)
        accepted = kernels.num_accepted(self.source.accepts(p, q, keys, position[:, :k]).long().unbind(dim=1), limits)
        weights = self._next_weights(target, proposal.probabilities, accepted, limits)
        at = position.gather(1, accepted[:, None])
        next_token = self.source.draw(weights[:, None], keys, at, Purpose.NEXT)
        emitted = torch.cat([proposal.tokens, next_token], dim=1).scatter(1, accepted[:, None], next_token)
        return Decision(accepted, emitted)

    def _next_weights(
        self,
        target: Float[Tensor, "batch k1 vocab"],
        draft: Float[Tensor, "batch k vocab"],
        accepted: Int[Tensor, " batch"],
        limits: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch vocab"]:
        """p after the accepted prefix; its residual where a draft was rejected there."""
        rows = torch.arange(len(accepted), device=accepted.device)
        p = target[rows, accepted]
        q = draft[rows, accepted.clamp(max=draft.shape[1] - 1)]
        return torch.where((accepted < limits)[:, None], kernels.residual(p, q), p)


def require_draft_mass(drawn: Float[Tensor, "batch k"]) -> None:
    """Raise unless the draft gave mass to every token it drew: then the ratio p/q is not the one of the draw."""
    if not bool((drawn > 0).all()):
        row = int((drawn <= 0).any(dim=1).nonzero()[0])
        raise InvariantViolation(
            "INV-12", "the draft must put mass on the token it drew", row=row, expected="q > 0", found="q = 0"
        )


RULES: dict[AcceptanceName, type[AcceptanceRule]] = {
    "greedy": GreedyRule,
    "coupled": CoupledRule,
    "rejection": RejectionRule,
}
