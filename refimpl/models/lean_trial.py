"""A trial of lean layers against transformers' own forward, on the passes that the engine makes."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.layouts import Layout, make_layout
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.places import BlockRows
from refimpl.layouts.store import Block, KVShape, KVStore
from refimpl.placement import PoolSize

Run = Callable[[Block | PackedBlock, int], Tensor]  # block and n -> logits of the last n tokens of each row

STARTS = (0, 2, 5)  # columns that each row does not use, before its first token
COUNTS = (7, 1, 6, 1, 3)  # tokens of each pass; the last one is packed
ENDS = [sum(COUNTS[: i + 1]) for i in range(len(COUNTS))]
PAGE = 4  # tokens
ROUNDINGS = {2: 8, 4: 32, 8: 32}  # of a number of so many bytes (at most 4), that the largest logit may be off by


def allowed_error(dtype: torch.dtype) -> float:
    """Largest difference of logits and of K/V, over the largest of them.

    Another shape of a product adds its terms in another order. In 64 bits norms are computed in 32, as transformers
    does, so a difference in the last bit of 64 may become one in the last bit of 32.
    """
    return ROUNDINGS[dtype.itemsize] * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@torch.inference_mode()
def largest_error(shape: KVShape, vocab_size: int, found: Run, expected: Run, *, packed: bool, paged: bool) -> float:
    """Largest difference between two ways to run the same ragged rows, over the largest number; 0: equal bits.

    Args:
        shape, vocab_size: of the model.
        found, expected: the ways.
        packed: whether the last pass is packed.
        paged: also run rows of a paged pool, for layers that read no masks there.
    """
    stores = [KVStore.empty(shape, len(STARTS), sum(COUNTS), tagged=False) for _ in range(2)]
    worst = _error_of(stores, [_passes(store, vocab_size, packed=packed) for store in stores], found, expected)
    if not paged:
        return worst
    size = PoolSize.of_run([sum(COUNTS)] * len(STARTS), window_size=3, batch_size=3, span=1, block_size=PAGE)
    pools = [make_layout("paged", shape, size, max_positions=sum(COUNTS), tagged=False) for _ in range(2)]
    passes = [_paged_passes(pool, vocab_size) for pool in pools]
    return max(worst, _error_of([layout.pool for layout in pools], passes, found, expected))


def _error_of(stores: list[KVStore], passes: list[Iterator[Block | PackedBlock]], found: Run, expected: Run) -> float:
    worst = 0.0
    for blocks in zip(*passes, strict=True):
        mine, other = (run(block, block.tokens.shape[1]) for run, block in zip((found, expected), blocks, strict=True))
        worst = max(worst, _error(mine, other), _error(*(store.data for store in stores)))
    return worst


def _error(found: Float[Tensor, "*shape"], expected: Float[Tensor, "*shape"]) -> float:
    found, expected = found.double(), expected.double()
    error = float((found - expected).abs().max() / expected.abs().max())
    return error if found.isfinite().all() and expected.isfinite().all() else float("inf")


def _tokens(vocab_size: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """The column where each pass starts, and random tokens for it ``[rows, q]``."""
    generator = torch.Generator().manual_seed(0)
    for start, stop in pairwise([0, *ENDS]):
        yield start, torch.randint(vocab_size, (len(STARTS), stop - start), generator=generator).to(device)


def _passes(store: KVStore, vocab_size: int, *, packed: bool) -> Iterator[Block | PackedBlock]:
    """Blocks of random tokens at ragged rows; the last one packed, where a model can run that."""
    for start, tokens in _tokens(vocab_size, store.shape.device):
        block = _block(store, tokens, start)
        last = packed and start + tokens.shape[1] == ENDS[-1]
        yield PackedBlock.of_rows(block, range(1, len(STARTS) + 1)) if last else block


def _block(store: KVStore, tokens: Tensor, start: int) -> Block:
    """Rows that each begin at a column of their own and see their tokens so far; a column before that sees itself."""
    device, stop = store.shape.device, start + tokens.shape[1]
    column, begin = torch.arange(store.columns, device=device), torch.tensor(STARTS, device=device)[:, None]
    own = column[start:stop]
    seen = (column <= own[:, None]) & (column >= torch.minimum(begin, own)[..., None])

    return Block(tokens, (own - begin).clamp(min=0), seen[:, None], store.appending(start, store.columns))


def _paged_passes(layout: Layout, vocab_size: int) -> Iterator[Block | PackedBlock]:
    """Blocks of rows whose pages lie anywhere; after the first, rows feed some of their positions once more."""
    device, store = layout.shape.device, layout.pool
    table = torch.arange(store.rows - 1, device=device).flip(0).view(-1, len(STARTS)).T
    nothing = torch.zeros(len(STARTS), 1, dtype=torch.long, device=device)
    for start, tokens in _tokens(vocab_size, device):
        again = torch.tensor(STARTS, device=device).clamp(max=start)[:, None]
        position = torch.arange(start, start + tokens.shape[1], device=device) - again
        yield layout.slot_block(BlockRows(store, table, cached=nothing), tokens, position, sum(COUNTS))
