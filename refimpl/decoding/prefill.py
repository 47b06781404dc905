"""Caching prompts: whole ones of sequences that join, or chunks of them beside rows that decode."""

from collections.abc import Sequence as Seq

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core.sequence import MOST_LAG, Sequence
from refimpl.decoding.cached import CachedModel
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import RowState, uncached
from refimpl.scheduling import Chunk

PREFILL_CHUNK_TOKENS = 512  # queries a row in one prefill pass, which bounds the mask
STABLE_PREFILL_TOKENS = 64  # queries a row in every prefill pass under shape-stable execution

Chunks = Seq[Chunk[Sequence]]


def prefill(cached: CachedModel, sequences: Seq[Sequence], *, left: float = 0.0) -> None:
    """Cache all prompt tokens but the last, so that every sequence starts with lag 1 (INV-5).

    What is cached already is not fed again. Up to `left` tokens before the last are left to rounds, too.
    """
    missing = [s.seq_len - 1 - cached.num_cached(s) for s in sequences]
    chunks = [Chunk(s, n - int(min(left, max(n, 0)))) for s, n in zip(sequences, missing, strict=True)]
    _feed(cached, chunks, 0)
    note_chunks(cached, chunks)


def prefill_chunks(cached: CachedModel, chunks: Chunks) -> None:
    """Cache chunks of prompts in passes of their own: in one where the model runs packed blocks."""
    if not chunks:
        return
    with cached.timer.stage("prefill"):
        if forward := cached.forward_packed:
            forward(PackedBlock.join(packed_chunks(cached, chunks)), 1)
            return
        for chunk in chunks:
            _feed(cached, [chunk], cached.num_cached(chunk.sequence))


def catch_up(cached: CachedModel, members: Seq[Sequence]) -> list[int]:
    """Cache what rounds have committed that the draft sat out, all but the last token; as many tokens of each member.

    It is fed as prompts are, straight into the pool and step by step: the round's own passes stay narrow.
    """
    most = 1 if cached.states else MOST_LAG  # a token that is fed again enters a state twice
    lagging = [m.draft_lag > most and not m.finished and cached.feeds(m) for m in members]
    counts = [m.draft_lag - 1 if behind else 0 for m, behind in zip(members, lagging, strict=True)]
    behind = [Chunk(m, count) for m, count in zip(members, counts, strict=True) if count]
    if behind:
        cached.layout.to_pool()
        _feed(cached, behind, min([cached.num_cached(chunk.sequence) for chunk in behind]))
        note_chunks(cached, behind)
    return counts


def packed_chunks(cached: CachedModel, chunks: Chunks) -> list[PackedBlock]:
    """Chunks of prompts to be cached beside other rows, a block each."""
    return [
        cached.packed_prompts([row], _tokens(cached, [chunk], [row], row.num_cached, row.seq_len), row.num_cached)
        for row, chunk in zip(_rows(cached, chunks), chunks, strict=True)
    ]


def note_chunks(cached: CachedModel, chunks: Chunks) -> None:
    """Write down that chunks are cached."""
    rows = _rows(cached, chunks)
    cached.layout.end_prefill(rows)
    for row, chunk in zip(rows, chunks, strict=True):
        cached.note_cached(chunk.sequence, row.seq_len)


def _feed(cached: CachedModel, chunks: Chunks, first: int) -> None:
    """Feed chunks, none of which begins before `first`, step by step.

    Under fixed shapes, what was generated before a preemption is fed in the shape that has cached it then.
    """
    if cached.states and len(chunks) > 1:  # rows of other lengths would be pads to a recurrent layer
        for chunk in chunks:
            _feed(cached, [chunk], cached.num_cached(chunk.sequence))
        return
    rows = _rows(cached, chunks)
    if cached.window is None:
        _feed_rows(cached, chunks, rows, first, PREFILL_CHUNK_TOKENS)
        return
    ends = [chunk.sequence.prompt_len - 1 for chunk in chunks]
    prompts = [row._replace(seq_len=min(row.seq_len, end)) for row, end in zip(rows, ends, strict=True)]
    generated = [row._replace(num_cached=max(row.num_cached, end)) for row, end in zip(rows, ends, strict=True)]
    _feed_rows(cached, chunks, prompts, first, STABLE_PREFILL_TOKENS)
    _feed_rows(cached, chunks, generated, min([row.num_cached for row in generated], default=0), cached.window)


def _feed_rows(cached: CachedModel, chunks: Chunks, rows: Seq[RowState], first: int, step: int) -> None:
    """Feed what is missing of each row.

    Real tokens alone are fed where the model runs packed blocks; else a rectangle as wide as the longest chunk.
    """
    end = max([row.seq_len for row in rows], default=0)
    for start in range(first, end, step):
        stop = min(start + step, end) if cached.window is None else start + step
        if not uncached(rows, start, stop):
            continue
        tokens = _tokens(cached, chunks, rows, start, stop)
        if forward := cached.forward_packed:
            forward(cached.packed_prompts(rows, tokens, start), 1)
        else:
            cached.feed_prompts(rows, tokens, start)


def _rows(cached: CachedModel, chunks: Chunks) -> list[RowState]:
    """Each prompt up to the end of its chunk."""
    rows = cached.rows([chunk.sequence for chunk in chunks])
    return [row._replace(seq_len=row.num_cached + chunk.count) for row, chunk in zip(rows, chunks, strict=True)]


def _tokens(cached: CachedModel, chunks: Chunks, rows: Seq[RowState], start: int, stop: int) -> Int[Tensor, "rows q"]:
    """Tokens of the texts at positions [start, stop); 0 behind the end of a row."""
    ends = [(chunk.sequence.token_ids, row.seq_len) for row, chunk in zip(rows, chunks, strict=True)]
    texts = [tokens[start : min(stop, end)] for tokens, end in ends]
    return torch.tensor([text + [0] * (stop - start - len(text)) for text in texts], device=cached.layout.shape.device)
