"""What every acceptance rule can do."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from refimpl.decoding.acceptance.records import Decision, Proposal, RowNumbers
from refimpl.decoding.sampling import RandomSource, RowKeys, Sampling


class AcceptanceRule(ABC):
    """Chooses draft tokens and decides on them.

    Args:
        sampling: shape of both models' distributions.
        source: where random numbers come from.

    Attributes:
        keeps_tokens: whether the output is that of ordinary decoding token for token, and not only in distribution.
        fresh_numbers: whether every round needs random numbers of its own, because where it ends depends on drafts and
            numbers behind that place.
    """

    keeps_tokens: ClassVar[bool] = True
    fresh_numbers: ClassVar[bool] = False

    def __init__(self, sampling: Sampling, source: RandomSource | None = None):
        self.sampling = sampling
        self.source = source or RandomSource()

    def shaped(self, sampling: Sampling | None) -> "AcceptanceRule":
        """The rule for a round whose rows have another sampling; None for the run's."""
        return self if sampling is None else type(self)(sampling, self.source)

    @abstractmethod
    def propose(
        self, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
    ) -> Proposal:
        """Choose the draft's token for `position` (``[batch, 1]``) in every row."""

    @abstractmethod
    def decide(
        self, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
    ) -> Decision:
        """Accept a prefix of the proposal and add one token of the target's.

        Args:
            proposal: k tokens a row.
            target_logits: after 0 … k of them.
            numbers: keys of the rows, positions that the k+1 choices fill, drafts that each row may use.
        """
