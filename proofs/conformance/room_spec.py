"""Room for blocks of K/V as a relation: who may enter, who is sent back, what a row holds.

Imports nothing of the engine. Everything is said in lengths; a block is a number. Every function returns the reason
why a step is not allowed, or None.
"""

from dataclasses import dataclass

Lengths = dict[int, int]  # real tokens by ticket, of unfinished sequences
Tables = dict[int, tuple[int, ...]]  # blocks by ticket, in order of position


@dataclass(frozen=True)
class Blocks:
    """A pool of `total` blocks of `size` tokens; a round writes up to `span` tokens beyond a row's length.

    No row grows beyond `limit` tokens.
    """

    total: int
    size: int
    span: int
    limit: int

    def held(self, seq_len: int) -> int:
        """Blocks of a resident between rounds: those of its cached tokens, all but the last."""
        return -(-(seq_len - 1) // self.size)

    def wanted(self, seq_len: int) -> int:
        """Blocks of a row while it runs."""
        return -(-min(seq_len + self.span, self.limit) // self.size)


def num_entering(blocks: Blocks, residents: Lengths, queue: list[int]) -> int:
    """How many of the queue, given by their lengths, fit beside the residents if all of them run together."""
    wanted = sum(blocks.wanted(n) for n in residents.values())
    for count, seq_len in enumerate(queue):
        wanted += blocks.wanted(seq_len)
        if wanted > blocks.total:
            return count
    return len(queue)


def choice_fault(blocks: Blocks, residents: Lengths, sent: tuple[int, ...], members: tuple[int, ...]) -> str | None:
    """Why these may not be sent back, in this order, so that these members can run."""
    oldest_first = sorted(residents)
    stay, going = oldest_first[: len(residents) - len(sent)], oldest_first[len(residents) - len(sent) :]
    if not stay or list(sent) != going[::-1]:
        return f"INV-19: sent back {sent} of {oldest_first}, not the youngest, or the oldest too"
    taken = [blocks.wanted(residents[t]) if t in members else blocks.held(residents[t]) for t in stay]
    if sum(taken) > blocks.total:
        return f"INV-16: a round of {members} takes {sum(taken)} of {blocks.total} blocks"
    if sent and sum(blocks.wanted(residents[t]) for t in (*stay, sent[-1])) <= blocks.total:
        return f"{sent[-1]} was sent back, and all that were left would have fitted"
    return None


def books_fault(blocks: Blocks, tables: Tables, free: list[int], references: list[int]) -> str | None:
    """INV-13 and INV-15: every block is free or in one table, once."""
    used = [block for table in tables.values() for block in table]
    if sorted([*used, *free]) != list(range(blocks.total)):
        return f"INV-13, INV-15: tables {tables}, free {free} of {blocks.total}"
    if references != [int(block in used) for block in range(blocks.total)]:
        return f"INV-13: references {references}, tables {tables}"
    return None


def tables_fault(blocks: Blocks, residents: Lengths, running: tuple[int, ...], tables: Tables) -> str | None:
    """INV-15, INV-16, INV-19: a running row has all blocks of its round, a resident those of its cached tokens.

    Nobody else has any.
    """
    right = {t: blocks.wanted(n) if t in running else blocks.held(n) for t, n in residents.items()}
    found = {t: len(table) for t, table in tables.items() if table or t in residents}
    return None if found == right else f"blocks {found}, expected {right}"


def moved_fault(blocks: Blocks, residents: Lengths, before: Tables, after: Tables) -> str | None:
    """Cached tokens of a resident stay in the blocks that they were written to."""
    for t, seq_len in residents.items():
        held = blocks.held(seq_len)
        if before[t][:held] != after[t][:held]:
            return f"cached tokens of {t} moved from {before[t]} to {after[t]}"
    return None
