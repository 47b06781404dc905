"""Hidden states of the target, for a head to draft from."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from refimpl.core.invariants import require_invariant
from refimpl.core.sequence import Sequence
from refimpl.decoding.invariants import Checker
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block, NoteHidden, RowState, uncached
from refimpl.models.head import Reads


@dataclass(slots=True)
class _Noted:
    """States of one row, with their places; `taken` once the head has read them."""

    states: Float[Tensor, "n hidden"]
    places: Int[Tensor, "n 3"]
    verified: bool
    taken: bool = False

    def last(self, n: int) -> "_Noted":
        start = max(0, len(self.states) - n)
        return replace(self, states=self.states[start:], places=self.places[start:], taken=False)

    def followed_by(self, more: "_Noted") -> "_Noted":
        both = zip((self.states, self.places), (more.states, more.places), strict=True)
        states, places = (torch.cat(pair) for pair in both)
        return _Noted(states, places, more.verified)


class TargetStates:
    """Of each row the states behind its committed tokens but the last, which the target was fed.

    A verify pass shows the states behind all tokens that it feeds. Which of them count is known when the round is
    committed. Before its first verify pass a row has none to draft from. A head that reads whole texts is also told the
    states of prompts, and reads all states since it last drafted for the row; any other reads the last one. With every
    state goes its place: sequence, position and token.

    Args:
        checker: compares places with the rows that the states are used for (INV-22).
        reads: what the head reads.
    """

    def __init__(self, checker: Checker, reads: Reads | None = None):
        self._checker, self.reads = checker, reads or Reads()
        self._pass: tuple[Tensor, Tensor] | None = None  # states and places of the latest verify pass
        self._kept: dict[int, _Noted] = {}  # by sequence

    def listen(self, block: Block, members: Seq[Sequence]) -> Block:
        """The same block of a verify pass, whose hidden states come here."""
        fed = block.of_members()
        sequence = torch.tensor([[m.index] for m in members], device=fed.tokens.device).expand(fed.tokens.shape)
        places = torch.stack([sequence, fed.position_ids, fed.tokens], dim=-1)

        def note(hidden: Tensor) -> None:
            self._pass = block.rows_of_members(hidden), places

        return replace(block, note_hidden=NoteHidden(note, self.reads.layers))

    def of_prompts(self, block: Block | PackedBlock, rows: Seq[RowState], start: int, stop: int) -> NoteHidden:
        """Keep those of a block of prompts' tokens in [start, stop)."""
        fed = uncached(rows, start, stop)

        def parts(values: Tensor) -> Seq[Tensor]:
            if isinstance(block, PackedBlock):
                return values[0].split([last - first for _, first, last in fed])
            own = block.rows_of_members(values)
            return [own[i, first - start : last - start] for i, first, last in fed]

        def note(hidden: Tensor) -> None:
            places = torch.stack([block.position_ids, block.tokens], dim=-1)
            for (i, *_), states, told in zip(fed, parts(hidden), parts(places), strict=True):
                sequence = torch.full_like(told[:, :1], rows[i].sequence)
                self._add(rows[i].sequence, _Noted(states, torch.cat([sequence, told], dim=1), verified=False))

        return NoteHidden(note, self.reads.layers)

    def commit(self, members: Seq[Sequence], kept: Seq[int]) -> None:
        """Row i commits `kept[i]` tokens: as many of those that were fed are committed now, and none behind them."""
        assert self._pass is not None
        told = [behind(each, kept) for each in self._pass]
        for m, states, places in zip(members, *told, strict=True):
            if m.finished:
                self.forget(m)
            else:
                self._add(m.index, _Noted(states, places, verified=True))
        self._pass = None

    def _add(self, index: int, noted: _Noted) -> None:
        """Append states to those of a row that the head has not read, or has to read again."""
        before = self._kept.get(index)
        if before is None or not self.reads.whole:
            self._kept[index] = noted if self.reads.whole else noted.last(1)
        else:
            self._kept[index] = (before.last(self.reads.again) if before.taken else before).followed_by(noted)

    def has(self, sequence: Sequence) -> bool:
        """Whether there are any for a row to draft from."""
        return sequence.index in self._kept and self._kept[sequence.index].verified

    def of(self, members: Seq[Sequence]) -> list[Float[Tensor, "n hidden"]]:
        """The members' states, oldest first; nothing for those that have none."""
        if self._checker.covers("device"):
            for m in (m for m in members if self.has(m) and not m.finished):
                check_places(m, self._kept[m.index].places)
        none = next(iter(self._kept.values())).states[:0]
        return [self._take(m) if self.has(m) else none for m in members]

    def check_kept(self, sequence: Sequence, found: int, expected: int) -> None:
        """INV-22: what the head has cached of a row is K/V of the states before those that it reads."""
        if self._checker.covers("device") and self.has(sequence):
            told = (f"K/V of {count} states before" for count in (expected, found))
            require_invariant(found == expected, "INV-22", row=sequence.index, expected=next(told), found=next(told))

    def _take(self, sequence: Sequence) -> Float[Tensor, "n hidden"]:
        self._kept[sequence.index].taken = True
        return self._kept[sequence.index].states

    def forget(self, sequence: Sequence) -> None:
        """Drop those of a row."""
        self._kept.pop(sequence.index, None)


def check_places(sequence: Sequence, places: Int[Tensor, "n 3"]) -> None:
    """INV-22."""
    end, tokens = sequence.seq_len - 1, sequence.token_ids
    for position, found in enumerate(places.tolist(), start=end - len(places)):
        expected = [sequence.index, position, tokens[position]]
        require_invariant(
            found == expected, "INV-22", row=sequence.index, expected=_place(*expected), found=_place(*found)
        )


def _place(sequence: int, position: int, token: int) -> str:
    return f"sequence {sequence}, position {position}, token {token}"


def behind(values: Shaped[Tensor, "batch q n"], kept: Seq[int]) -> list[Shaped[Tensor, "kept n"]]:
    """Values of row i behind the first `kept[i]` tokens of a pass."""
    return [row[:count] for row, count in zip(values, kept, strict=True)]
