"""Blocks of K/V: a free list and a reference count each. One block holds the same tokens for target and draft."""

from collections import OrderedDict
from collections.abc import Iterable

from refimpl.core.invariants import InvariantViolation
from refimpl.scheduling.prefix_cache import PrefixCache


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that so many tokens take."""
    return -(-tokens // block_size)


class BlockPool:
    """Blocks of one size; a block that was given back last is taken first.

    Blocks whose text is known stay as they are until there are no others. Then those go first that were used longest
    ago.

    Args:
        num_blocks: of the pool.
        block_size: tokens of a block.

    Attributes:
        null_block: in a table, stands for a block that was given back while its row goes on; where the layout writes
            what belongs nowhere.
        free: blocks that nobody uses, and whose text is not known.
        idle: blocks that nobody uses, and whose text can be found; the one used longest ago comes first.
        prefix_cache: what full blocks hold, as far as they may be shared.
        refs: tables that name each block.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks, self.block_size, self.null_block = num_blocks, block_size, num_blocks
        self.free = list(range(num_blocks))[::-1]
        self.idle: OrderedDict[int, None] = OrderedDict()  # its first is found at once, however many have left
        self.prefix_cache = PrefixCache()
        self.refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be taken."""
        return len(self.free) + len(self.idle)

    @property
    def num_used(self) -> int:
        """Blocks that are in some table."""
        return self.num_blocks - self.num_free

    def take(self, count: int) -> list[int]:
        """Take free blocks; the caller knows that there are as many.

        Raises:
            InvariantViolation: one of them is still in use (INV-13).
        """
        blocks = [self.free.pop() if self.free else self._oldest() for _ in range(count)]
        for block in blocks:
            if self.refs[block] != 0:
                self._refuse(f"block {block} free", f"{self.refs[block]} references")
            self.refs[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> list[int]:
        """Add one reference to each of these blocks, whose text was found; return them."""
        for block in blocks:
            self.idle.pop(block, None)
            self.refs[block] += 1
        return blocks

    def give_back(self, blocks: Iterable[int]) -> None:
        """Drop one reference to each block; a block without references is free.

        Raises:
            InvariantViolation: one of them is in nobody's use (INV-13).
        """
        for block in blocks:
            if self.refs[block] <= 0:
                self._refuse(f"block {block} in use", "no reference")
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self._set_free(block)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Compare counts and free list with the tables of all sequences.

        Raises:
            InvariantViolation: they do not fit together (INV-13), or blocks are lost (INV-15).
        """
        counts = [0] * (self.num_blocks + 1)
        for table in tables:
            for block in table:
                counts[block] += 1
        counts.pop()  # of the null block
        if counts != self.refs:
            self._refuse(f"references {counts}", self.refs)
        unused, found = [b for b, count in enumerate(counts) if count == 0], sorted([*self.free, *self.idle])
        if found != unused:
            raise InvariantViolation("INV-15", row=None, expected=f"{unused} free", found=found)

    def _set_free(self, block: int) -> None:
        if block in self.prefix_cache:
            if self.prefix_cache.finds(block):
                self.idle[block] = None
                return
            self.prefix_cache.forget(block)
        self.free.append(block)

    def _oldest(self) -> int:
        """The block that was used longest ago; its text is forgotten."""
        block, _ = self.idle.popitem(last=False)
        self.prefix_cache.forget(block)
        return block

    def _refuse(self, expected: object, found: object) -> None:
        raise InvariantViolation("INV-13", row=None, expected=expected, found=found)
