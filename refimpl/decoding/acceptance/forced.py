"""Acceptance of given lengths, for timing."""

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.core import kernels
from refimpl.core.config import SamplingConfig
from refimpl.decoding.acceptance.matching import GreedyRule
from refimpl.decoding.acceptance.records import Decision, Proposal, RowNumbers
from refimpl.decoding.sampling import Purpose, RandomSource, Sampling, first_largest, uniform


class ForcedRule(GreedyRule):
    """Accepts as many drafts as a given distribution says, regardless of the target. For timing only.

    Args:
        lengths: probability of 0, 1, … accepted drafts; a row's own limit caps the number drawn.
        device: of the decisions; None for the CPU.
    """

    def __init__(
        self,
        sampling: SamplingConfig,
        lengths: tuple[float, ...],
        source: RandomSource | None = None,
        device: torch.device | None = None,
    ):
        super().__init__(sampling, source)
        self.cumulative = torch.tensor(lengths, dtype=torch.float64).cumsum(dim=0)[:-1].to(device)

    def shaped(self, sampling: Sampling | None) -> "ForcedRule":
        """Its lengths do not depend on the sampling."""
        return self

    def decide(
        self, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Decision:
        """Draw a number per row, keyed like every random number, and let the target add its token after it."""
        drawn = uniform(numbers.keys, numbers.position[:, :1], Purpose.FORCED) >= self.cumulative
        accepted = kernels.minimum(drawn.sum(dim=1), numbers.limits)
        next_token = first_largest(target_logits).gather(1, accepted[:, None])
        padded = torch.cat([proposal.tokens, next_token], dim=1)
        return Decision(accepted, padded.scatter(1, accepted[:, None], next_token))
