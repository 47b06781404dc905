"""Room for K/V as a scheduler sees it: who may enter, who must leave so that a round can run."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Generic, TypeVar

from refimpl.core.errors import InvariantViolation
from refimpl.scheduling.blocks import BlockPool, blocks_for
from refimpl.scheduling.pool import Schedulable

T = TypeVar("T", bound=Schedulable)


class Room(Generic[T]):
    """Room without an end: every sequence of the window has a place of its own for its whole budget."""

    num_blocks: int | None = None  # of the pool, where there are blocks

    @property
    def num_blocks_used(self) -> int | None:
        """Blocks that are not free, where there are blocks."""
        return None

    def enter(self, sequence: T, residents: Iterable[T]) -> bool:
        """Take what a sequence needs to be prefilled beside these residents; False where it must wait."""
        return True

    def reserve(self, members: Seq[T]) -> bool:
        """Take what a round of these members may write; False, and nothing is taken, where it does not fit."""
        return True

    def settle(self, members: Iterable[T]) -> None:
        """After a round: keep what is cached, and nothing of those who have finished."""

    def leave(self, sequence: T) -> None:
        """Give back all of a sequence."""

    def check(self, residents: Iterable[T]) -> None:
        """Between rounds: raise InvariantViolation unless the books are right."""


class PagedRoom(Room[T]):
    """Blocks of a pool, taken when they are needed.

    Args:
        pool: the blocks.
        span: tokens that a round may write beyond the length of a row.
    """

    def __init__(self, pool: BlockPool, span: int):
        self.pool, self.span, self.num_blocks = pool, span, pool.num_blocks

    @property
    def num_blocks_used(self) -> int:
        """Blocks that are not free."""
        return self.pool.num_used

    def enter(self, sequence: T, residents: Iterable[T]) -> bool:
        """Take the blocks of all tokens but the last.

        A round of all residents stays possible, so that a sequence does not enter just to be sent away.
        """
        if not self._fits([*residents, sequence]):
            return False
        sequence.blocks += self.pool.take(blocks_for(sequence.seq_len - 1, self.pool.block_size))
        return True

    def reserve(self, members: Seq[T]) -> bool:
        """Bring every unfinished member to the end of what this round may write."""
        if not self._fits(members):
            return False
        for member in members:
            member.blocks += self.pool.take(self._missing(member))
        return True

    def settle(self, members: Iterable[T]) -> None:
        """Give back what only rejected drafts needed."""
        for member in members:
            self._cut(member, 0 if member.finished else blocks_for(member.seq_len - 1, self.pool.block_size))

    def leave(self, sequence: T) -> None:
        """Give back all of a sequence."""
        self._cut(sequence, 0)

    def check(self, residents: Iterable[T]) -> None:
        """Between rounds: raise InvariantViolation unless books and tables agree (INV-13, INV-15)."""
        residents = list(residents)
        self.pool.check(sequence.blocks for sequence in residents)
        for sequence in residents:
            need = 0 if sequence.finished else blocks_for(sequence.seq_len - 1, self.pool.block_size)
            if len(sequence.blocks) != need:
                statement = "between rounds a row has the blocks of its cached tokens"
                found = len(sequence.blocks)
                raise InvariantViolation("INV-15", statement, row=sequence.ticket, expected=need, found=found)

    def _fits(self, sequences: Iterable[T]) -> bool:
        return sum(map(self._missing, sequences)) <= len(self.pool.free)

    def _missing(self, sequence: T) -> int:
        """Blocks that a round of this sequence needs and it does not have."""
        if sequence.finished:
            return 0
        end = min(sequence.seq_len + self.span, sequence.most_tokens)
        return max(0, blocks_for(end, self.pool.block_size) - len(sequence.blocks))

    def _cut(self, sequence: T, keep: int) -> None:
        self.pool.give_back(sequence.blocks[keep:])
        del sequence.blocks[keep:]
