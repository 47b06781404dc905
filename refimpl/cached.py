"""A model together with the layout that holds its K/V."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from refimpl.kvstore import Block, RowState
from refimpl.layouts import Layout
from refimpl.model import CausalLM
from refimpl.sequence import Sequence


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model and the layout that holds its K/V. `role` says which of a sequence's cached lengths is meant."""

    model: CausalLM
    layout: Layout
    role: Literal["target", "draft"]

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block of the layout; logits of the members' rows."""
        logits = self.model.forward(block, num_logits)
        return logits if block.members is None else logits[block.members]

    def num_cached(self, sequence: Sequence) -> int:
        """Leading tokens of the sequence whose K/V this model holds."""
        return sequence.target_cached if self.role == "target" else sequence.draft_cached

    def rows(self, members: Seq[Sequence]) -> list[RowState]:
        """Host integers that the layout works on."""
        return [RowState(m.slot, m.index, m.seq_len, self.num_cached(m), not m.finished) for m in members]
