"""Draft heads that attend to the whole text: layers on the target's hidden states, with K/V of their own."""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.models.head import Reads
from refimpl.models.head_rows import HeadRows


class AttendingHead:
    """One or several modules: the n-th reads what the one before made of each state, and the n-th token behind it.

    A chain that is longer goes on with the last module, on its own states. All but the first module see drafts beside
    the last states, which are therefore read again in the next round.

    Args:
        layers: see `Reads`.
        depth: number of modules.
    """

    def __init__(self, layers: tuple[int, ...] = (), depth: int = 1):
        self.reads, self.depth = Reads(layers, whole=True, again=depth - 1), depth

    def begin(self, rows: HeadRows) -> "_Chain":
        """See `DraftHead`."""
        return _Chain(self, rows)

    def entered(self, states: Float[Tensor, "batch q read"]) -> Float[Tensor, "batch q hidden"]:
        """What the first module reads of the target's states: they themselves, unless a head projects them."""
        return states

    @abstractmethod
    def advance(
        self,
        index: int,
        tokens: Int[Tensor, "batch q"],
        positions: Int[Tensor, "batch q"],
        states: Float[Tensor, "batch q hidden"],
        rows: HeadRows,
    ) -> Float[Tensor, "batch q hidden"]:
        """States of a module behind tokens, which adds K/V to `rows`."""

    @abstractmethod
    def logits(self, states: Float[Tensor, "batch 1 hidden"]) -> Float[Tensor, "batch 1 vocab"]:
        """Over the target's vocabulary."""


@dataclass
class _Chain:
    head: AttendingHead
    rows: HeadRows
    steps: int = 0
    tokens: Tensor = field(init=False)
    positions: Tensor = field(init=False)
    states: Tensor = field(init=False)

    def feed(self, tokens: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch 1 vocab"]:
        """See `Chain`."""
        index = min(self.steps, self.head.depth - 1)
        if self.steps == 0:
            self.tokens, self.positions = self.rows.tokens, self.rows.positions
            self.states = self.head.entered(self.rows.states)
        elif self.steps < self.head.depth:
            self.tokens, self.positions = torch.cat([self.tokens[:, 1:], tokens], dim=1), self.positions + 1
        else:
            self.tokens, self.positions, self.states = tokens, self.positions[:, -1:] + 1, self.states[:, -1:]
        self.states = self.head.advance(index, self.tokens, self.positions, self.states, self.rows)
        self.steps += 1
        return self.head.logits(self.states[:, -1:])

    def finish(self) -> None:
        """All modules have K/V of the states, so those that had no turn read them, too."""
        while self.steps < self.head.depth:
            self.feed(self.tokens[:, -1:])
