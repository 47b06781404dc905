"""In place: every row writes at its own columns of the pool, and nothing ever moves."""

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.layouts.base import Layout
from refimpl.layouts.store import Block
from refimpl.placement import padded_columns


class InplaceLayout(Layout):
    """Position p is in column p of the row's own pool row.

    A rejected token's entry stays where it is: the next block starts at its column and overwrites it before any
    query can see it, because a query at position p sees columns 0 … p only.
    """

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Write at column = position."""
        seq_len = torch.tensor([[row.seq_len] for row in self.rows], device=self.shape.device)
        position = seq_len + torch.arange(offset, offset + tokens.shape[1], device=tokens.device)
        width = padded_columns(self.width + offset + tokens.shape[1])
        return self.pool_block(self.rows, tokens, position, position >= 0, width)

    def read(self, row: int) -> Tensor:
        """Columns [0, num_cached) of the row's pool row."""
        state = self.rows[row]
        return self.pool.data[:, :, :, state.slot, : state.num_cached]
