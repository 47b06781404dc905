"""Accept with the ratio of the two distributions, else draw from what is left of the target's."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.decoding.acceptance.base import AcceptanceRule
from refimpl.decoding.acceptance.records import Decision, DrawnMass, Proposal, RowNumbers
from refimpl.decoding.sampling import Purpose, RowKeys, probabilities


class RejectionRule(AcceptanceRule):
    """Accept with probability min(1, p/q), else draw from the residual max(p − q, 0).

    Source: Leviathan, Kalman, Matias 2023; Chen et al. 2023. Preserves the target's distribution, but not the exact
    tokens. The tokens still do not depend on batch, order or schedule, because every row's rounds begin where its own
    acceptance put them. Only the rollback layout, budgets that depend on the batch, the drafter ``hybrid`` and, under
    the drafter ``head``, preemption move those boundaries; then only the distribution is preserved.
    """

    keeps_tokens: ClassVar[bool] = False

    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Draw from the draft's processed distribution and keep it for the ratio."""
        mass = probabilities(logits, self.sampling)
        return Proposal(self.source.draw(mass, keys, position, Purpose.DRAFT), mass)

    def decide(
        self, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Decision:
        """Accept a prefix; a row whose limit cut the run short draws from p itself, as after a full acceptance."""
        target, limits = probabilities(target_logits, self.sampling), numbers.limits
        drawn: tuple[DrawnMass, ...] = ()
        draft = proposal.distributions(target.shape[-1])
        if draft is None:  # no drafts in this round
            accepted, weights = torch.zeros_like(limits), target[:, 0]
        else:
            mass = DrawnMass.of("draft", draft, proposal.tokens, limits)
            (accepted, weights), drawn = self._accept(mass, draft, target, numbers), (mass,)
        at = accepted[:, None]
        next_token = self.source.draw(weights[:, None], numbers.keys, numbers.position.gather(1, at), Purpose.NEXT)
        emitted = torch.cat([proposal.tokens, next_token], dim=1).scatter(1, at, next_token)
        return Decision(accepted, emitted, (*drawn, DrawnMass.of("target", target, emitted, accepted + 1)))

    def _accept(
        self,
        drawn: DrawnMass,
        draft: Float[Tensor, "batch k vocab"],
        target: Float[Tensor, "batch k1 vocab"],
        numbers: RowNumbers,
    ) -> tuple[Int[Tensor, " batch"], Float[Tensor, "batch vocab"]]:
        """Drafts accepted of those drawn, and weights of the token after them."""
        accepted = self._num_accepted(drawn, target, numbers)
        return accepted, next_weights(target, draft, accepted, numbers.limits)

    def _num_accepted(
        self, draft: DrawnMass, target: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Int[Tensor, " batch"]:
        """Test the drafts position by position."""
        p = target[:, :-1].gather(-1, draft.tokens[..., None])[..., 0]
        passed = self.source.accepts(p, draft.mass, numbers.keys, numbers.position[:, :-1])
        return kernels.num_accepted(passed.long().unbind(dim=1), draft.num_used)


def next_weights(
    target: Float[Tensor, "batch k1 vocab"],
    draft: Float[Tensor, "batch k vocab"],
    accepted: Int[Tensor, " batch"],
    limits: Int[Tensor, " batch"],
) -> Float[Tensor, "batch vocab"]:
    """p after the accepted prefix; its residual, not normalised, where a draft was rejected there.

    The residual of equal distributions is empty. Exact arithmetic rejects nothing then; if rounding does, the
    token is drawn from p, from which the residual differs by no more than that rounding.
    """
    rows = torch.arange(len(accepted), device=accepted.device)
    p = target[rows, accepted]
    q = draft[rows, accepted.clamp(max=draft.shape[1] - 1)]
    residual = kernels.residual(p, q)
    rejected = (accepted < limits)[:, None] & (residual > 0).any(dim=-1, keepdim=True)
    return torch.where(rejected, residual, p)
