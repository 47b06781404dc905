"""The protocol of a layout, and the pool that stores every sequence's K/V between rounds."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from refimpl.core import kernels
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.places import Places, PoolRows
from refimpl.layouts.store import (
    NUM_TAGS,
    Append,
    Block,
    InPool,
    KVShape,
    KVStore,
    PooledRow,
    PooledRows,
    RowState,
    uncached,
)
from refimpl.placement import Move, Placement, PoolSize, are_neighbours


class Layout(ABC):
    """Where one model's K/V are stored, for the rows of a round and for waiting sequences.

    Between rounds the K/V of a waiting sequence are in `pool`, one row a sequence, position p in column p; in blocks,
    where the layout is paged. The cycle of a round is ``begin(rows, span)``, ``block(...)`` for every forward pass,
    ``commit(num_cached)``. What moves, and when, is decided by the placement, in integers; the layout does it.

    | columns of a pool row      | hold                                                       |
    |----------------------------|------------------------------------------------------------|
    | [0, num_cached)            | the row's real tokens, position = column                   |
    | [num_cached, columns - 1)  | stale entries, visible to no query                         |
    | [columns - 1, columns)     | scratch, for entries without a position                   |

    Args:
        shape: what the model caches per token.
        placement: decides what moves.
        size: of the pool: rows for the sequences admitted at a time, each with a scratch column at the end.
        max_positions: number of positions that the model knows.
        tagged: track which token each slot was written for.
        block_rows: rows of every pool block, idle ones included; None for as many as it feeds.
    """

    def __init__(
        self,
        shape: KVShape,
        placement: Placement,
        size: PoolSize,
        *,
        max_positions: int,
        tagged: bool,
        block_rows: int | None = None,
    ):
        self.shape, self.placement = shape, placement
        self.max_positions, self.block_rows = max_positions, block_rows
        self.num_rows, self.columns = size.rows, size.columns
        self.pool = KVStore.empty(shape, *placement.store_shape(size), tagged=tagged)
        self.rows: tuple[RowState, ...] = ()
        self.stored: dict[int, int] = {}  # slot -> leading tokens that the pool holds
        self.num_moves = 0  # fused gathers so far

    def begin(self, rows: Seq[RowState], span: int) -> None:
        """Make the members of a round ready for `block`, moving K/V if the placement says so.

        `span` is the number of tokens a row that the blocks of this round will feed, all together.
        """
        if not self.placement.has_members(rows):
            self.flush()
        move = self.placement.begin(rows, span)
        self.rows = tuple(rows)
        if move:
            self.carry_out(move)
            self.num_moves += 1

    def flush(self) -> None:  # noqa: B027 (there is only the pool)
        """Write back to the pool what it does not hold yet."""

    def to_pool(self) -> None:  # noqa: B027 (there is only the pool)
        """Let the pool alone hold K/V, so that more can be cached there: the next round is gathered anew."""

    def carry_out(self, move: Move) -> None:
        """Gather the members' K/V into a new rectangle."""
        raise NotImplementedError(f"{type(self).__name__} moves nothing")

    @abstractmethod
    def block(self, tokens: Int[Tensor, "batch q"], offset: int) -> Block:
        """Feed the positions [seq_len + offset, seq_len + offset + q) of every row.

        `seq_len` is that of `begin`. Positions below a row's `num_cached` are recomputed, positions below 0 fed as
        padding. Blocks of one round follow each other without gaps.
        """

    def commit(self, num_cached: Seq[int]) -> None:  # noqa: B027 (what is written again needs no forgetting)
        """Keep the first `num_cached[i]` tokens of row i, forget the rest."""

    @abstractmethod
    def read(self, row: int) -> Tensor:
        """K/V of row `row` of the current round, in order of position ``[layers, 2, heads, num_cached, dim]``."""

    @property
    def block_size(self) -> int:
        """Tokens of a block of the pool; 0 where rows have no blocks."""
        return 0

    def num_freed(self, blocks: Seq[int]) -> int:
        """Leading positions of a row with these blocks that it has given back, as no later query sees them."""
        return 0

    @property
    def width(self) -> int:
        """Columns before the next block's first query."""
        return self.placement.width

    @property
    def num_pad(self) -> Seq[int] | None:
        """Left pads per row, for left-padded layouts; None for other layouts."""
        return None

    def release(self, slot: int) -> None:
        """Release a sequence; its pool row may go to another one, which is prefilled from the start."""
        self.rows = tuple(row._replace(finished=True) if row.slot == slot else row for row in self.rows)

    def prefill_block(self, rows: Seq[RowState], tokens: Int[Tensor, "batch q"], start: int) -> Block:
        """Write positions [start, start + q) of prompts straight into the pool.

        `seq_len` of each row is the number of prompt tokens to cache; entries beyond it are stale.
        """
        position, real = _prompt_positions(rows, tokens, start)
        return self.pool_block(rows, tokens, self.placed(position, real), real, start + tokens.shape[1])

    def placed(self, position: Int[Tensor, "batch q"], real: Tensor) -> Int[Tensor, "batch q"]:
        """Columns of a prompt's entries; entries that are not real go where no query sees them."""
        return position.clamp(max=self.columns - 1)

    def packed_prefill(self, rows: Seq[RowState], tokens: Int[Tensor, "batch q"], start: int) -> PackedBlock:
        """As `prefill_block`, with real tokens only, from `num_cached` on; rows that have none of them are left out."""
        position, real = _prompt_positions(rows, tokens, start)
        q = tokens.shape[1]
        places = self.places(rows, start + q)
        fed = uncached(rows, start, start + q)
        kept = [i * q + at - start for i, first, last in fed for at in range(first, last)]
        index = torch.tensor(kept, dtype=torch.long, device=tokens.device)
        slots = places.slots(torch.where(real, position, -1))[index]
        if self.pool.tags is not None:
            self.pool.tags.view(-1, NUM_TAGS)[slots] = tag_block(rows, position, tokens, real).flatten(0, 1)[index]
        counts = [last - first for _, first, last in fed]
        looks_back = any(first > 0 for _, first, _ in fed)
        views = [(self.places([rows[i]], last), last) for i, _, last in fed] if looks_back else []

        def write(layer: int, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
            self.pool.write_slots(layer, slots, keys, values)
            if not looks_back:  # a row sees what it has just computed
                return list(zip(keys.split(counts, dim=2), values.split(counts, dim=2), strict=True))
            return [places.view(layer, width) for places, width in views]

        pooled = self.rows_in_pool([(rows[i], last - first, last) for i, first, last in fed])
        return PackedBlock(tokens.flatten()[index][None], position.flatten()[index][None], counts, write, pooled=pooled)

    def end_prefill(self, rows: Seq[RowState]) -> None:
        """Note that the pool holds the first `seq_len` tokens of each of these prompts."""
        self.stored.update((row.slot, row.seq_len) for row in rows)

    def pool_block(
        self,
        rows: Seq[RowState],
        tokens: Int[Tensor, "batch q"],
        position: Int[Tensor, "batch q"],
        real: Tensor,
        width: int,
    ) -> Block:
        """Build a block whose entries go to the pool, position p to column p, and which sees `width` columns."""
        members = None
        if self.block_rows is not None:
            rows, members = self._with_idle_rows(rows, self.block_rows)
            tokens = _spread(tokens, members, len(rows), 0)
            position = _spread(position, members, len(rows), -1)
            real = _spread(real, members, len(rows), False)
            width = self.columns
        places = self.places(rows, width)
        block = self.slot_block(places, tokens, position, width)
        tags = None
        if self.pool.tags is not None:
            written = tag_block(rows, position, tokens, real)
            self.pool.tags.view(-1, NUM_TAGS)[places.slots(position)] = written.flatten(0, 1)
            tags = places.tags(width)
        return replace(block, tags=tags, members=members)

    def places(self, rows: Seq[RowState], width: int) -> Places:
        """Where these rows are in the pool, `width` columns of them."""
        slots = [row.slot for row in rows]
        index = torch.tensor(slots, device=self.shape.device)
        where = slice(slots[0], slots[0] + len(slots)) if are_neighbours(slots) else index
        return PoolRows(self.pool, index, where)

    def rows_in_pool(self, rows: Seq[tuple[RowState, int, int]]) -> PooledRows | None:
        """Rows with the tokens that they feed and those that they then have; None where provenance is tracked.

        What is checked is a mask, so passes that are checked are attended with one.
        """
        if self.pool.tags is not None:
            return None
        return PooledRows(self.pool, [PooledRow(self.pages(row), count, length) for row, count, length in rows])

    def pages(self, row: RowState) -> Seq[int]:
        """Rows of the pool with a row's positions, in order."""
        return (row.slot,)

    def with_pooled(self, block: Block, offset: int) -> Block:
        """A block of the members, from their positions seq_len + offset on, that says its rows if it is in the pool."""
        rows = self.rows

        def fed_rows(counts: Seq[int]) -> PooledRows | None:
            return self.rows_in_pool(
                [(row, n, row.seq_len + offset + n) for row, n in zip(rows, counts, strict=True) if n]
            )

        return replace(block, rows_in_pool=fed_rows)

    def slot_block(
        self, places: Places, tokens: Int[Tensor, "batch q"], position: Int[Tensor, "batch q"], width: int
    ) -> Block:
        """A pool block computed from tensors only, so that it can be recorded."""
        position = position.contiguous()
        slots = places.slots(position)

        def append_to(slots: Tensor) -> Append:
            def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
                self.pool.write_slots(layer, slots, keys, values)
                return places.view(layer, width)

            return append

        columns = torch.arange(width, device=tokens.device)
        in_pool = None if self.pool.tags is not None else InPool(self.pool, position, slots, places.table.contiguous())
        return Block(
            tokens,
            position.clamp(0, self.max_positions - 1),
            self.pool_mask(columns, position),
            append_to(slots),
            append_of=lambda kept: append_to(slots[kept]),
            in_pool=in_pool,
            slots=columns[None],
        )

    def _with_idle_rows(self, rows: Seq[RowState], count: int) -> tuple[list[RowState], Int[Tensor, " n"]]:
        """Fill up to `count` rows with slots that feed nothing; also the place of each of `rows` among them."""
        taken = {row.slot for row in rows}
        idle = [RowState(slot, -1, 0, 0, finished=True) for slot in range(self.num_rows) if slot not in taken]
        filled = sorted([*rows, *idle[: count - len(rows)]])
        places = {row.slot: place for place, row in enumerate(filled)}
        return filled, torch.tensor([places[row.slot] for row in rows], device=self.shape.device)

    def pool_mask(self, columns: Int[Tensor, " width"], position: Int[Tensor, "batch q"]) -> Tensor:
        """Visibility ``[batch, 1, q, width]`` in the pool, where a slot's position is its column.

        A query without a position sees column 0, so that its softmax is defined; its output is never used.
        """
        return kernels.visible_by_position(columns, position.clamp(min=0)[:, None, :, None])


def _prompt_positions(
    rows: Seq[RowState], tokens: Int[Tensor, "batch q"], start: int
) -> tuple[Int[Tensor, "batch q"], Bool[Tensor, "batch q"]]:
    """Positions of prompt tokens from `start` on, and which of them are real: below the row's seq_len."""
    position = torch.arange(start, start + tokens.shape[1], device=tokens.device).expand(tokens.shape)
    return position, position < torch.tensor([[row.seq_len] for row in rows], device=tokens.device)


def _spread(values: Tensor, places: Int[Tensor, " n"], count: int, rest: int) -> Tensor:
    """Rows of `values` at `places` among `count` rows, the others filled with `rest`."""
    return values.new_full((count, values.shape[1]), rest).index_copy(0, places, values)


def tag_block(
    rows: Seq[RowState], position: Int[Tensor, "batch q"], tokens: Int[Tensor, "batch q"], real: Tensor
) -> Int[Tensor, "batch q 3"]:
    """Provenance of a block's slots: sequence, position, token; -1 throughout where the entry is not real."""
    sequence = torch.tensor([[row.sequence] for row in rows], device=tokens.device).expand(tokens.shape)
    tags = torch.stack([sequence, position, tokens], dim=-1)
    return torch.where(real[..., None], tags, -1)
