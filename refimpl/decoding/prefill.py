"""Caching the prompts of sequences that join."""

from collections.abc import Sequence as Seq

import torch

from refimpl.core.sequence import Sequence
from refimpl.decoding.cached import CachedModel
from refimpl.layouts.store import RowState

PREFILL_CHUNK_TOKENS = 512  # queries a row in one prefill pass, which bounds the mask
STABLE_PREFILL_TOKENS = 64  # queries a row in every prefill pass under shape-stable execution


def prefill(cached: CachedModel, sequences: Seq[Sequence]) -> None:
    """Cache all prompt tokens but the last, so that every sequence starts with lag 1 (INV-5).

    What is cached already is not fed again. Real tokens alone are fed where the model runs packed blocks; else a
    rectangle as wide as the longest prompt.
    """
    lengths = [s.seq_len - 1 for s in sequences]
    stable = cached.layout.block_rows is not None
    step = STABLE_PREFILL_TOKENS if stable else PREFILL_CHUNK_TOKENS
    rows = [row._replace(seq_len=row.seq_len - 1) for row in cached.rows(sequences)]
    device = cached.layout.shape.device
    for start in _chunks(rows, step):
        stop = start + step if stable else min(start + step, max(lengths))
        chunk = [s.token_ids[start:stop] + [0] * (stop - max(start, s.seq_len)) for s in sequences]
        tokens = torch.tensor([row[: stop - start] for row in chunk], device=device)
        if (forward_packed := cached.model.forward_packed) and not stable:
            forward_packed(cached.layout.packed_prefill(rows, tokens, start))
        else:
            cached.forward(cached.layout.prefill_block(rows, tokens, start), 1)
    cached.layout.end_prefill(rows)
    for sequence, length in zip(sequences, lengths, strict=True):
        cached.note_cached(sequence, length)


def _chunks(rows: Seq[RowState], step: int) -> list[int]:
    """Where the passes of so many positions begin in which some row has a token to cache."""
    starts = range(0, max([row.seq_len for row in rows], default=0), step)
    return [a for a in starts if any(max(a, row.num_cached) < min(a + step, row.seq_len) for row in rows)]
