"""A rectangle in addition to the pool: what the left-padded and the masked layouts share."""

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.layouts.base import Layout
from refimpl.layouts.store import Block, KVShape, KVStore
from refimpl.placement import Move, Placement, PoolSize


class WorkingLayout(Layout):
    """Rows of the current round live in `batch`, a rectangle whose columns grow to the right.

    When the members change, what `batch` holds beyond the pool is written back (`flush`) and the new members are
    gathered from the pool. Committed K/V never change, so nothing is written back twice. Whatever a gather reads, the
    pool or the batch itself, it writes to the buffer that the batch is not in.
    """

    batch: KVStore

    def __init__(self, shape: KVShape, placement: Placement, size: PoolSize, **options: Any):
        super().__init__(shape, placement, size, **options)
        self._buffer, self._spare = (torch.empty(0, dtype=shape.dtype, device=shape.device) for _ in range(2))

    def with_pooled(self, block: Block, offset: int) -> Block:
        """It is not in the pool."""
        return block

    def carry_out(self, move: Move) -> None:
        """Bring column c - shift of each row to column c of a new rectangle."""
        device = self.shape.device
        columns, shift = torch.arange(move.columns, device=device), torch.tensor(move.shifts, device=device)[:, None]
        if move.kind == "load":  # a position is its column in the pool
            source = kernels.left_padded_position(columns, shift)
            self.gather_batch(self.pool, self._slots(self.pool, [row.slot for row in self.rows], source))
        else:
            source = kernels.realign_source(columns, shift)
            self.gather_batch(self.batch, self._slots(self.batch, range(len(self.rows)), source))

    def _slots(self, store: KVStore, rows: Iterable[int], columns: Int[Tensor, "n m"]) -> Int[Tensor, "n m"]:
        """Flat slots of each row's columns; columns outside of the row read any of its slots."""
        first = torch.tensor(list(rows), device=columns.device)[:, None] * store.columns
        return first + columns.clamp(0, store.columns - 1)

    def gather_batch(self, source: KVStore, slots: Int[Tensor, "rows columns"]) -> None:
        """Rebuild the batch from flat slots of the pool or of itself."""
        self._buffer, self._spare = self._spare, self._buffer
        per_token = self.shape.elements_per_token
        if self._buffer.numel() < slots.numel() * per_token:
            most = slots.shape[0] * max(slots.shape[1], self.placement.batch_columns(self.pool.columns))
            self._buffer = self._buffer.new_empty(0)  # freed before more is allocated
            self._buffer = self._buffer.new_empty(most * per_token)
        self.batch = source.gather(slots, self._buffer)

    def commit(self, num_cached: Seq[int]) -> None:
        """Note what the batch holds of each row."""
        self.rows = tuple(row._replace(num_cached=n) for row, n in zip(self.rows, num_cached, strict=True))

    @abstractmethod
    def column_of(self, row: int, position: int) -> int:
        """Column of the batch that holds a cached position."""

    def read(self, row: int) -> Tensor:
        """Columns of the row's cached positions."""
        columns = [self.column_of(row, position) for position in range(self.rows[row].num_cached)]
        return self.batch.data[:, :, :, row, columns]

    def to_pool(self) -> None:
        """Write back, and leave the rectangle."""
        self.flush()
        self.rows = ()
        self.placement.forget()

    def flush(self) -> None:
        """Write back to the pool what it does not hold yet, in one copy."""
        source: list[int] = []
        target: list[int] = []
        for i, row in enumerate(self.rows):
            if not row.finished:
                missing = range(self.stored[row.slot], row.num_cached)
                source += [i * self.batch.columns + self.column_of(i, position) for position in missing]
                target += [row.slot * self.pool.columns + position for position in missing]
                self.stored[row.slot] = row.num_cached
        if source:
            device = self.shape.device
            self.pool.copy_slots(self.batch, torch.tensor(source, device=device), torch.tensor(target, device=device))
            self.num_moves += 1
