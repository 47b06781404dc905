"""Append-only columns: rejected tokens stay as masked holes until a lazy compaction."""

from collections.abc import Sequence as Seq

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl import kernels
from refimpl.kvstore import Block, KVStore
from refimpl.layouts.base import tag_block
from refimpl.layouts.working import SLACK_COLUMNS, WorkingLayout


class MaskedLayout(WorkingLayout):
    """Every block is appended at the common end of the batch; each slot knows the position it holds, or -1.

    | columns        | hold                                                                |
    |----------------|---------------------------------------------------------------------|
    | [0, width)     | live slots in order of position, among dead ones (pads, duplicates, rejected) |
    | [width, …)     | not written yet                                                     |

    A query sees the live slots of its row up to its own position, wherever they stand (INV-3). Holes cost memory and
    attention; when compaction would free more than `compaction_threshold` of the columns, the live slots are
    gathered into left-padded form.
    """

    compaction_threshold = 0.25

    _width: int  # columns in use
    _columns: list[list[int]]  # per row, the column of each cached position
    _slot_position: Tensor  # [batch, columns]: position that a slot holds, -1 when it is dead
    _lengths: Tensor  # [batch, 2]: seq_len and num_cached at the start of the round
    _round_start: int  # first column of the round in flight
    _first_offset: int | None  # offset of its first block

    @classmethod
    def batch_columns(cls, columns: int) -> int:
        """A quarter more, for holes."""
        return super().batch_columns(columns) + columns // 4

    def load(self, span: int) -> None:
        """Gather the rows from the pool, left-padded."""
        longest = max(row.num_cached for row in self.rows)
        slots = [
            [row.slot * self.pool.columns + max(0, c - (longest - row.num_cached)) for c in range(longest)]
            for row in self.rows
        ]
        self._lay_out(longest, self.pool, self._with_slack(slots, span))

    def realign(self, span: int) -> None:
        """Compact when that frees enough columns, or when the batch is out of columns."""
        longest = max(row.num_cached for row in self.rows)
        freed = self._width - longest
        full = self._width + span > self.batch.columns
        if full or freed > self.compaction_threshold * self._width:
            slots = [
                [i * self.batch.columns + column for column in [0] * (longest - len(columns)) + columns]
                for i, columns in enumerate(self._columns)
            ]
            self._lay_out(longest, self.batch, self._with_slack(slots, span))
        self._begin_round()

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Append q columns; entries of duplicates and pads are dead from the start."""
        if self._first_offset is None:
            self._first_offset = offset
        start, stop = self._width, self._width + tokens.shape[1]
        self._width = stop
        position = self._lengths[:, :1] + torch.arange(offset, offset + tokens.shape[1], device=tokens.device)
        claimed = kernels.masked_slot_position(position, self._lengths[:, 1:], position + 1)
        self._slot_position[:, start:stop] = claimed

        def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.batch.write_columns(layer, start, keys, values)
            return self.batch.view(layer, stop)

        tags = None
        if self.batch.tags is not None:
            self.batch.tags[:, start:stop] = tag_block(self.rows, position, tokens, claimed >= 0)
            tags = self.batch.tags[:, :stop]
        return Block(tokens, position.clamp(0, self.max_positions - 1), self._mask(position, start), append, tags)

    def commit(self, num_cached: Seq[int]) -> None:
        """Let the slots of rejected tokens die."""
        super().commit(num_cached)
        kept = torch.tensor(num_cached, device=self.shape.device)[:, None]
        position = self._slot_position
        self._slot_position = kernels.masked_slot_position(position, torch.zeros_like(position), kept)
        if self._first_offset is not None:
            for row, columns in zip(self.rows, self._columns, strict=True):
                first = self._round_start - (row.seq_len + self._first_offset)  # column of position 0 of this round
                columns += [first + position for position in range(len(columns), row.num_cached)]

    def column_of(self, row: int, position: int) -> int:
        """Looked up on the host; the device holds the inverse."""
        return self._columns[row][position]

    @property
    def width(self) -> int:
        """Columns in use, holes included."""
        return self._width

    def _mask(self, position: Int[Tensor, "batch q"], start: int) -> Tensor:
        visible = kernels.visible_by_position(self._slot_position[:, None, : self._width], position[:, :, None])
        columns = torch.arange(self._width, device=position.device)
        itself = (position < 0)[:, :, None] & (columns == columns[start:, None])
        return (visible | itself)[:, None]  # a pad sees itself, so that its softmax is defined

    def _lay_out(self, longest: int, source: KVStore, slots: Int[Tensor, "rows columns"]) -> None:
        self.gather_batch(source, slots)
        self._width = longest
        self._columns = [list(range(longest - row.num_cached, longest)) for row in self.rows]
        cached = torch.tensor([[row.num_cached] for row in self.rows], device=self.shape.device)
        columns = torch.arange(self.batch.columns, device=self.shape.device)
        position = kernels.left_padded_position(columns, longest - cached)
        self._slot_position = kernels.masked_slot_position(position, torch.zeros_like(position), cached)
        self._begin_round()

    def _begin_round(self) -> None:
        self._round_start, self._first_offset = self._width, None
        self._lengths = torch.tensor([[row.seq_len, row.num_cached] for row in self.rows], device=self.shape.device)

    def _with_slack(self, slots: list[list[int]], span: int) -> Int[Tensor, "rows columns"]:
        used = torch.tensor(slots, device=self.shape.device, dtype=torch.long).reshape(len(slots), -1)
        slack = used.new_zeros(len(slots), used.shape[1] // 4 + span + SLACK_COLUMNS)
        return torch.cat([used, slack], dim=1)
