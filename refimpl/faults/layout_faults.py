"""Wrong positions, wrong masks, wrong entries: what layouts can get wrong."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from refimpl.core import kernels
from refimpl.core.sequence import Sequence
from refimpl.decoding import engine, rounds
from refimpl.decoding.assembly import RunLimits
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.rounds import RoundContext
from refimpl.faults.base import fault, result_changed
from refimpl.layouts import InplaceLayout, Layout, LeftPaddedLayout, MaskedLayout
from refimpl.layouts import base as layout_base
from refimpl.layouts.store import VALUES, Block, KVStore
from refimpl.placement import RealignedPlacement, RectanglePlacement

PAD_TOKEN = 0
INPLACE: dict[str, Any] = {"layouts": ("inplace",), "schedulers": ("fifo",)}
PADDED = ("realigned", "rollback")
BY_POSITION = ("masked", "inplace")
MOVING = ("realigned", "rollback", "masked")
ChangeBlock = Callable[[Block], Block]


def change_blocks(role: str, change: ChangeBlock) -> Callable[[Any], Any]:
    """Change every block of the target or the draft, whatever the layout."""
    return result_changed(lambda right, self, *_: change(right) if self.role == role else right)


# --- positions ---------------------------------------------------------------------------------------------------


@fault(MaskedLayout, "block", "output", "INV-2", layouts=("masked",))
@result_changed
def bsp_as_shipped(right: Block, self: MaskedLayout, tokens: Tensor, _: int) -> Block:
    """Batch speculative decoding by masking, without explicit positions: a token's position is its cache column, so
    every masked hole pushes what follows (published BSP on models that count cache entries)."""
    width = right.mask.shape[-1]
    column = torch.arange(width - tokens.shape[1], width).clamp(max=self.max_positions - 1)
    return replace(right, position_ids=column.expand(tokens.shape))


@fault(InplaceLayout, "block", "output", "INV-2", layouts=("inplace",))
@result_changed
def positions_off_by_one(right: Block, self: InplaceLayout, *_: Any) -> Block:
    """Every position is one too large; models with rotary embeddings hide it from output tests."""
    return replace(right, position_ids=(right.position_ids + 1).clamp(max=self.max_positions - 1))


@fault(LeftPaddedLayout, "block", "output", "INV-2", layouts=PADDED)
@result_changed
def batch_maximum_positions(right: Block, _: Any, tokens: Tensor, __: int) -> Block:
    """One offset for all rows: each row gets the positions of the longest (a uniform offset for ragged rows)."""
    return replace(right, position_ids=right.position_ids.amax(dim=0, keepdim=True).expand(tokens.shape))


@fault(CachedModel, "block", "output", "INV-2")
def bonus_at_wrong_position(original: Any) -> Any:
    """The token committed last is fed to the verification with the position of its successor."""

    def change(block: Block) -> Block:
        position = block.position_ids.clone()
        position[:, 0] += 1
        return replace(block, position_ids=position)

    return change_blocks("target", change)(original)


@fault(CachedModel, "block", "acceptance", "INV-2")
def draft_positions_off_by_one(original: Any) -> Any:
    """Only the draft's positions are one too large: the output stays right, fewer drafts survive."""
    return change_blocks("draft", lambda block: replace(block, position_ids=block.position_ids + 1))(original)


# --- masks -------------------------------------------------------------------------------------------------------


@fault(kernels, "visible_by_position", "output", "INV-3", layouts=BY_POSITION)
def mask_one_too_wide(original: Any) -> Any:
    """A query also sees the slot after its own."""
    return lambda slot, query: original(slot, query + 1)


@fault(kernels, "visible_by_position", "output", "INV-3", layouts=BY_POSITION)
def mask_one_too_narrow(original: Any) -> Any:
    """A query does not see its own slot."""
    return lambda slot, query: original(slot, query - 1)


@fault(kernels, "visible_left_padded", "output", "INV-3", layouts=PADDED)
def pads_visible(original: Any) -> Any:
    """No attention mask for the left pads (published DSD passes none)."""
    return lambda key, query, pads: original(key, query, pads * 0)


@fault(MaskedLayout, "commit", "output", "INV-3", layouts=("masked",))
def rejected_entry_left_visible(original: Any) -> Any:
    """The slots of rejected tokens keep claiming their positions."""

    def commit(self: MaskedLayout, num_cached: Any) -> None:
        claimed = self._slot_position
        original(self, num_cached)
        self._slot_position = claimed

    return commit


@fault(CachedModel, "block", "acceptance", "INV-3")
def draft_misses_the_first_token(original: Any) -> Any:
    """The draft's mask hides the oldest token of each row: the output stays right, fewer drafts survive."""

    def change(block: Block) -> Block:
        oldest = block.mask.long().argmax(dim=-1, keepdim=True)
        return replace(block, mask=block.mask.scatter(-1, oldest, False))

    return change_blocks("draft", change)(original)


# --- entries -----------------------------------------------------------------------------------------------------


@fault(RealignedPlacement, "realign", "output", "INV-1", layouts=PADDED)
@result_changed
def pads_pile_up(right: Any, self: RealignedPlacement, *_: Any) -> Any:
    """The batch is a column wider than the pads account for (published DSD never removes a pad)."""
    self.width += 1
    return right


