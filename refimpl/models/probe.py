"""A few tokens through a model, to see that it obeys explicit positions and masks; what it declares is not trusted.

Three rows are fed in two blocks, as the engine feeds them, and compared with each row on the model's own cache:

| row | columns (token of the row, h: hidden)         | positions                        |
|-----|-----------------------------------------------|----------------------------------|
| 0   | 0 1 h 2 3, then unused ones                   | 0 1 2 3                          |
| 1   | h 0 1 2 3, then unused ones                   | 0 1 2 3                          |
| 2   | 0 h 1 2 3, then unused ones                   | 0 1, then the last two of all    |

A model that counts positions by itself, ignores the mask, lets rows depend on each other, works with the number of
columns, or scales attention by a length that it asks of the cache gives other logits. A row alone is fed in as many
copies as there are rows, so that passes have one shape; whether numbers depend on that is a question of its own.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block, KVShape, KVStore
from refimpl.models.block_cache import call_with_cache

ROWS = ((1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3))
HIDDEN = (2, 0, 1)  # column of each row that nothing may see
FAR_ROW = 2
COUNT, HALF = 4, 2
UNUSED = 4  # columns behind the last token
TOLERANCE = 16  # roundings of the number format
MANY_COPIES = 16  # of a row: enough tokens for the kernels of large passes

ForwardPacked = Callable[[PackedBlock, int], Tensor]  # block and n -> logits of its last n tokens ``[n, vocab]``


@runtime_checkable
class Probed(Protocol):
    """What the probe needs of an adapter."""

    model: PreTrainedModel
    vocab_size: int
    max_positions: int
    kv_shape: KVShape

    def forward(self, block: Block, num_logits: int) -> Tensor:
        """Run a block."""

    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """K/V of one row."""


class _FarCache(DynamicCache):
    """An ordinary cache that has forgotten `skipped` tokens, so the next ones are far from those that it keeps."""

    skipped = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return super().get_seq_length(layer_idx) + self.skipped

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        length, offset = super().get_mask_sizes(query_length, layer_idx)
        return length, offset + self.skipped


@torch.inference_mode()
def refuse_unless_positions_and_mask_count(lm: Probed) -> None:
    """Raise UnsupportedModelError unless every row gives the logits that the model gives for it alone."""
    if lm.max_positions < COUNT:
        raise UnsupportedModelError(f"has a context or sliding window of {lm.max_positions}, which is too short")
    expected = torch.stack([_alone(lm, row, tokens) for row, tokens in enumerate(ROWS)]).float()
    if not expected.isfinite().all():
        raise UnsupportedModelError("gives logits that are not finite")
    found = _in_blocks(lm).float()
    wanted = (len(ROWS), HALF, lm.vocab_size)
    if found.shape != wanted:
        raise UnsupportedModelError(f"gives logits of shape {tuple(found.shape)} where {wanted} were asked for")
    if not close(lm.kv_shape.dtype, found, expected):
        raise UnsupportedModelError("does not honour explicit positions and a 4-D mask")


@torch.inference_mode()
def depends_on_shape(lm: Probed) -> bool:
    """Whether a row gives other logits in a pass of more tokens, beyond roundings: as activations in int8 do."""
    few, many = (_alone(lm, 0, ROWS[0], copies) for copies in (1, MANY_COPIES))
    return not close(lm.kv_shape.dtype, many, few)


@torch.inference_mode()
def runs_packed_blocks(lm: Probed, forward: ForwardPacked) -> bool:
    """Whether rows in one packed block get the logits and K/V of each by itself; False where the model fails, too."""
    try:
        return _packs_prompts(lm, forward) and _packs_rows(lm, forward)
    except Exception:  # whatever a model makes of what it does not know: it is driven by rectangles
        return False


def _packs_prompts(lm: Probed, forward: ForwardPacked) -> bool:
    """Rows from their beginnings, of different lengths."""
    rows = [list(tokens[: COUNT - i]) for i, tokens in enumerate(ROWS)]
    counts, kv = [len(row) for row in rows], list[Tensor]()

    def write(layer: int, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        kv.append(lm.kv_shape.joined(keys[0], values[0]))
        return list(zip(keys.split(counts, dim=2), values.split(counts, dim=2), strict=True))

    device = lm.kv_shape.device
    tokens = torch.tensor([[token for row in rows for token in row]], device=device)
    positions = torch.tensor([[at for row in rows for at in range(len(row))]], device=device)
    logits = forward(PackedBlock(tokens, positions, counts, write), sum(counts))
    alone = [lm.model(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0] for row in rows]
    cached = torch.cat([lm.fresh_kv(row) for row in rows], dim=3)
    return all(close(lm.kv_shape.dtype, *each) for each in ((logits, torch.cat(alone)), (torch.stack(kv), cached)))


def _packs_rows(lm: Probed, forward: ForwardPacked) -> bool:
    """Rows that look back at their first halves, behind a mask."""
    store = KVStore.empty(lm.kv_shape, len(ROWS), COUNT + 1 + UNUSED, tagged=False)
    tokens, positions = _columns(lm.max_positions)
    lm.forward(_block(store, tokens[:, : HALF + 1], positions[:, : HALF + 1], 0), 1)
    block = _block(store, tokens[:, HALF + 1 :], positions[:, HALF + 1 :], HALF + 1)
    found = forward(PackedBlock.of_rows(block, [HALF] * len(ROWS)), HALF * len(ROWS))
    alone = torch.cat([_alone(lm, row, tokens) for row, tokens in enumerate(ROWS)])
    return close(lm.kv_shape.dtype, found, alone)


def close(dtype: torch.dtype, found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors have one shape, and differ by roundings of a number format alone."""
    if found.shape != expected.shape:
        return False
    tolerance = max(1e-4, TOLERANCE * torch.finfo(dtype).eps)
    found, expected = found.float(), expected.float()
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def _alone(lm: Probed, row: int, tokens: tuple[int, ...], copies: int = len(ROWS)) -> Float[Tensor, "half vocab"]:
    """Logits of a row's second half, beside copies of itself only; positions and mask are the model's own."""
    cache = _FarCache(config=lm.model.config)
    ids = torch.tensor([tokens] * copies, device=lm.model.device)
    call_with_cache(lm.model, cache, input_ids=ids[:, :HALF], logits_to_keep=1)
    cache.skipped = lm.max_positions - COUNT if row == FAR_ROW else 0
    logits: Tensor = call_with_cache(lm.model, cache, input_ids=ids[:, HALF:], logits_to_keep=HALF).logits[0]
    return logits


