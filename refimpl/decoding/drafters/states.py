"""Hidden states of the target, for a head to draft from."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from refimpl.core.invariants import require_invariant
from refimpl.core.sequence import Sequence
from refimpl.decoding.invariants import Checker
from refimpl.layouts.store import Block


class TargetStates:
    """Of each row the state behind the last committed token but one: the last that the target was fed.

    Each verify pass shows the states behind all tokens that it feeds. Which of them counts is known when the round is
    committed. A row has none before its first verify pass. With every state goes its place: sequence, position and
    token.

    Args:
        checker: compares places with the rows that the states are used for (INV-22).
    """

    def __init__(self, checker: Checker):
        self._checker = checker
        self._pass: tuple[Tensor, Tensor] | None = None  # states and places of the latest verify pass
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # by sequence

    def listen(self, block: Block, members: Seq[Sequence]) -> Block:
        """The same block, whose hidden states come here."""
        fed = block.of_members()
        sequence = torch.tensor([[m.index] for m in members], device=fed.tokens.device).expand(fed.tokens.shape)
        places = torch.stack([sequence, fed.position_ids, fed.tokens], dim=-1)

        def note(hidden: Tensor) -> None:
            self._pass = (hidden if block.members is None else hidden[block.members]), places

        return replace(block, note_hidden=note)

    def commit(self, members: Seq[Sequence], kept: Seq[int]) -> None:
        """Row i commits `kept[i]` tokens: as many of those that were fed are committed now, and none behind them."""
        assert self._pass is not None
        states, places = (behind(each, kept) for each in self._pass)
        self._kept |= {m.index: both for m, *both in zip(members, states, places, strict=True)}  # type: ignore[misc]
        self._pass = None

    def has(self, sequence: Sequence) -> bool:
        """Whether there is one for a row."""
        return sequence.index in self._kept

    def of(self, members: Seq[Sequence]) -> Float[Tensor, "batch hidden"]:
        """The members' states; zeros for those that have none."""
        if self._checker.covers("device"):
            for m in (m for m in members if self.has(m) and not m.finished):
                check_place(m, self._kept[m.index][1])
        states = [self._kept[m.index][0] if self.has(m) else None for m in members]
        none = torch.zeros_like(next(state for state in states if state is not None))
        return torch.stack([none if state is None else state for state in states])

    def forget(self, sequence: Sequence) -> None:
        """Drop that of a row."""
        self._kept.pop(sequence.index, None)


def check_place(sequence: Sequence, place: Int[Tensor, "3"]) -> None:
    """INV-22."""
    expected, found = [sequence.index, sequence.seq_len - 2, sequence.token_ids[-2]], place.tolist()
    require_invariant(found == expected, "INV-22", row=sequence.index, expected=_place(*expected), found=_place(*found))


def _place(sequence: int, position: int, token: int) -> str:
    return f"sequence {sequence}, position {position}, token {token}"


def behind(values: Shaped[Tensor, "batch q n"], kept: Seq[int]) -> Shaped[Tensor, "batch n"]:
    """Values of row i behind the `kept[i]`-th token of a pass."""
    return values[torch.arange(len(kept)), torch.tensor(kept) - 1]
