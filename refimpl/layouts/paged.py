"""Paged: every row writes to blocks of its own, anywhere in the pool, and nothing ever moves."""

from collections.abc import Sequence as Seq

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.layouts.base import Layout
from refimpl.layouts.places import BlockRows
from refimpl.layouts.store import Block, RowState
from refimpl.placement import padded_columns


class PagedLayout(Layout):
    """Position p is in block ``blocks[p // block_size]`` of the row, at place ``p % block_size``.

    A pass gathers whole blocks to the rectangle that `inplace` would view, so both compute the same bits. Tokens that a
    row has no block for (pads, positions beyond its budget, finished rows) are written to the scratch block.
    """

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Write to the row's own blocks; positions beyond them go to scratch."""
        q, device = tokens.shape[1], tokens.device
        seq_len = torch.tensor([[row.seq_len] for row in self.rows], device=device)
        ends = torch.tensor([[self._end(row)] for row in self.rows], device=device)
        position = seq_len + torch.arange(offset, offset + q, device=device)
        real = (position >= 0) & (position < ends)
        width = padded_columns(self.width + offset + q)
        return self.pool_block(self.rows, tokens, self.placed(position, real), real, width)

    def placed(self, position: Int[Tensor, "batch q"], real: Tensor) -> Int[Tensor, "batch q"]:
        """Scratch where an entry is not real."""
        return torch.where(real, position, -1)

    def places(self, rows: Seq[RowState], width: int) -> BlockRows:
        """The rows' block tables, filled up with scratch."""
        count, scratch = -(-width // self.pool.columns), self.pool.rows - 1
        table = [[*row.blocks[:count], *[scratch] * (count - len(row.blocks))] for row in rows]
        cached, device = [[row.num_cached] for row in rows], self.shape.device
        return BlockRows(self.pool, torch.tensor(table, device=device), torch.tensor(cached, device=device))

    def pages(self, row: RowState) -> Seq[int]:
        """The row's blocks."""
        return row.blocks

    def read(self, row: int) -> Tensor:
        """The blocks side by side, up to num_cached."""
        blocks = torch.tensor(self.rows[row].blocks, dtype=torch.long, device=self.shape.device)
        return self.pool.data[:, :, :, blocks].flatten(3, 4)[:, :, :, : self.rows[row].num_cached]

    @property
    def block_size(self) -> int:
        """Tokens of a block of the pool."""
        return self.pool.columns

    def _end(self, row: RowState) -> int:
        """Positions that the row has blocks for."""
        return len(row.blocks) * self.pool.columns if not row.finished else 0