def _in_blocks(lm: Probed) -> Float[Tensor, "rows half vocab"]:
    """The same of all rows together, through explicit positions and masks."""
    store = KVStore.empty(lm.kv_shape, len(ROWS), COUNT + 1 + UNUSED, tagged=False)
    tokens, positions = _columns(lm.max_positions)
    lm.forward(_block(store, tokens[:, : HALF + 1], positions[:, : HALF + 1], 0), 1)
    return lm.forward(_block(store, tokens[:, HALF + 1 :], positions[:, HALF + 1 :], HALF + 1), HALF)


def _columns(max_positions: int) -> tuple[Int[Tensor, "rows columns"], Int[Tensor, "rows columns"]]:
    """Token and position of each row's columns; a hidden column holds token 0 at position 0."""
    rows, positions = [list(tokens) for tokens in ROWS], [list(range(COUNT)) for _ in ROWS]
    positions[FAR_ROW][HALF:] = range(max_positions - HALF, max_positions)
    for row, numbers, hidden in zip(rows, positions, HIDDEN, strict=True):
        row.insert(hidden, 0)
        numbers.insert(hidden, 0)
    return torch.tensor(rows), torch.tensor(positions)


def _block(store: KVStore, tokens: Tensor, positions: Tensor, start: int) -> Block:
    """The rows' tokens at columns from `start`, each seeing itself and the columns before it except the hidden one."""
    device = store.shape.device
    columns = torch.arange(store.columns, device=device)
    own = columns[start : start + tokens.shape[1], None]
    hidden = torch.tensor(HIDDEN, device=device)[:, None, None]
    visible = (columns == own) | ((columns < own) & (columns != hidden))

    def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        store.write_columns(layer, start, keys, values)
        return store.view(layer, store.columns)

    return Block(tokens.to(device), positions.to(device), visible[:, None], append)


@torch.inference_mode()
def kv_shape_of(model: PreTrainedModel) -> KVShape:
    """What a model caches for one token, from a cache that it filled.

    Raises:
        UnsupportedModelError: the layers differ, or keys and values do in their number of heads.
    """
    cache = DynamicCache()
    call_with_cache(model, cache, input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))
    entries = cache_entries(cache)
    shapes = {(tuple(keys.shape), tuple(values.shape)) for keys, values in entries}
    heads = {tensor.shape[1] for layer in entries for tensor in layer}
    if len(shapes) != 1 or len(heads) != 1:
        kinds = sorted({(tensor.shape[1], tensor.shape[3]) for layer in entries for tensor in layer})
        found = ", ".join(f"{count} heads of {dim} numbers" for count, dim in kinds)
        raise UnsupportedModelError(f"caches keys and values of different shapes ({found})")
    keys, values = entries[0]
    return KVShape(len(entries), heads.pop(), keys.shape[3], values.dtype, values.device, values.shape[3])


def cache_entries(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer of a filled DynamicCache."""
    return [(layer.keys, layer.values) for layer in cache.layers]
