"""In place: position p of a row is column p of its pool row, always."""

from collections.abc import Sequence as Seq

from refimpl.placement.base import PlacedRow, Placement


class InplacePlacement(Placement):
    """Nothing ever moves."""

    def begin(self, rows: Seq[PlacedRow], span: int) -> None:
        """A round is as wide as its longest row."""
        self.width = max([row.seq_len for row in rows if not row.finished])
