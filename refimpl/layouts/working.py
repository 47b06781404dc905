"""A batch of its own beside the pool: what the left-padded and the masked layouts share."""

from abc import abstractmethod
from collections.abc import Sequence as Seq
from contextlib import nullcontext

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.kvstore import KVShape, KVStore, RowState
from refimpl.layouts.base import Layout
from refimpl.timing import StageTimer

SLACK_COLUMNS = 32  # columns kept free when the batch is laid out anew


class WorkingLayout(Layout):
    """Rows of the current round live in `batch`, a rectangle whose columns grow to the right.

    When the members change, what `batch` holds beyond the pool is written back (`flush`) and the new members are
    gathered from the pool. Committed K/V never change, so nothing is written back twice. Whatever a gather reads, the
    pool or the batch itself, it writes to the buffer that the batch does not stand in.

    Attributes:
        write_back_timer: charged with what `flush` takes, as ``realign``; None where nobody asks.
    """

    write_back_timer: StageTimer | None = None

    batch: KVStore

    def __init__(self, shape: KVShape, rows: int, columns: int, *, max_positions: int, tagged: bool):
        super().__init__(shape, rows, columns, max_positions=max_positions, tagged=tagged)
        self._buffer, self._spare = (torch.empty(0, dtype=shape.dtype, device=shape.device) for _ in range(2))

    @classmethod
    def num_slots(cls, rows: int, batch_rows: int, columns: int) -> int:
        """The pool's, and those of both buffers."""
        return super().num_slots(rows, batch_rows, columns) + 2 * batch_rows * cls.batch_columns(columns)

    @classmethod
    def batch_columns(cls, columns: int) -> int:
        """Columns of a batch of rows as long as pool rows of `columns` can hold."""
        return columns + SLACK_COLUMNS

    def begin(self, rows: Seq[RowState], span: int) -> None:
        """Lay the members out, from the batch where they are in it already, else from the pool."""
        if self.has_members(rows):
            self.rows = tuple(rows)
            self.realign(span)
        else:
            self.flush()
            self.rows = tuple(rows)
            self.load(span)

    def has_members(self, rows: Seq[RowState]) -> bool:
        """Whether the batch holds these very sequences in this order."""
        return [row.sequence for row in rows] == [row.sequence for row in self.rows]

    @abstractmethod
    def realign(self, span: int) -> None:
        """Adapt the batch to the rows' new lengths."""

    @abstractmethod
    def load(self, span: int) -> None:
        """Gather the rows from the pool."""

    def gather_batch(self, source: KVStore, slots: Int[Tensor, "rows columns"]) -> None:
        """Make the batch anew from flat slots of the pool or of itself."""
        self._buffer, self._spare = self._spare, self._buffer
        per_token = self.shape.elements_per_token
        if self._buffer.numel() < slots.numel() * per_token:
            most = slots.shape[0] * max(slots.shape[1], self.batch_columns(self.pool.columns))
            self._buffer = self._buffer.new_empty(0)  # let go before more is asked for
            self._buffer = self._buffer.new_empty(most * per_token)
        self.batch = source.gather(slots, self._buffer)
        self.num_moves += 1

    @abstractmethod
    def column_of(self, row: int, position: int) -> int:
        """Column of the batch that holds a cached position."""

    def commit(self, num_cached: Seq[int]) -> None:
        """Note the new lengths; the batch is realigned when the next round begins."""
        self.rows = tuple(row._replace(num_cached=n) for row, n in zip(self.rows, num_cached, strict=True))

    def read(self, row: int) -> Tensor:
        """Columns of the row's cached positions."""
        columns = [self.column_of(row, position) for position in range(self.rows[row].num_cached)]
        return self.batch.data[:, :, :, row, columns]

    def flush(self) -> None:
        """Write back to the pool what it does not hold yet, in one copy."""
        with self.write_back_timer.stage("realign") if self.write_back_timer else nullcontext():
            self._write_back()

    def _write_back(self) -> None:
        source: list[int] = []
        target: list[int] = []
        for i, row in enumerate(self.rows):
            if row.live:
                missing = range(self.stored[row.slot], row.num_cached)
                source += [i * self.batch.columns + self.column_of(i, position) for position in missing]
                target += [row.slot * self.pool.columns + position for position in missing]
                self.stored[row.slot] = row.num_cached
        if source:
            device = self.shape.device
            self.pool.copy_slots(self.batch, torch.tensor(source, device=device), torch.tensor(target, device=device))
            self.num_moves += 1
