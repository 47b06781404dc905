"""The protocol of a placement: rows and span in, a move out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from refimpl.placement.sizes import PoolSize


def are_neighbours(slots: Seq[int]) -> bool:
    """Whether pool rows are adjacent, so that they can be viewed without a copy."""
    return all(after == before + 1 for before, after in pairwise(slots))


class PlacedRow(Protocol):
    """What a placement knows about a row."""

    @property
    def slot(self) -> int:
        """Its row of the pool."""

    @property
    def sequence(self) -> int:
        """Which sequence it is."""

    @property
    def seq_len(self) -> int:
        """Real tokens."""

    @property
    def num_cached(self) -> int:
        """Leading tokens whose K/V the model has cached."""

    @property
    def finished(self) -> bool:
        """Whether it no longer runs, and is only still in a static batch."""


class Move(NamedTuple):
    """One gather that lays the members of a round out in a new rectangle.

    Attributes:
        kind: ``load`` from the pool, or from the rectangle before: ``grow`` for more columns alone, ``realign`` to a
            common end, ``compact`` without holes.
        columns: of the new rectangle, slack included.
        shifts: columns that each row's entries move to the right; for ``compact`` the left pads of each row.
    """

    kind: Literal["load", "grow", "realign", "compact"]
    columns: int
    shifts: tuple[int, ...]


class Placement(ABC):
    """Decides, for one model, what moves before a round and how wide the round is.

    A round is ``begin(rows, span)``, then ``append(columns)`` for every block of tokens that is fed. Lengths are those
    of the rows that `begin` is given; nothing else is remembered of them.

    Attributes:
        width: columns that the next block's first query could look back at.
        columns: of the rectangle beside the pool; 0 if there is none.
    """

    commits_minimum = False  # whether every row commits the batch minimum (rollback)
    always_gathers = False  # whether every pass copies what it reads (paged)
    width = 0
    columns = 0

    @classmethod
    def batch_columns(cls, columns: int) -> int:
        """Columns of a rectangle of rows as long as pool rows of `columns`; 0 where there is no rectangle."""
        return 0

    @classmethod
    def num_slots(cls, size: PoolSize) -> int:
        """K/V slots of a pool and of the rectangles beside it, one token each."""
        rows, columns = cls.store_shape(size)
        return rows * columns + cls.num_working_slots(size.batch_rows, size.columns)

    @classmethod
    def store_shape(cls, size: PoolSize) -> tuple[int, int]:
        """Rows and columns of the pool as it is stored."""
        return size.rows, size.columns

    @classmethod
    def num_working_slots(cls, batch_rows: int, columns: int) -> int:
        """Slots beside the pool: a gather reads one rectangle and writes another."""
        return 2 * batch_rows * cls.batch_columns(columns)

    def has_members(self, rows: Seq[PlacedRow]) -> bool:
        """Whether the rectangle beside the pool contains these sequences in this order."""
        return True

    def forget(self) -> None:  # noqa: B027 (there is no rectangle)
        """The rectangle beside the pool is not up to date: load whoever comes next."""

    @abstractmethod
    def begin(self, rows: Seq[PlacedRow], span: int) -> Move | None:
        """Start a round whose blocks will feed up to `span` tokens a row; return what has to move first."""

    def append(self, columns: int) -> None:  # noqa: B027 (most layouts write over what is there)
        """Record that a block of so many columns was appended."""
