"""A rectangle beside the pool, gathered again when its members change."""

from abc import abstractmethod
from collections.abc import Sequence as Seq

from refimpl.placement.base import Move, PlacedRow, Placement

SLACK_COLUMNS = 32  # columns kept free when a rectangle is laid out


class RectanglePlacement(Placement):
    """Rows of the current round are in a rectangle whose columns grow to the right."""

    _sequences: Seq[int] = ()

    @classmethod
    def batch_columns(cls, columns: int) -> int:
        """As many as a pool row has, and the slack."""
        return columns + SLACK_COLUMNS

    def has_members(self, rows: Seq[PlacedRow]) -> bool:
        """Whether the rectangle contains these sequences in this order."""
        return [row.sequence for row in rows] == self._sequences

    def forget(self) -> None:
        """It contains nobody."""
        self._sequences = ()

    def begin(self, rows: Seq[PlacedRow], span: int) -> Move | None:
        """Keep the rectangle if the members are the same, else load them from the pool."""
        if self.has_members(rows):
            return self.realign(rows, span)
        self._sequences = [row.sequence for row in rows]
        return self.load(rows, span)

    @abstractmethod
    def load(self, rows: Seq[PlacedRow], span: int) -> Move:
        """Gather the rows from the pool."""

    @abstractmethod
    def realign(self, rows: Seq[PlacedRow], span: int) -> Move | None:
        """Adapt the rectangle to the rows' new lengths."""
