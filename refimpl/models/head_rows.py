"""What the rows of a round give to a draft head: new hidden states of the target, and K/V that the head has kept.

Rows of other lengths are padded on the left, the kept entries and the new ones apart:

| slots                        | hold                                                                     |
|------------------------------|--------------------------------------------------------------------------|
| ``[past - kept_i, past)``    | entries of row i that were kept                                          |
| ``[end - new_i, end)``       | those of its new states, where ``end`` is ``past`` + the most new states |
| ``[end, …)``                 | those of drafts                                                          |
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from refimpl.models.attention import additive_mask

Entries = list[tuple[Tensor, Tensor]]  # of one row: keys and values ``[heads, n, dim]`` of each layer


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A row of a round.

    Attributes:
        states: new hidden states of the target ``[n, hidden]``, those behind the last committed tokens but one.
        tokens: the token behind each.
        entries: what the head has cached of the states before them; empty for nothing.
    """

    states: Float[Tensor, "n hidden"]
    tokens: Seq[int]
    entries: Entries = field(default_factory=list)

    @property
    def kept(self) -> int:
        """States that have entries."""
        return self.entries[0][0].shape[1] if self.entries else 0


class HeadRows:
    """The rows of a round.

    Args:
        rows: of them; one that is not drafted for has no states.
        seq_lens: tokens of each.

    Attributes:
        states: new states, right-aligned ``[batch, n, hidden]``.
        cache: K/V of what was kept; a head adds those of its passes.
    """

    def __init__(self, rows: Seq[HeadRow], seq_lens: Seq[int]):
        self._rows = rows
        self.states = _right_aligned([row.states for row in rows], 0)
        self._device, n = self.states.device, self.states.shape[1]
        self._kept, self._new = (
            torch.tensor(each, device=self._device)[:, None]
            for each in ([row.kept for row in rows], [len(row.tokens) for row in rows])
        )
        self.past = max(row.kept for row in rows)
        self._ends = torch.tensor(seq_lens, device=self._device)[:, None]
        self.end = self.past + n

    @cached_property
    def tokens(self) -> Int[Tensor, "batch n"]:
        """The token behind each state, right-aligned."""
        return _right_aligned([torch.tensor(row.tokens, device=self._device).long() for row in self._rows], 0)

    @cached_property
    def positions(self) -> Int[Tensor, "batch n"]:
        """Of these tokens in their rows; 0 for pads."""
        n = self.states.shape[1]
        return (self._ends - n + torch.arange(n, device=self._device)).clamp(min=0)

    @cached_property
    def cache(self) -> DynamicCache:
        """K/V of all rows ``[batch, heads, past, dim]``, right-aligned."""
        cache = DynamicCache()
        like = next((row.entries for row in self._rows if row.entries), [])
        for layer, pair in enumerate(like):
            found = [row.entries[layer] if row.entries else [each[:, :0] for each in pair] for row in self._rows]
            keys, values = (_right_aligned([row[kind] for row in found], 1) for kind in range(2))
            cache.update(keys, values, layer)
        return cache

    def mask(self, width: int, q: int, dtype: torch.dtype, causal: bool = True) -> Float[Tensor, "batch 1 q width"]:
        """Which of `width` slots the last q see: zero for those, else -inf."""
        slot, own = torch.arange(width, device=self._device), torch.arange(width - q, width, device=self._device)
        kept = (slot >= self.past - self._kept) & (slot < self.past)
        real = (kept | (slot >= self.end - self._new))[:, None]
        before: Bool[Tensor, "q width"] = (slot <= own[:, None]) if causal else torch.ones_like(own[:, None] == slot)
        seen = (real & before) | (slot == own[:, None])  # a pad sees itself, so that it has a number
        return additive_mask(seen[:, None], dtype, 1)

    def num_new(self, index: int) -> int:
        """New states of a row."""
        return len(self._rows[index].tokens)

    def entries(self, index: int) -> Entries:
        """What the head has cached of a row, with that of its drafts."""
        row = self._rows[index]
        kept, new = slice(self.past - row.kept, self.past), slice(self.end - len(row.tokens), None)
        layers: list[Any] = self.cache.layers
        return [(_two(each.keys[index], kept, new), _two(each.values[index], kept, new)) for each in layers]


def cut(entries: Entries, n: int) -> Entries:
    """The entries of the first n states."""
    return [(keys[:, :n], values[:, :n]) for keys, values in entries]


def _two(entries: Tensor, first: slice, second: slice) -> Tensor:
    return torch.cat([entries[:, first], entries[:, second]], dim=1)


def _right_aligned(rows: Seq[Tensor], dim: int) -> Tensor:
    """Rows of several lengths along `dim`, padded with zeros before it."""
    most = max(row.shape[dim] for row in rows)
    sizes = [[*row.shape[:dim], most - row.shape[dim], *row.shape[dim + 1 :]] for row in rows]
    return torch.stack([torch.cat([row.new_zeros(size), row], dim=dim) for row, size in zip(rows, sizes, strict=True)])
