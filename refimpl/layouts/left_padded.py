"""Left-padded rows that end at a common column: the rectangle that most batch code assumes."""

from collections.abc import Sequence as Seq

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.layouts.base import tag_block
from refimpl.layouts.store import Block
from refimpl.layouts.working import WorkingLayout
from refimpl.placement import RealignedPlacement


class LeftPaddedLayout(WorkingLayout):
    """Unpad, append, repad: when rows have kept different numbers of tokens, each is shifted so that all end together.

    | columns                          | hold                                           |
    |----------------------------------|------------------------------------------------|
    | [0, num_pad)                     | pads                                           |
    | [num_pad, num_pad + num_cached)  | the row's cached tokens, position = column - num_pad |
    | [num_pad + num_cached, width)    | tokens to be fed next                          |
    | [width, …)                       | drafts of the round in flight, else stale      |

    with ``num_pad[i] + seq_len[i] == width`` for every live row (INV-1). Serves `realigned` and `rollback`, whose
    placements differ in what a row commits.
    """

    placement: RealignedPlacement

    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Write at columns [width + offset, width + offset + q) of every row."""
        start, stop = self.width + offset, self.width + offset + tokens.shape[1]
        pads = torch.tensor(self.num_pad, device=self.shape.device)[:, None]
        columns = torch.arange(stop, device=tokens.device)
        position = kernels.left_padded_position(columns[start:], pads)
        slots = kernels.left_padded_position(columns, pads).clamp(min=0)

        tags = None
        if self.batch.tags is not None:
            self.batch.tags[:, start:stop] = tag_block(self.rows, position, tokens, position >= 0)
            tags = self.batch.tags[:, :stop]
        position_ids, mask = position.clamp(0, self.max_positions - 1), self._mask(columns, start, pads)
        return Block(tokens, position_ids, mask, self.batch.appending(start, stop), tags, slots=slots)

    def column_of(self, row: int, position: int) -> int:
        """Pads first, then position by position."""
        return kernels.left_padded_column(position, self.num_pad[row])

    @property
    def num_pad(self) -> Seq[int]:
        """Left pads per row."""
        return self.placement.num_pad

    def _mask(self, columns: Int[Tensor, " width"], start: int, pads: Int[Tensor, "batch 1"]) -> Tensor:
        query = columns[start:, None]
        visible = kernels.visible_left_padded(columns, query, pads[:, :, None])
        return (visible | (columns == query))[:, None]  # a pad sees itself, so that its softmax is defined
