"""Append-only columns: rejected tokens stay as holes until the rectangle is compacted."""

from collections.abc import Sequence as Seq
from typing import Literal

from refimpl.placement.base import Move, PlacedRow
from refimpl.placement.rectangle import SLACK_COLUMNS, RectanglePlacement


class MaskedPlacement(RectanglePlacement):
    """Every block is appended at the common end, holes included, until compaction frees enough.

    Args:
        threshold: share of the columns that compaction must free.
    """

    def __init__(self, threshold: float):
        self.threshold = threshold

    @classmethod
    def batch_columns(cls, columns: int) -> int:
        """A quarter more, for holes."""
        return super().batch_columns(columns) + columns // 4

    def load(self, rows: Seq[PlacedRow], span: int) -> Move:
        """Gather the cached tokens, left-padded."""
        return self._lay_out("load", rows, span)

    def realign(self, rows: Seq[PlacedRow], span: int) -> Move | None:
        """Compact when that frees enough columns, or when the rectangle has too few left."""
        freed = self.width - max([row.num_cached for row in rows])
        if freed > self.threshold * self.width or self.width + span > self.columns:
            return self._lay_out("compact", rows, span)
        return None

    def append(self, columns: int) -> None:
        """Every block makes the rectangle wider."""
        self.width += columns

    def _lay_out(self, kind: Literal["load", "compact"], rows: Seq[PlacedRow], span: int) -> Move:
        cached = [row.num_cached for row in rows]
        self.width = max(cached)
        self.columns = self.width + self.width // 4 + span + SLACK_COLUMNS
        return Move(kind, self.columns, tuple([self.width - n for n in cached]))
