"""The books of what a model was fed, which cached lengths are compared with (INV-5, INV-6)."""

from collections.abc import Sequence as Seq

from refimpl.core.invariants import require_invariant
from refimpl.core.sequence import Sequence


class FedTokens:
    """Counts, for one model, the leading tokens of each sequence that it was fed without a gap.

    Of rounds, nothing here is taken from the sequences' own cached lengths. Prefills are taken as they are reported.

    Args:
        invariant: broken where a pass leaves a gap.
    """

    def __init__(self, invariant: str):
        self._invariant = invariant
        self._count: dict[int, int | None] = {}  # by sequence; None after passes that were not seen

    def prefilled(self, sequence: Sequence, count: int) -> None:
        """Begin anew, with so many tokens of the prompt."""
        self._count[sequence.index] = count

    def unseen(self, members: Seq[Sequence]) -> None:
        """A round whose passes are recorded feeds what cannot be seen here."""
        self._count.update(dict.fromkeys([m.index for m in members]))

    def feed(self, members: Seq[Sequence], offset: int, count: int) -> None:
        """A pass feeds positions [seq_len + offset, seq_len + offset + count) of every member."""
        for m in (m for m in members if not m.finished):
            first, fed = max(0, m.seq_len + offset), self._count.get(m.index, 0)
            if fed is not None:
                require_invariant(first <= fed, self._invariant, row=m.index, expected=f"{fed} or less", found=first)
                self._count[m.index] = m.seq_len + offset + count

    def settle(self, sequence: Sequence, claimed: int) -> int:
        """Leading tokens of the committed text that were fed, its last one aside; `claimed` where that is not known."""
        fed = self._count.get(sequence.index, 0)
        right = claimed if fed is None else min(fed, sequence.seq_len - 1)
        self._count[sequence.index] = right
        return right
