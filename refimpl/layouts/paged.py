"""Paged: every row writes to blocks of its own, anywhere in the pool, and nothing ever moves."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.layouts.base import Layout
from refimpl.layouts.places import BlockRows
from refimpl.layouts.store import Block, RowState
from refimpl.placement import padded_columns


@dataclass(frozen=True, slots=True)
class BlockTables:
    """What rows need to be found in a pool of blocks.

    Attributes:
        seq_len: real tokens of each row.
        ends: positions that each row has blocks for; 0 where it has finished.
        cached: positions of each row that are stored already.
        blocks: of each row in order of position, then scratch.
    """

    seq_len: Int[Tensor, "batch 1"]
    ends: Int[Tensor, "batch 1"]
    cached: Int[Tensor, "batch 1"]
    blocks: Int[Tensor, "batch blocks"]


class PagedLayout(Layout):
    """Position p is in block ``blocks[p // block_size]`` of the row, at place ``p % block_size``.

    A pass gathers whole blocks to the rectangle that `inplace` would view, so both compute the same bits. Tokens that a
    row has no block for (pads, positions beyond its budget, finished rows) are written to the scratch block, which also
    stands for blocks that a row has given back in front of its windows.
    """

    _of_round: BlockTables | None = None
    _span: int

    def begin(self, rows: Seq[RowState], span: int) -> None:
        """As every layout; rows have blocks for the span already."""
        super().begin(rows, span)
        self._of_round, self._span = None, span

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Write to the row's own blocks; positions beyond them go to scratch."""
        q, tables = tokens.shape[1], self._tables_of_round()
        position = tables.seq_len + torch.arange(offset, offset + q, device=tokens.device)
        real = (position >= 0) & (position < tables.ends)
        width = padded_columns(self.width + offset + q)
        return self.pool_block(self.rows, tokens, self.placed(position, real), real, width)

    def placed(self, position: Int[Tensor, "batch q"], real: Tensor) -> Int[Tensor, "batch q"]:
        """Scratch where an entry is not real."""
        return torch.where(real, position, -1)

    def places(self, rows: Seq[RowState], width: int) -> BlockRows:
        """The rows' block tables, filled up with scratch."""
        tables = self._tables_of_round() if rows is self.rows else self._make_tables(rows, width)
        return BlockRows(self.pool, tables.blocks[:, : self._num_blocks(width)], tables.cached)

    def pages(self, row: RowState) -> Seq[int]:
        """The row's blocks."""
        return row.blocks

    def read(self, row: int) -> Tensor:
        """The blocks side by side, up to num_cached."""
        blocks = torch.tensor(self.rows[row].blocks, dtype=torch.long, device=self.shape.device)
        return self.pool.data[:, :, :, blocks].flatten(3, 4)[:, :, :, : self.rows[row].num_cached]

    def num_freed(self, blocks: Seq[int]) -> int:
        """Those of blocks in whose place scratch stands."""
        return blocks.count(self.pool.rows - 1) * self.pool.columns

    @property
    def block_size(self) -> int:
        """Tokens of a block of the pool."""
        return self.pool.columns

    def _tables_of_round(self) -> BlockTables:
        """Of all columns that the blocks of the round see; made once."""
        if self._of_round is None:
            self._of_round = self._make_tables(self.rows, padded_columns(self.width + self._span))
        return self._of_round

    def _make_tables(self, rows: Seq[RowState], width: int) -> BlockTables:
        count, scratch, device = self._num_blocks(width), self.pool.rows - 1, self.shape.device
        lengths = [[row.seq_len, self._end(row), row.num_cached] for row in rows]
        blocks = [[*row.blocks[:count], *[scratch] * (count - len(row.blocks))] for row in rows]
        seq_len, ends, cached = torch.tensor(lengths, device=device).split(1, dim=1)
        return BlockTables(seq_len, ends, cached, torch.tensor(blocks, device=device))

    def _num_blocks(self, width: int) -> int:
        """Blocks that hold so many positions."""
        return -(-width // self.pool.columns)

    def _end(self, row: RowState) -> int:
        """Positions that the row has blocks for."""
        return len(row.blocks) * self.pool.columns if not row.finished else 0
