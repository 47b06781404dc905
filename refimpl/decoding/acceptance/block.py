"""Accept the longest prefix that the drafts as a whole support: block verification."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from refimpl.core import kernels
from refimpl.decoding.acceptance.records import DrawnMass, RowNumbers
from refimpl.decoding.acceptance.rejection import RejectionRule


class BlockRule(RejectionRule):
    """Weigh all drafts of a row together; a draft that the target likes makes up for one that it likes less.

    With P_0 = 1 and P_j = min(1, P_{j-1} · p_j/q_j), a prefix of j drafts survives with probability P_j. Rejection has
    the product of min(1, p_i/q_i) instead, which is never more: so in expectation no fewer drafts are accepted, under
    the same law. Where a round ends depends on drafts behind that place, so no number of a round may serve again.

    Source: Sun et al. 2025, "Block Verification Accelerates Speculative Decoding".
    """

    fresh_numbers: ClassVar[bool] = True

    def _accept(
        self,
        drawn: DrawnMass,
        draft: Float[Tensor, "batch k vocab"],
        target: Float[Tensor, "batch k1 vocab"],
        numbers: RowNumbers,
    ) -> tuple[Int[Tensor, " batch"], Float[Tensor, "batch vocab"]]:
        """Test every depth: the deepest that passes counts, and what the target has left there is drawn from."""
        mass = prefix_mass(drawn, target)
        left = unspent(mass, draft, target, numbers.limits)
        rest = left.sum(dim=-1)
        total = kernels.block_total(mass, rest)
        total = total.where(total > 0, 1)  # 0/0: the draft after this one is accepted for certain
        passed = self.source.accepts(rest[:, 1:], total[:, 1:], numbers.keys, numbers.position[:, :-1])
        accepted = kernels.last_accepted(passed.long().unbind(dim=1), numbers.limits)
        return accepted, left_weights(left, target, accepted)


def prefix_mass(drawn: DrawnMass, target: Float[Tensor, "batch k1 vocab"]) -> Float[Tensor, "batch k1"]:
    """Probability P_j that the first j drafts survive, given all drafts, for j = 0 … k."""
    p = target[:, :-1].gather(-1, drawn.tokens[..., None])[..., 0]
    mass = [torch.ones_like(p[:, 0])]
    for step in range(p.shape[1]):
        mass.append(kernels.block_mass(mass[-1], p[:, step], drawn.mass[:, step]))
    return torch.stack(mass, dim=1)


def unspent(
    mass: Float[Tensor, "batch k1"],
    draft: Float[Tensor, "batch k vocab"],
    target: Float[Tensor, "batch k1 vocab"],
    limits: Int[Tensor, " batch"],
) -> Float[Tensor, "batch k1 vocab"]:
    """What the target has left for each token after j drafts: max(P_j · p − q, 0), with q = 0 behind the last draft."""
    drafts = torch.arange(draft.shape[1], device=limits.device) < limits[:, None]
    q = pad(draft * drafts[..., None], (0, 0, 0, 1))
    return kernels.residual(mass[..., None] * target, q)


def left_weights(
    left: Float[Tensor, "batch k1 vocab"], target: Float[Tensor, "batch k1 vocab"], accepted: Int[Tensor, " batch"]
) -> Float[Tensor, "batch vocab"]:
    """Weights of the token after the accepted prefix; p itself where rounding has left nothing."""
    rows = torch.arange(len(accepted), device=accepted.device)
    weights = left[rows, accepted]
    return torch.where((weights > 0).any(dim=-1, keepdim=True), weights, target[rows, accepted])
