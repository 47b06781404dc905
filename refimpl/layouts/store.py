"""Key/value storage and the block of queries that a forward pass works on: what layouts and models share."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from refimpl.layouts.spans import FULL, Span

KEYS, VALUES = 0, -1  # planes of storage, which may be the same one
NUM_TAGS = 3  # sequence, position, token
ALL_ROWS = slice(None)


class StatePart(NamedTuple):
    """One tensor of a recurrent state, a row's.

    Attributes:
        layer: of the model.
        name: which of the layer's states.
        number: of several of that name.
        size: its shape.
    """

    layer: int
    name: str
    number: int
    size: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one model caches per token, and per row.

    Attributes:
        key_dim: width of a head's keys.
        value_dim: width of a head's values; None where it is `key_dim`.
        spans: how far back each layer looks; empty where all look back to the beginning.
        states: what layers without keys and values keep of a row.
        float32_softmax: whether attention is float32 in any format, so that float64 does not tell more than that.
    """

    num_layers: int
    num_kv_heads: int
    key_dim: int
    dtype: torch.dtype
    device: torch.device
    value_dim: int | None = None
    spans: tuple[Span, ...] = ()
    states: tuple[StatePart, ...] = ()
    float32_softmax: bool = False

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row's recurrent states."""
        return sum(math.prod(part.size) * part.dtype.itemsize for part in self.states)

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.key_dim if self.value_dim is None else self.value_dim

    @property
    def planes(self) -> int:
        """2 where keys and values have a plane of storage each; 1 where their widths differ: side by side."""
        return 2 if self.value_width == self.key_dim else 1

    @property
    def plane_dim(self) -> int:
        """Numbers that a plane holds for a head of a token."""
        return (self.key_dim + self.value_width) // self.planes

    @property
    def elements_per_token(self) -> int:
        """Numbers that one token's keys and values take over all layers."""
        return self.num_layers * self.num_kv_heads * (self.key_dim + self.value_width)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the same."""
        return self.elements_per_token * self.dtype.itemsize

    def joined(
        self, keys: Float[Tensor, "heads n key_dim"], values: Float[Tensor, "heads n value_dim"]
    ) -> Float[Tensor, "planes heads n plane_dim"]:
        """A layer's keys and values as they are stored."""
        return torch.stack([keys, values]) if self.planes == 2 else torch.cat([keys, values], dim=-1)[None]


