"""The `paged` layout: every position of every row has a slot of its own, for every size of a block.

A position is said as ``number · size + place``, so that the specification needs no division. Rows never have the same
block (INV-13), so a slot that tells its block and its place belongs to one position of one row.
"""

from collections.abc import Callable
from types import ModuleType

import z3

from proofs.z3.obligation import Obligation
from proofs.z3.row import between

SIZES = range(1, 65)  # every size that the settings allow, and those between


def obligations(kernels: ModuleType) -> list[Obligation]:
    """All claims about slots of blocks."""
    block, number, place = z3.Ints("block number place")

    def slot(size: int, further: int = 0) -> z3.ArithRef:
        return kernels.paged_slot(block, number * size + place + further, size)

    def claim(name: str, holds: Callable[[int], z3.BoolRef], *, last: int = 1) -> Obligation:
        given = [block >= 0, number >= 0, place >= 0, place < SIZES[-1]]
        sizes = [z3.Implies(place + last <= size, holds(size)) for size in SIZES]
        return Obligation(f"paged: {name}, blocks of 1 … 64", given, z3.And(*sizes))

    return [
        claim("a slot lies in its block (INV-14)", lambda size: between(block * size, slot(size), block * size + size)),
        claim(
            "position p is at place p mod size of its block (INV-2)", lambda size: slot(size) == block * size + place
        ),
        claim(
            "a slot tells its block and its place, so no two positions share one (INV-4)",
            lambda size: z3.And(slot(size) / size == block, slot(size) % size == place),
        ),
        claim(
            "the next position of a block is the next slot, so that whole blocks can be gathered (INV-3)",
            lambda size: slot(size, 1) == slot(size) + 1,
            last=2,
        ),
    ]


def faults(kernels: ModuleType) -> list[Obligation]:
    """Slots as they were wrong elsewhere."""
    block, other, position, after = z3.Ints("block other position after")
    size = 16
    given = [block >= 0, other >= 0, position >= 0, after > position, block != other]

    def fault(name: str, wrong: z3.ArithRef, other_slot: z3.ArithRef) -> Obligation:
        return Obligation(f"paged: {name}", given, wrong != other_slot)

    return [
        fault(
            "the place is not taken modulo the size: a row writes to a block of another",
            block * size + position,
            kernels.paged_slot(other, position, size),
        ),
        fault("a block is read with another size", block * (size // 2) + position % size, other * size + after % size),
        fault(
            "the place in the block is forgotten: positions of a block share a slot",
            kernels.paged_slot(block, position - position % size, size),
            kernels.paged_slot(block, after - after % size, size),
        ),
    ]
