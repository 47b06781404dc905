"""Append-only columns: rejected tokens stay as masked holes until a lazy compaction."""

from collections.abc import Sequence as Seq

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.layouts.base import tag_block
from refimpl.layouts.store import Block, RowState
from refimpl.layouts.working import WorkingLayout
from refimpl.placement import MaskedPlacement, Move


class MaskedLayout(WorkingLayout):
    """Every block is appended at the common end of the batch; each slot knows the position it holds, or -1.

    | columns        | hold                                                                |
    |----------------|---------------------------------------------------------------------|
    | [0, width)     | live slots in order of position, among dead ones (pads, duplicates, rejected) |
    | [width, …)     | not written yet                                                     |

    A query sees the live slots of its row up to its own position, wherever they are (INV-3). Holes cost memory and
    attention; when the placement says so, the live slots are gathered into left-padded form.
    """

    placement: MaskedPlacement

    _columns: list[list[int]]  # per row, the column of each cached position
    _slot_position: Tensor  # [batch, columns]: position that a slot holds, -1 when it is dead
    _lengths: Tensor  # [batch, 2]: seq_len and num_cached at the start of the round
    _round_start: int  # first column of the round in flight
    _first_offset: int | None  # offset of its first block

    def begin(self, rows: Seq[RowState], span: int) -> None:
        """As in every layout; then note where the round starts."""
        super().begin(rows, span)
        self._round_start, self._first_offset = self.width, None
        self._lengths = torch.tensor([[row.seq_len, row.num_cached] for row in rows], device=self.shape.device)

    def carry_out(self, move: Move) -> None:
        """Bring the live slots into left-padded form."""
        if move.kind == "compact":
            self.gather_batch(self.batch, self._live_slots(move))
        else:
            super().carry_out(move)
        self._columns = [list(range(pads, self.width)) for pads in move.shifts]
        device = self.shape.device
        pads, cached = torch.tensor(
            [[n, row.num_cached] for n, row in zip(move.shifts, self.rows, strict=True)], device=device
        ).unbind(dim=1)
        position = kernels.left_padded_position(torch.arange(move.columns, device=device), pads[:, None])
        self._slot_position = kernels.masked_slot_position(position, torch.zeros_like(position), cached[:, None])

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Append q columns; entries of duplicates and pads are dead from the start."""
        if self._first_offset is None:
            self._first_offset = offset
        start, stop = self.width, self.width + tokens.shape[1]
        self.placement.append(tokens.shape[1])
        position = self._lengths[:, :1] + torch.arange(offset, offset + tokens.shape[1], device=tokens.device)
        claimed = kernels.masked_slot_position(position, self._lengths[:, 1:], position + 1)
        self._slot_position[:, start:stop] = claimed

        tags = None
        if self.batch.tags is not None:
            self.batch.tags[:, start:stop] = tag_block(self.rows, position, tokens, claimed >= 0)
            tags = self.batch.tags[:, :stop]
        position_ids, mask = position.clamp(0, self.max_positions - 1), self._mask(position, start)
        slots = self._slot_position[:, :stop].clamp(min=0)
        return Block(tokens, position_ids, mask, self.batch.appending(start, stop), tags, slots=slots)

    def commit(self, num_cached: Seq[int]) -> None:
        """Mark the slots of rejected tokens as dead."""
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

    def _mask(self, position: Int[Tensor, "batch q"], start: int) -> Tensor:
        visible = kernels.visible_by_position(self._slot_position[:, None, : self.width], position[:, :, None])
        columns = torch.arange(self.width, device=position.device)
        itself = (position < 0)[:, :, None] & (columns == columns[start:, None])
        return (visible | itself)[:, None]  # a pad sees itself, so that its softmax is defined

    def _live_slots(self, move: Move) -> Int[Tensor, "rows columns"]:
        """Flat slots of each row's cached positions after its pads; pads and slack read the row's first slot."""
        slack = [0] * (move.columns - self.width)
        rows = [[0] * pads + columns + slack for pads, columns in zip(move.shifts, self._columns, strict=True)]
        first = torch.arange(len(rows), device=self.shape.device)[:, None] * self.batch.columns
        return first + torch.tensor(rows, device=self.shape.device)
