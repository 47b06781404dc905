"""A trial of lean layers against transformers' own forward, on the passes that the engine makes."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block, KVShape, KVStore

Run = Callable[[Block | PackedBlock, int], Tensor]  # block and n -> logits of the last n tokens of each row

STARTS = (0, 2, 5)  # columns that each row does not use, before its first token
COUNTS = (7, 1, 6, 1, 3)  # tokens of each pass; the last one is packed
ROUNDINGS = {2: 8, 4: 32, 8: 32}  # of a number of so many bytes (at most 4), that the largest logit may be off by


def allowed_error(dtype: torch.dtype) -> float:
    """Largest difference of logits and of K/V, over the largest of them.

    Another shape of a product adds its terms in another order. In 64 bits norms are computed in 32, as transformers
    does, so a difference in the last bit of 64 may become one in the last bit of 32.
    """
    return ROUNDINGS[dtype.itemsize] * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@torch.inference_mode()
def largest_error(shape: KVShape, vocab_size: int, found: Run, expected: Run, *, packed: bool) -> float:
    """Largest difference between two ways to run the same ragged rows, over the largest number; 0: equal bits."""
    stores = [KVStore.empty(shape, len(STARTS), sum(COUNTS), tagged=False) for _ in range(2)]
    worst = 0.0
    for blocks in zip(*(_passes(store, vocab_size, packed=packed) for store in stores), strict=True):
        mine, other = (run(block, block.tokens.shape[1]) for run, block in zip((found, expected), blocks, strict=True))
        worst = max(worst, _error(mine, other), _error(*(store.data for store in stores)))
    return worst


def _error(found: Float[Tensor, "*shape"], expected: Float[Tensor, "*shape"]) -> float:
    found, expected = found.double(), expected.double()
    error = float((found - expected).abs().max() / expected.abs().max())
    return error if found.isfinite().all() and expected.isfinite().all() else float("inf")


def _passes(store: KVStore, vocab_size: int, *, packed: bool) -> Iterator[Block | PackedBlock]:
    """Blocks of random tokens at ragged rows; the last one packed, where a model can run that."""
    generator = torch.Generator().manual_seed(0)
    ends = [sum(COUNTS[: i + 1]) for i in range(len(COUNTS))]
    for start, stop in pairwise([0, *ends]):
        tokens = torch.randint(vocab_size, (len(STARTS), stop - start), generator=generator)
        block = _block(store, tokens.to(store.shape.device), start)
        last = packed and stop == ends[-1]
        yield PackedBlock.of_rows(block, range(1, len(STARTS) + 1)) if last else block


def _block(store: KVStore, tokens: Tensor, start: int) -> Block:
    """Rows that each begin at a column of their own and see their tokens so far; a column before that sees itself."""
    device, stop = store.shape.device, start + tokens.shape[1]
    column, begin = torch.arange(store.columns, device=device), torch.tensor(STARTS, device=device)[:, None]
    own = column[start:stop]
    seen = (column <= own[:, None]) & (column >= torch.minimum(begin, own)[..., None])

    def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        store.write_columns(layer, start, keys, values)
        return store.view(layer, store.columns)

    return Block(tokens, (own - begin).clamp(min=0), seen[:, None], append)
