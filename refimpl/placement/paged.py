"""Paged: position p of a row is in block ``blocks[p // block_size]``, wherever that block is."""

from refimpl.placement.inplace import InplacePlacement
from refimpl.placement.sizes import PoolSize


class PagedPlacement(InplacePlacement):
    """Nothing ever moves, and a row has only the blocks that it needs; the K/V allocator takes and gives them."""

    always_gathers = True

    @classmethod
    def store_shape(cls, size: PoolSize) -> tuple[int, int]:
        """The blocks, and one more where entries of no position go."""
        return size.num_blocks + 1, size.block_size
