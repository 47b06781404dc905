"""Drafting by lookup in the row itself: no passes, no K/V."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import Proposal, RowNumbers
from refimpl.decoding.drafters.base import Drafts

NOT_FOUND = -1


@runtime_checkable
class Index(Protocol):
    """What one row has said so far."""

    def read(self, token_ids: Seq[int]) -> None:
        """Take in a row, which begins with what was read of it before."""

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may follow; none if nothing is found."""


class LookupDrafter:
    """Proposes what followed an earlier occurrence of a row's last tokens, or nothing if there is none.

    Args:
        new_index: makes the index of a row; which occurrence counts is its choice.
    """

    cached = states = None

    def __init__(self, new_index: Callable[[], Index]) -> None:
        self._new_index = new_index
        self._indices: dict[int, Index] = {}  # by sequence

    def draft(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> Drafts:
        """Propose what is found."""
        return lookup_drafts(self.find(members, limits, numbers), numbers.limits.device)

    def find(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> list[list[int]]:
        """Tokens for each member, up to its limit and to what its grammar forbids."""
        found = [self._find(member, limit) if limit else [] for member, limit in zip(members, limits, strict=True)]
        return numbers.processors.followed(found) if numbers.processors else found

    def forget(self, sequence: Sequence) -> None:
        """Drop its index."""
        self._indices.pop(sequence.index, None)

    def _find(self, sequence: Sequence, limit: int) -> list[int]:
        if sequence.index not in self._indices:
            self._indices[sequence.index] = self._new_index()
        index = self._indices[sequence.index]
        index.read(sequence.token_ids)
        return index.propose(limit)


def lookup_drafts(found: list[list[int]], device: torch.device) -> Drafts:
    """Drafts of tokens that were looked up, as wide as the longest of them."""
    lengths = [len(tokens) for tokens in found]
    if not any(lengths):
        return Drafts.none(len(found), device)
    tokens = as_tensor(found, max(lengths), device)
    return Drafts(Proposal(tokens.clamp(min=0), looked_up=torch.ones_like(tokens) > 0), lengths, lengths, 0)


def as_tensor(found: list[list[int]], k: int, device: torch.device) -> Int[Tensor, "batch k"]:
    """One row for each list, filled up with `NOT_FOUND`."""
    return torch.tensor([row + [NOT_FOUND] * (k - len(row)) for row in found], dtype=torch.long, device=device)
