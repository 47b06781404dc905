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

    Real tokens alone are fed where the model runs packed blocks; else a rectangle as wide as the longest prompt.
    """
    lengths = [s.seq_len - 1 for s in sequences]
    stable = cached.layout.block_rows is not None
    step = STABLE_PREFILL_TOKENS if stable else PREFILL_CHUNK_TOKENS
    rows = [RowState(s.slot, s.index, n, 0, blocks=s.blocks) for s, n in zip(sequences, lengths, strict=True)]
    device = cached.layout.shape.device
    for start in range(0, max(lengths, default=0), step):
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
