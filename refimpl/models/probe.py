"""A few tokens through a model, to see that it obeys explicit positions and masks; what it declares is not trusted.

Three rows are fed in two blocks, as the engine feeds them, and compared with each row on the model's own cache:

| row | columns (token of the row, h: hidden)         | positions                        |
|-----|-----------------------------------------------|----------------------------------|
| 0   | 0 1 h 2 3, then unused ones                   | 0 1 2 3                          |
| 1   | h 0 1 2 3, then unused ones                   | 0 1 2 3                          |
| 2   | 0 h 1 2 3, then unused ones                   | 0 1, then the last two of all    |

A model that counts positions by itself, ignores the mask, lets rows depend on each other, works with the number of
columns, or scales attention by a length that it asks of the cache gives other logits. Where ALiBi counts the keys that
are there, row 2 is not far. A row alone is fed in as many copies as there are rows, so that passes have one shape;
whether numbers depend on that is a question of its own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.states import PassStates, StateStore
from refimpl.layouts.store import Block, KVShape, KVStore
from refimpl.models.alibi import biases_by_rank
from refimpl.models.block_cache import call_with_cache
from refimpl.models.cached_layers import CachedLayers, keeping_cache

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
    cached: CachedLayers

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
        raise UnsupportedModelError(f"has a context of {lm.max_positions}, which is too short")
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
    found = forward(PackedBlock.of_rows(_second_halves(lm), [HALF] * len(ROWS)), HALF * len(ROWS))
    alone = torch.cat([_alone(lm, row, tokens) for row, tokens in enumerate(ROWS)])
    return close(lm.kv_shape.dtype, found, alone)


def close(dtype: torch.dtype, found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors have one shape, and differ by roundings of a number format alone."""
    if found.shape != expected.shape:
        return False
    tolerance = max(1e-4, TOLERANCE * torch.finfo(dtype).eps)
    found, expected = found.float(), expected.float()
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def _end(lm: Probed) -> int:
    """Positions of the far row."""
    return COUNT if biases_by_rank(lm.model) else lm.max_positions


def _alone(lm: Probed, row: int, tokens: tuple[int, ...], copies: int = len(ROWS)) -> Float[Tensor, "half vocab"]:
    """Logits of a row's second half, beside copies of itself only; positions and mask are the model's own."""
    cache = _FarCache(config=lm.model.config)
    ids = torch.tensor([tokens] * copies, device=lm.model.device)
    call_with_cache(lm.model, cache, input_ids=ids[:, :HALF], logits_to_keep=1)
    cache.skipped = _end(lm) - COUNT if row == FAR_ROW else 0
    fed = ids[:, HALF:].split(1 if lm.cached.stepwise else HALF, dim=1)
    return torch.cat([call_with_cache(lm.model, cache, input_ids=part).logits[0] for part in fed])


def _begins_anew(model: PreTrainedModel) -> bool:
    """Whether a row's second half, fed at once, does not go on from the state behind the first."""
    ids, cache = torch.tensor([ROWS[0]], device=model.device), DynamicCache(config=model.config)
    halves = [call_with_cache(model, cache, input_ids=ids[:, at : at + HALF]).logits for at in (0, HALF)]
    return not close(model.dtype, halves[1], model(input_ids=ids, use_cache=False).logits[:, HALF:])


def _in_blocks(lm: Probed) -> Float[Tensor, "rows half vocab"]:
    """The same of all rows together, through explicit positions and masks."""
    return lm.forward(_second_halves(lm), HALF)


def _second_halves(lm: Probed) -> Block:
    """The rows' second halves, to be fed after the first ones, which are.

    A recurrent layer is fed what no query may see behind the first halves, and forgets it.
    """
    hidden = (HALF,) * len(ROWS) if lm.kv_shape.states else HIDDEN
    store = KVStore.empty(lm.kv_shape, len(ROWS), COUNT + 1 + UNUSED, tagged=False)
    states = StateStore(lm.kv_shape, len(ROWS))
    tokens, positions = _columns(_end(lm), hidden)
    before = PassStates(states, range(len(ROWS)))
    lm.forward(replace(_block(store, tokens[:, : HALF + 1], positions, 0, hidden), states=before), 1)
    before.commit([HALF] * len(ROWS))
    positions[FAR_ROW, : HALF + 1] += _end(lm) - COUNT  # as if near, so that no window hides them
    second = _block(store, tokens[:, HALF + 1 :], positions, HALF + 1, hidden)
    return replace(second, states=PassStates(states, range(len(ROWS))))


def _columns(
    max_positions: int, hidden: tuple[int, ...]
) -> tuple[Int[Tensor, "rows columns"], Int[Tensor, "rows columns"]]:
    """Token and position of each row's columns; the hidden column of each holds token 0 at position 0."""
    rows, positions = [list(tokens) for tokens in ROWS], [list(range(COUNT)) for _ in ROWS]
    positions[FAR_ROW][HALF:] = range(max_positions - HALF, max_positions)
    for row, numbers, column in zip(rows, positions, hidden, strict=True):
        row.insert(column, 0)
        numbers.insert(column, 0)
    return torch.tensor(rows), torch.tensor(positions)


def _block(store: KVStore, tokens: Tensor, positions: Tensor, start: int, hidden: tuple[int, ...]) -> Block:
    """The rows' tokens at columns from `start`, each seeing itself and the columns before it except the hidden one.

    `positions` are those of all columns.
    """
    device, stop = store.shape.device, start + tokens.shape[1]
    columns = torch.arange(store.columns, device=device)
    own = columns[start:stop, None]
    unseen = torch.tensor(hidden, device=device)[:, None, None]
    visible = (columns == own) | ((columns < own) & (columns != unseen))

    slots = pad(positions, (0, store.columns - positions.shape[1])).to(device)
    append = store.appending(start, store.columns)
    return Block(tokens.to(device), slots[:, start:stop], visible[:, None], append, slots=slots)


@torch.inference_mode()
def cached_layers_of(model: PreTrainedModel, max_positions: int) -> CachedLayers:
    """What a model caches for one token, from a cache that it filled.

    Raises:
        UnsupportedModelError: see `CachedLayers.of`.
    """
    cache = keeping_cache(model.config)
    call_with_cache(model, cache, input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))
    found = CachedLayers.of(model.config.get_text_config(decoder=True), cache, max_positions)
    return replace(found, stepwise=_begins_anew(model)) if found.states else found