@fault(kernels, "realign_source", "output", "INV-3", layouts=("realigned",))
def realigned_one_column_off(original: Any) -> Any:
    """Realignment takes every entry from the column beside the right one."""
    return lambda column, shift: original(column, shift) + 1


@fault(KVStore, "gather", "output", "INV-4", layouts=MOVING)
@result_changed
def values_left_behind(right: KVStore, *_: Any) -> KVStore:
    """Keys are moved, values are moved to another column: lengths, masks and provenance all look right."""
    right.data[:, VALUES] = right.data[:, VALUES].roll(1, dims=3)
    return right


def write_elsewhere(
    pool_block: Callable[..., Block],
    layout: Layout,
    rows: Any,
    tokens: Tensor,
    position: Tensor,
    columns: Tensor,
    real: Tensor,
    width: int,
) -> Block:
    """Write the entries to other columns than those of their positions, which model and mask go on to see."""
    block = pool_block(rows, tokens, columns, real, width)
    mask = layout.pool_mask(torch.arange(width), position)
    return replace(block, position_ids=position.clamp(0, layout.max_positions - 1), mask=mask)


@fault(InplaceLayout, "pool_block", "output", "INV-3", layouts=("inplace",))
def rejected_entry_not_overwritten(original: Any) -> Any:
    """The entry of the token committed last is not written, so that a rejected draft's stays in its place."""

    def pool_block(self: InplaceLayout, rows: Any, tokens: Any, position: Any, real: Any, width: int) -> Block:
        if tokens.shape[1] == 1 or not all(row.num_cached for row in rows):
            return original(self, rows, tokens, position, real, width)
        elsewhere = torch.cat([position[:, :1] * 0 - 1, position[:, 1:]], dim=1)
        return write_elsewhere(partial(original, self), self, rows, tokens, position, elsewhere, real, width)

    return pool_block


@fault(Layout, "end_prefill", "output", "INV-3", layouts=MOVING, schedulers=("fifo", "grouped"))
def slot_reused_without_reset(original: Any) -> Any:
    """A new sequence inherits the stored length of the finished one whose slot it takes, and its stale entries."""

    def end_prefill(self: Any, rows: Any) -> None:
        if not hasattr(self, "longest_stored"):
            self.longest_stored = {}
        for row in rows:
            longest = max(row.seq_len, self.longest_stored.get(row.slot, 0))
            self.stored[row.slot] = longest
            self.longest_stored[row.slot] = longest + 4

    return end_prefill


@fault(RectanglePlacement, "has_members", "output", "INV-3", layouts=PADDED, schedulers=("fifo", "grouped"))
def batch_kept_for_other_members(original: Any) -> Any:
    """A batch of the same size is taken for the same batch, and the rows read each other's entries."""
    return lambda self, rows: len(rows) == len(self._sequences)


@fault(CachedModel, "block", "output", "INV-2", sources=("jundot/omlx#2363",))
def window_at_its_first_position(original: Any) -> Any:
    """Every token of a verify pass has the position of the first one.

    Text gets worse with every further draft a round; one draft less, and it recovers.
    """
    return change_blocks("target", _at_first_position)(original)


def _at_first_position(block: Block) -> Block:
    return replace(block, position_ids=block.position_ids[:, :1].expand(block.position_ids.shape))


@fault(
    engine, "assemble", "output", "INV-4", **INPLACE, sources=("vllm-project/vllm#32628", "sgl-project/sglang#33454")
)
def clamped_write(original: Any) -> Any:
    """Drafts beyond the last position that a row may have are written to column 0.

    The last tokens of an answer that fills the context are wrong.
    """

    def assemble(pair: Any, run_limits: RunLimits, *rest: Any) -> RoundContext:
        context = original(pair, run_limits, *rest)
        for cached in context.models:
            cached.layout.pool_block = _clamped(cached.layout, run_limits.longest)
        return context

    return assemble


def _clamped(layout: Any, last: int) -> Any:
    right = layout.pool_block

    def pool_block(rows: Any, tokens: Tensor, position: Tensor, real: Tensor, width: int) -> Block:
        columns = torch.where(position < last, position, 0)
        return write_elsewhere(right, layout, rows, tokens, position, columns, real, width)

    return pool_block


@fault(
    layout_base,
    "_spread",
    "output",
    "INV-3",
    **INPLACE | {"settings": {"shape_stable": True}},
    sources=("vllm-project/vllm#43682",),
)
def idle_row_advances(original: Any) -> Any:
    """An idle row, there to fill a fixed shape, writes to column 0 of the sequence whose slot it borrows.

    One request of a batch goes wrong when the batch is not full.
    """
    return lambda values, places, count, rest: original(values, places, count, max(0, rest))


# --- lengths -----------------------------------------------------------------------------------------------------


@fault(rounds, "_commit_row", "output", "INV-5", layouts=("masked",))
@result_changed
def next_token_counted_as_cached(right: Any, row: Sequence, *_: Any) -> Any:
    """The target's cached length includes the token chosen last, which it has not been fed."""
    row.target_cached = row.seq_len
    return right


@fault(CachedModel, "rows", "output", "INV-8")
@result_changed
def pad_found_by_token_value(right: Any, _: Any, members: Any) -> Any:
    """A row's length is the number of tokens that differ from the pad id, which is a token like any other."""
    lengths = [sum(token != PAD_TOKEN for token in m.token_ids) for m in members]
    return [row._replace(seq_len=n) for row, n in zip(right, lengths, strict=True)]