class KVStore:
    """Keys and values of `rows` rows of `columns` slots, all layers in one tensor.

    Heads come before rows so that (row, column) flattens to one axis: moving any set of slots is a single
    `index_select`, writing them a single `index_copy_`, for any number of layers.

    Attributes:
        data: ``[layers, planes, kv_heads, rows, columns, plane_dim]``, keys in front of values along the planes, or
            along the last axis where there is one plane
        tags: ``[rows, columns, 3]``: sequence, position and token each slot was written for; moved by the same
            indices as the data. None unless provenance is tracked (check level ``device`` and above).
    """

    def __init__(self, shape: KVShape, data: Tensor, tags: Tensor | None):
        self.shape, self.data, self.tags = shape, data, tags
        self.rows, self.columns = data.shape[3], data.shape[4]
        keys, values = data[:, KEYS, ..., : shape.key_dim], data[:, VALUES, ..., shape.plane_dim - shape.value_width :]
        layers = list(zip(keys, values, strict=True))
        self._by_slot = [(keys.flatten(1, 2), values.flatten(1, 2)) for keys, values in layers]
        self._by_row = [(keys.transpose(0, 1), values.transpose(0, 1)) for keys, values in layers]
        self._of_heads = data.flatten(1, 3).flatten(2)  # of each layer: rows of every head of every plane
        self._first_rows = torch.arange(0, self._of_heads.shape[1], self.rows, device=data.device)[:, None]

    @classmethod
    def empty(cls, shape: KVShape, rows: int, columns: int, *, tagged: bool) -> "KVStore":
        """Allocate once. Slots hold zeros, which no query sees before they are written."""
        size = (shape.num_layers, shape.planes, shape.num_kv_heads, rows, columns, shape.plane_dim)
        data = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        tags = torch.full((rows, columns, NUM_TAGS), -1, device=shape.device) if tagged else None
        return cls(shape, data, tags)

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values."""
        return self.data.numel() * self.data.element_size()

    def gather(self, slots: Int[Tensor, "rows columns"], memory: Tensor) -> "KVStore":
        """Copy flat slots (row · columns + column) into a store of that shape in `memory`: one fused gather."""
        data = memory[: slots.numel() * self.shape.elements_per_token].view(
            *self.data.shape[:3], *slots.shape, self.shape.plane_dim
        )
        flat = slots.reshape(-1)
        torch.index_select(self.data.flatten(3, 4), 3, flat, out=data.flatten(3, 4))
        tags = None if self.tags is None else self.tags.flatten(0, 1).index_select(0, flat).view(*slots.shape, -1)
        return KVStore(self.shape, data, tags)

    def copy_slots(self, source: "KVStore", source_slots: Int[Tensor, " n"], slots: Int[Tensor, " n"]) -> None:
        """Copy flat slots of `source` into flat slots of this store."""
        moved = source.data.flatten(3, 4).index_select(3, source_slots)
        flat = (*self.data.shape[:3], self.rows * self.columns, self.shape.plane_dim)
        self.data.view(flat).index_copy_(3, slots, moved)
        if self.tags is not None and source.tags is not None:
            self.tags.view(-1, NUM_TAGS).index_copy_(0, slots, source.tags.flatten(0, 1).index_select(0, source_slots))

    def write_slots(
        self,
        layer: int,
        slots: Int[Tensor, " n"],
        keys: Float[Tensor, "batch heads q key_dim"],
        values: Float[Tensor, "batch heads q value_dim"],
    ) -> None:
        """Write a layer's entries of ``[batch, q]`` tokens to flat slots, row-major."""
        for store, entries in zip(self._by_slot[layer], (keys, values), strict=True):
            store.index_copy_(1, slots, entries.transpose(0, 1).flatten(1, 2))

    def write_columns(
        self,
        layer: int,
        start: int,
        keys: Float[Tensor, "batch heads q key_dim"],
        values: Float[Tensor, "batch heads q value_dim"],
    ) -> None:
        """Write a layer's entries of ``[batch, q]`` tokens to columns start … start+q-1 of every row."""
        stop = start + keys.shape[2]
        for store, entries in zip(self._by_row[layer], (keys, values), strict=True):
            store[:, :, start:stop] = entries

    def appending(self, start: int, width: int) -> "Append":
        """Of a block that writes columns from `start` on and sees the first `width`."""

        def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.write_columns(layer, start, keys, values)
            return self.view(layer, width)

        return append

    def view(self, layer: int, width: int, rows: slice | Tensor = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values ``[rows, kv_heads, width, key_dim or value_dim]`` of the first `width` columns.

        No copy is made unless `rows` is a tensor.
        """
        keys, values = (entries[:, :, :width] for entries in self._by_row[layer])
        if isinstance(rows, slice):
            return keys[rows], values[rows]
        return keys.index_select(0, rows), values.index_select(0, rows)

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all rows ``[rows, columns, kv_heads, key_dim or value_dim]``, without a copy."""
        keys, values = self._by_row[layer]
        return keys.transpose(1, 2), values.transpose(1, 2)

    def gather_plan(self, table: Int[Tensor, "batch blocks"]) -> "GatherPlan":
        """How rows whose columns are the blocks of a table, one after the other, are copied from any layer."""
        rows = (table[:, None] + self._first_rows).flatten()
        (batch, blocks), (planes, heads) = table.shape, self.data.shape[1:3]
        memory = self.data.new_empty(batch, planes, heads, blocks * self.columns, self.shape.plane_dim)
        return GatherPlan(rows, memory)

    def view_blocks(self, layer: int, plan: "GatherPlan", width: int) -> tuple[Tensor, Tensor]:
        """As `view`, of the rows of a plan: a copy, until the plan is used again."""
        gathered = plan.memory
        torch.index_select(self._of_heads[layer], 0, plan.rows, out=gathered.view(len(plan.rows), -1))
        keys = gathered[:, KEYS, ..., : self.shape.key_dim]
        values = gathered[:, VALUES, ..., -self.shape.value_width :]
        return keys[:, :, :width], values[:, :, :width]


class GatherPlan(NamedTuple):
    """Blocks to copy, those of a row next to each other.

    One layer after the other is copied to the same memory, which stays in a processor's cache, and by the core that
    attends the row.

    Attributes:
        rows: of every head of every plane of a layer, row by row.
        memory: that they are copied to.
    """

    rows: Int[Tensor, " n"]
    memory: Float[Tensor, "batch planes heads columns plane_dim"]


@dataclass(frozen=True, slots=True)
class PooledRow:
    """A row of a pass, and where a pool holds it.

    Attributes:
        pages: rows of the store with its positions, in order: a pool row, or the blocks of its table.
        count: tokens that it feeds, the last of its own.
        length: its tokens, those included.
    """

    pages: Seq[int]
    count: int
    length: int


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows of a pass whose queries see the row's positions up to their own and nothing else, so that no mask is needed.

    Attributes:
        store: the pool.
        rows: in the order of their tokens.
    """

    store: KVStore
    rows: list[PooledRow]

    @classmethod
    def join(cls, parts: Seq["PooledRows | None"]) -> "PooledRows | None":
        """The rows of all parts, which are in one pool; None if any part needs a mask."""
        pooled = [part for part in parts if part]
        whole = len(pooled) == len(parts)
        return cls(pooled[0].store, [row for part in pooled for row in part.rows]) if whole else None


@dataclass(frozen=True, slots=True)
class InPool:
    """Where the tokens of a block are in a pool. They see their row's positions up to their own, and nothing else.

    All tensors are contiguous, as kernels read them.

    Attributes:
        store: the pool.
        position: of each token in its row; one below 0 sees nothing.
        slots: flat slot that each token's K/V go to, row-major.
        table: rows of the store with each row's positions, in order.
    """

    store: KVStore
    position: Int[Tensor, "batch q"]
    slots: Int[Tensor, " n"]
    table: Int[Tensor, "batch pages"]


Append = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
AppendOf = Callable[[Tensor], Append]


@dataclass(frozen=True, slots=True)
class NoteHidden:
    """Reads hidden states of a pass.

    Attributes:
        note: called with those of all tokens ``[batch, q, hidden]``.
        layers: after how many layers each is read, in order, side by side; empty for the final norm's result.
    """

    note: Callable[[Tensor], None]
    layers: Seq[int] = ()


LookUp = Callable[[Seq[int]], PooledRows | None]


@dataclass(frozen=True, slots=True)
class Block:
    """``[batch, q]`` tokens to feed, their positions, what they see, and where their K/V go.

    Attributes:
        tokens: token ids ``[batch, q]``; arbitrary where a row has nothing to feed.
        position_ids: index of each token in its row ``[batch, q]``, clamped to the model's range.
        mask: ``[batch, 1, q, width]``, True where the query sees the slot; of width 0 for a model that needs none.
        append: called once per layer with that layer's keys and values of the block
            ``[batch, kv_heads, q, key_dim or value_dim]``; returns all of the layer's, ``[batch, kv_heads, width, …]``,
            which may be in the memory that the next layer's will be in.
        tags: provenance of the `width` slots after the write ``[batch, width, 3]``, None when not tracked.
        members: rows that belong to the members of the round, in their order ``[n]``; None where all rows do.
        note_hidden: who reads its hidden states; None where nobody asks.
        rows_in_pool: called with the tokens that each row feeds, its first; returns the rows that feed any. It
            returns None, or is None, where the mask says more than the pool, or is checked.
        append_of: called with places of tokens in the block, row by row; returns what appends the entries of these
            alone, ``[1, kv_heads, tokens, …]``. None where all entries of the block are written.
        in_pool: says the same as mask and append, for kernels that read and write the pool; None where the mask says
            more, or is checked.
        states: recurrent states of the rows (`layouts.states.PassStates`); None for a model without any.
        slots: position that each slot holds where a query sees it, and any other number that is not negative.
    """

    tokens: Int[Tensor, "batch q"]
    position_ids: Int[Tensor, "batch q"]
    mask: Bool[Tensor, "batch 1 q width"]
    append: Append
    tags: Int[Tensor, "batch width 3"] | None = None
    members: Int[Tensor, " n"] | None = None
    note_hidden: NoteHidden | None = None
    rows_in_pool: LookUp | None = None
    append_of: AppendOf | None = None
    in_pool: InPool | None = None
    slots: Int[Tensor, "rows width"] | None = None
    states: Any = None

    def seen_by(self, span: Span) -> Bool[Tensor, "batch 1 q width"]:
        """The mask of layers that look back as far as `span` says."""
        if span == FULL:
            return self.mask
        assert self.slots is not None
        return self.mask & span.reaches(self.slots[:, None, None], self.position_ids[:, None, :, None])

    def rows_of_members(self, values: Shaped[Tensor, "rows *rest"]) -> Shaped[Tensor, "members *rest"]:
        """Of values that have a row for each of the block's, those of the members."""
        return values if self.members is None else values[self.members]

    def of_members(self) -> "Block":
        """The same block without its idle rows, to look at."""
        if self.members is None:
            return self
        tags = None if self.tags is None else self.tags[self.members]
        rows = (self.tokens[self.members], self.position_ids[self.members], self.mask[self.members])
        return Block(*rows, self.append, tags, slots=self.slots)


class RowState(NamedTuple):
    """What a layout knows about a row at the start of a round; all integers are on the host.

    Attributes:
        slot: row of the pool that belongs to the sequence.
        sequence: index of the sequence, for provenance.
        seq_len: real tokens.
        num_cached: leading tokens whose K/V this model holds.
        finished: True for a row that a static batch still carries.
        blocks: that hold its K/V, in order of position, the pool's scratch for those that were given back; empty where
            the layout has none.
    """

    slot: int
    sequence: int
    seq_len: int
    num_cached: int
    finished: bool = False
    blocks: Seq[int] = ()


def uncached(rows: Seq[RowState], start: int, stop: int) -> list[tuple[int, int, int]]:
    """What rows have not cached of positions [start, stop): (row, first, end), without rows that miss nothing there."""
    spans = [(i, max(start, row.num_cached), min(row.seq_len, stop)) for i, row in enumerate(rows)]
    return [(i, first, end) for i, first, end in spans if first < end]
