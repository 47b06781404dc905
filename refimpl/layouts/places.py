"""Where the rows of a pass are in the pool: pool rows, or blocks of a table."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.layouts.store import GatherPlan, KVStore


@runtime_checkable
class Places(Protocol):
    """Finds the slots of rows in a store, from tensors only."""

    @property
    def table(self) -> Int[Tensor, "batch pages"]:
        """Rows of the store with each row's positions, in order."""

    def slots(self, position: Int[Tensor, "batch q"]) -> Int[Tensor, " n"]:
        """Flat slots of positions, row-major; scratch where a position is below 0."""

    def view(self, layer: int, width: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the first `width` positions ``[batch, kv_heads, width, dim]``."""

    def tags(self, width: int) -> Int[Tensor, "batch width 3"]:
        """Provenance of the same slots, where it is tracked."""


@dataclass(frozen=True, slots=True)
class PoolRows:
    """Position p in column p of a pool row, whose last column is scratch.

    Attributes:
        store: the pool.
        index, where: the same pool rows; as a slice they are viewed, as a tensor copied.
    """

    store: KVStore
    index: Int[Tensor, " batch"]
    where: slice | Tensor

    @property
    def table(self) -> Int[Tensor, "batch 1"]:
        """The pool row."""
        return self.index[:, None]

    def slots(self, position: Int[Tensor, "batch q"]) -> Int[Tensor, " n"]:
        """Row · columns + column."""
        column = torch.where(position < 0, self.store.columns - 1, position)
        return (self.index[:, None] * self.store.columns + column).flatten()

    def view(self, layer: int, width: int) -> tuple[Tensor, Tensor]:
        """Columns [0, width)."""
        return self.store.view(layer, width, self.where)

    def tags(self, width: int) -> Int[Tensor, "batch width 3"]:
        """Columns [0, width)."""
        assert self.store.tags is not None
        return self.store.tags[self.index, :width]


@dataclass(frozen=True)
class BlockRows:
    """Position p in block ``table[row, p // block_size]``; the last block of the store is scratch.

    Attributes:
        store: one row a block, one column a token of it.
        table: blocks of each row in order of position, then scratch.
        cached: positions of each row that are stored already, and not written again: others may read them.
    """

    store: KVStore
    table: Int[Tensor, "batch blocks"]
    cached: Int[Tensor, "batch 1"]

    def slots(self, position: Int[Tensor, "batch q"]) -> Int[Tensor, " n"]:
        """Slots of the row's own blocks; scratch beyond them, and for what is stored already."""
        size, scratch, count = self.store.columns, self.store.rows - 1, self.table.shape[1]
        block = self.table.gather(1, (position // size).clamp(0, count - 1))
        block = torch.where((position < self.cached) | (position >= count * size), scratch, block)
        return kernels.paged_slot(block, position, size).flatten()

    def view(self, layer: int, width: int) -> tuple[Tensor, Tensor]:
        """Whole blocks side by side, cut at the width."""
        return self.store.view_blocks(layer, self._gather_plan, width)

    @cached_property
    def _gather_plan(self) -> GatherPlan:
        """The same for all layers."""
        return self.store.gather_plan(self.table)

    def tags(self, width: int) -> Int[Tensor, "batch width 3"]:
        """As the view."""
        assert self.store.tags is not None
        return self.store.tags[self.table].flatten(1, 2)[:, :width]
