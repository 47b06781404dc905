"""Left-padded rows that end at a common column: the rectangle that most batch code assumes."""

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl import kernels
from refimpl.kvstore import Block
from refimpl.layouts.base import tag_block
from refimpl.layouts.working import SLACK_COLUMNS, WorkingLayout


class RealignedLayout(WorkingLayout):
    """Unpad, append, repad: when rows have kept different numbers of tokens, each is shifted so that all end together.

    | columns                          | hold                                           |
    |----------------------------------|------------------------------------------------|
    | [0, num_pad)                     | pads                                           |
    | [num_pad, num_pad + num_cached)  | the row's cached tokens, position = column - num_pad |
    | [num_pad + num_cached, width)    | tokens to be fed next                          |
    | [width, …)                       | drafts of the round in flight, else stale      |

    with ``num_pad[i] + seq_len[i] == width`` for every live row (INV-1). A round in which every row keeps the same
    number of tokens moves nothing.
    """

    def load(self, span: int) -> None:
        """Gather the rows from the pool, position p to column num_pad + p."""
        self._set_width()
        self._pads = [kernels.num_pad(self._width, row.seq_len) for row in self.rows]
        pads = self._pads_tensor()
        position = kernels.left_padded_position(self._fresh_columns(span), pads).clamp(0, self.scratch_column)
        start = torch.tensor([[row.slot] for row in self.rows], device=self.shape.device) * self.pool.columns
        self.gather_batch(self.pool, start + position)

    def realign(self, span: int) -> None:
        """Shift each row to end at the new width: one fused gather, or nothing when every shift is 0."""
        self._set_width()
        pads = [
            kernels.num_pad(self._width, row.seq_len) if row.live else old
            for row, old in zip(self.rows, self._pads, strict=True)
        ]
        shifts = [kernels.realign_shift(old, new) for old, new in zip(self._pads, pads, strict=True)]
        self._pads = pads
        if any(shifts) or self._width + span > self.batch.columns:
            shift = torch.tensor(shifts, device=self.shape.device)[:, None]
            source = kernels.realign_source(self._fresh_columns(span), shift).clamp(0, self.batch.columns - 1)
            start = torch.arange(len(self.rows), device=self.shape.device)[:, None] * self.batch.columns
            self.gather_batch(self.batch, start + source)

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Write at columns [width + offset, width + offset + q) of every row."""
        start, stop = self._width + offset, self._width + offset + tokens.shape[1]
        pads = self._pads_tensor()
        columns = torch.arange(stop, device=tokens.device)
        position = kernels.left_padded_position(columns[start:], pads)

        def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.batch.write_columns(layer, start, keys, values)
            return self.batch.view(layer, stop)

        tags = None
        if self.batch.tags is not None:
            self.batch.tags[:, start:stop] = tag_block(self.rows, position, tokens, position >= 0)
            tags = self.batch.tags[:, :stop]
        return Block(tokens, position.clamp(0, self.max_positions - 1), self._mask(columns, start, pads), append, tags)

    def column_of(self, row: int, position: int) -> int:
        """Pads first, then position by position."""
        return kernels.left_padded_column(position, self._pads[row])

    @property
    def width(self) -> int:
        """Common end of the rows."""
        return self._width

    @property
    def num_pad(self) -> list[int]:
        """Left pads per row."""
        return self._pads

    def _mask(self, columns: Int[Tensor, " width"], start: int, pads: Int[Tensor, "batch 1"]) -> Tensor:
        query = columns[start:, None]
        visible = kernels.visible_left_padded(columns, query, pads[:, :, None])
        return (visible | (columns == query))[:, None]  # a pad sees itself, so that its softmax is defined

    def _set_width(self) -> None:
        self._width = max(row.seq_len for row in self.rows if row.live)

    def _pads_tensor(self) -> Int[Tensor, "batch 1"]:
        return torch.tensor(self._pads, device=self.shape.device)[:, None]

    def _fresh_columns(self, span: int) -> Int[Tensor, " columns"]:
        return torch.arange(self._width + span + SLACK_COLUMNS, device=self.shape.device)


class RollbackLayout(RealignedLayout):
    """Every unfinished row commits the batch minimum, so rows never become ragged and nothing is realigned."""

    commits_minimum = True
