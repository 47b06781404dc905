"""Draft heads: they propose from the target's hidden states, token by token."""

from abc import abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from refimpl.models.head_rows import HeadRows


@dataclass(frozen=True, slots=True)
class Reads:
    """Which hidden states of the target a head reads.

    Attributes:
        layers: after how many layers of it, in order, side by side; empty for the final norm's result.
        whole: whether it reads those of the whole text, and keeps K/V of them; else only the last.
        again: of the last of these, so many once more in the next round, as it has seen them beside drafts.
        most: drafts of a round; None for any number.
    """

    layers: Seq[int] = ()
    whole: bool = False
    again: int = 0
    most: int | None = None


@runtime_checkable
class Chain(Protocol):
    """A head's drafts of one round."""

    def feed(self, tokens: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch 1 vocab"]:
        """Logits behind one more token a row: first the last committed one, then each draft."""

    def finish(self) -> None:
        """The chain is not fed any more."""


@runtime_checkable
class DraftHead(Protocol):
    """Goes on from hidden states of the target."""

    @property
    def reads(self) -> Reads:
        """What it needs of them."""

    def begin(self, rows: HeadRows) -> Chain:
        """Begin a chain behind the last state of each row."""


class SteppingHead:
    """A head that goes on from the last state alone, and caches nothing."""

    reads = Reads()

    def begin(self, rows: HeadRows) -> "_Steps":
        """See `DraftHead`."""
        return _Steps(self, rows.states[:, -1])

    @abstractmethod
    def step(
        self, state: Float[Tensor, "batch hidden"], tokens: Int[Tensor, "batch 1"]
    ) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch 1 vocab"]]:
        """State and logits behind one more token a row."""


@dataclass
class _Steps:
    head: SteppingHead
    state: Float[Tensor, "batch hidden"]

    def feed(self, tokens: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch 1 vocab"]:
        """One step."""
        self.state, logits = self.head.step(self.state, tokens)
        return logits

    def finish(self) -> None:
        """Nothing is kept."""


class RegressiveBlock(nn.Module):
    """The regressive connection of state and token of Clover (2405.00263), in its smallest form.

    Clover lets the state attend to the embedding of the token. With that single key attention is a linear map of the
    embedding, which is what is left of it here. Its result is a state again, as the LM head of the target reads it.

    Args:
        hidden_size: of the target.
        width: of the inner layer.
    """

    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        self.hidden_size = hidden_size
        self.carry = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.inner = nn.Linear(2 * hidden_size, 2 * width, bias=False)
        self.outer = nn.Linear(width, hidden_size, bias=False)

    def forward(
        self, state: Float[Tensor, "*rows hidden"], embedding: Float[Tensor, "*rows hidden"]
    ) -> Float[Tensor, "*rows hidden"]:
        """The state behind one more token, whose row of the LM head is `embedding`."""
        both = torch.cat([_normalised(state), _normalised(embedding)], dim=-1)
        gate, value = self.inner(both).chunk(2, dim=-1)
        return self.carry(both) + self.outer(functional.silu(gate) * value)


def _normalised(vector: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
    return functional.rms_norm(vector, vector.shape[-1:])


class RegressiveHead(SteppingHead):
    """A regressive block on the LM head of its target, which it shares: for the logits, and for embeddings.

    Args:
        block: in the target's number format, on its device.
        lm_head: of the target.
    """

    def __init__(self, block: RegressiveBlock, lm_head: nn.Linear):
        self.block, self.lm_head = block.eval(), lm_head

    def step(
        self, state: Float[Tensor, "batch hidden"], tokens: Int[Tensor, "batch 1"]
    ) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch 1 vocab"]]:
        """One pass of the block, and one of the LM head."""
        state = self.block(state, self.lm_head.weight[tokens[:, 0]])
        return state, self.lm_head(state)[:, None]
