"""Left-padded rows that end at a common column."""

from collections.abc import Sequence as Seq
from typing import Literal

from refimpl.core import kernels
from refimpl.placement.base import Move, PlacedRow
from refimpl.placement.rectangle import SLACK_COLUMNS, RectanglePlacement


class RealignedPlacement(RectanglePlacement):
    """Rows that have kept different numbers of tokens are shifted, so that all end together.

    ``num_pad[i] + seq_len[i] == width`` for every live row (INV-1). A round in which every live row has kept the same
    number of tokens moves nothing.

    Attributes:
        num_pad: left pads of each row.
    """

    num_pad: Seq[int] = ()

    def load(self, rows: Seq[PlacedRow], span: int) -> Move:
        """Position p goes to column num_pad + p."""
        self._set_width(rows)
        self.num_pad = [kernels.num_pad(self.width, row.seq_len) for row in rows]
        return self._lay_out("load", self.num_pad, span)

    def realign(self, rows: Seq[PlacedRow], span: int) -> Move | None:
        """Shift each row to end at the new width, unless every shift is 0 and the columns suffice."""
        self._set_width(rows)
        width, before = self.width, self.num_pad
        self.num_pad = [
            before[i] if row.finished else kernels.num_pad(width, row.seq_len) for i, row in enumerate(rows)
        ]
        if self.num_pad == before and width + span <= self.columns:
            return None
        shifts = [kernels.realign_shift(old, new) for old, new in zip(before, self.num_pad, strict=True)]
        return self._lay_out("realign" if any(shifts) else "grow", shifts, span)

    def _set_width(self, rows: Seq[PlacedRow]) -> None:
        self.width = max([row.seq_len for row in rows if not row.finished])

    def _lay_out(self, kind: Literal["load", "grow", "realign"], shifts: Seq[int], span: int) -> Move:
        self.columns = self.width + span + SLACK_COLUMNS
        return Move(kind, self.columns, tuple(shifts))


class RollbackPlacement(RealignedPlacement):
    """Every live row commits the batch minimum, so rows never become ragged and nothing is realigned."""

    commits_minimum = True
