"""Passes of two cohorts: behind the verify pass of one, the draft proposes for the other.

The drafts that a round verifies were made beside the round before it. So what they are made from cannot depend on what
that round has decided, and the draft may run meanwhile: on a GPU in a stream of its own, beside the verify pass. On a
CPU the passes follow each other. What a second device gains is simulated.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from refimpl.core.invariants import require_invariant
from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import RowNumbers
from refimpl.decoding.drafters import Drafts
from refimpl.decoding.invariants import Checker
from refimpl.decoding.passes import EagerPasses, Verified
from refimpl.decoding.prefill import Chunks
from refimpl.decoding.streams import Streams


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Drafts made before their round, for these rows at these lengths."""

    rows: tuple[Sequence, ...]
    lengths: tuple[int, ...]
    drafts: Drafts
    numbers: RowNumbers

    def serves(self, members: Seq[Sequence]) -> bool:
        return self.rows == tuple(members)


class OverlappedPasses:
    """Verifies what was drafted beside the round before, and drafts for the next one.

    Members whose drafts are not there are drafted at once: at first, and where a row of their cohort has left since.

    Args:
        eager: runs the passes; its layouts move nothing, so that a round of one cohort leaves the other's K/V alone.
        checker: knows whether cohorts are checked.
        streams: of the device.
    """

    def __init__(self, eager: EagerPasses, checker: Checker, streams: Streams):
        self._eager, self._checker, self._streams = eager, checker, streams
        self._members: Seq[Sequence] = ()
        self._ahead: _Ahead | None = None

    def run(self, members: Seq[Sequence], limits: list[int], chunks: Chunks = ()) -> Verified:
        """Verify the members' drafts, made ahead where that was done for these rows."""
        self._members, ahead = members, self._ahead
        if ahead and ahead.serves(members):
            self._check_lengths(ahead)
            drafts, numbers = ahead.drafts, ahead.numbers
        else:
            drafts, numbers = self._eager.draft(members, limits)
        self._streams.mark()  # behind all that writes to the draft's cache, before the verify pass
        return self._eager.verify(members, drafts, numbers, chunks)

    def after(self, ahead: Seq[Sequence]) -> None:
        """Draft for the other cohort; the drafts that are being verified are kept until that has been launched."""
        self._check_cohorts(ahead)
        self._ahead = self._draft(ahead) if ahead else None

    def _draft(self, rows: Seq[Sequence]) -> _Ahead:
        with self._streams.aside(), self._eager.target.timer.ahead():
            drafted = self._eager.draft(rows, [m.draft_limit for m in rows])
        return _Ahead(tuple(rows), tuple([m.seq_len for m in rows]), *drafted)

    def _check_lengths(self, ahead: _Ahead) -> None:
        """INV-21: what is verified was drafted for the text as it is."""
        if self._checker.covers("host"):
            for m, drafted_at in zip(ahead.rows, ahead.lengths, strict=True):
                require_invariant(m.seq_len == drafted_at, "INV-21", row=m.index, expected=m.seq_len, found=drafted_at)

    def _check_cohorts(self, ahead: Seq[Sequence]) -> None:
        """INV-21: nothing is drafted for a row that a verify pass is about to lengthen."""
        if self._checker.covers("host"):
            both = {m.index for m in ahead} & {m.index for m in self._members}
            require_invariant(not both, "INV-21", row=None, expected="cohorts without a common row", found=sorted(both))
