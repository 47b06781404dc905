"""Room for K/V as a scheduler sees it: who may enter, who must leave so that a round can run."""

from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as Seq
from typing import Generic, Literal

from refimpl.core.invariants import InvariantViolation
from refimpl.core.sequence import MOST_LAG
from refimpl.scheduling.blocks import BlockPool, blocks_for
from refimpl.scheduling.pool import T
from refimpl.scheduling.prefix_cache import NOTHING

Sharing = Literal["nothing", "prompts", "texts"]


class KVAllocator(Generic[T]):
    """Room without an end: every sequence of the window has a place of its own for its whole budget."""

    num_blocks: int | None = None  # of the pool, where there are blocks
    shares: Sharing = "nothing"  # of them, by sequences that enter later
    first_seen: Callable[[int], int] | None = None  # where blocks that no later query sees are given back

    @property
    def num_blocks_used(self) -> int | None:
        """Blocks that are not free, where there are blocks."""
        return None

    def num_cached(self, residents: Iterable[T]) -> int:
        """Tokens that are cached for these residents, those that they share counted once."""
        return sum(s.seq_len - 1 - s.to_prefill for s in residents if not s.finished)

    def prefix_tokens(self, sequence: T) -> int:
        """First tokens of a sequence that the cache holds, if it entered now."""
        return 0

    def enter(self, sequence: T, residents: Iterable[T]) -> bool:
        """Take what a sequence needs to be prefilled beside these residents; False where it must wait."""
        return True

    def reserve(self, members: Seq[T]) -> bool:
        """Take what a round of these members may write; False, and nothing is taken, where it does not fit."""
        return True

    def settle(self, members: Iterable[T]) -> None:
        """After a round: keep what is cached, and nothing of those who have finished."""

    def note_chunks(self, sequences: Iterable[T]) -> None:
        """More of these sequences' prompts is cached."""

    def leave(self, sequence: T) -> None:
        """Give back all of a sequence."""

    def check_round(self, members: Iterable[T]) -> None:
        """Before a round of these members: raise InvariantViolation unless each may write where it will."""

    def check(self, residents: Iterable[T], ahead: Container[int] = ()) -> None:
        """Between rounds: raise InvariantViolation unless the books are right; `ahead` as in `Scheduler`."""


class PagedKVAllocator(KVAllocator[T]):
    """Blocks of a pool, taken when they are needed.

    Args:
        pool: the blocks.
        span: tokens that a round may write beyond the length of a row.
        shares: which full blocks can be found by sequences that enter later: those of prompts, for prompts, or those
            of texts, what rounds have written included.
        in_chunks: whether a prompt is cached in chunks after its sequence has entered; what they fill can be found from
            then on.
        first_seen: first position that queries from a given one on may see; None where some layer sees all of a row.
    """

    def __init__(
        self,
        pool: BlockPool,
        span: int,
        shares: Sharing = "nothing",
        *,
        in_chunks: bool = False,
        first_seen: Callable[[int], int] | None = None,
    ):
        self.pool, self.span, self.num_blocks = pool, span, pool.num_blocks
        self.shares, self.in_chunks, self.first_seen = shares, in_chunks, first_seen

    @property
    def num_blocks_used(self) -> int:
        """Blocks that are not free."""
        return self.pool.num_used

    def num_cached(self, residents: Iterable[T]) -> int:
        """Tokens that are cached for these residents, those that they share counted once."""
        size, filled = self.pool.block_size, dict[int, int]()
        for sequence in (s for s in residents if not s.finished):
            cached = sequence.seq_len - 1 - sequence.to_prefill
            rest = [max(0, cached - i * size) for i in range(len(sequence.blocks))]
            filled |= {block: min(size, more) for block, more in zip(sequence.blocks, rest, strict=True)}
        filled.pop(self.pool.null_block, None)
        return sum(filled.values())

    def prefix_tokens(self, sequence: T) -> int:
        """First tokens of a sequence that the cache holds, if it entered now."""
        return len(self._found(sequence, sequence.seq_len - 1)) * self.pool.block_size

    def enter(self, sequence: T, residents: Iterable[T]) -> bool:
        """Take the blocks of all tokens but the last; those that hold its first tokens already are shared.

        A round of all residents stays possible, so that a sequence does not enter just to be sent away. Unless prompts
        are cached in chunks, who enters next may share what this one is about to write: it is prefilled in the same
        pass, or later.
        """
        cached = sequence.seq_len - 1
        found = self._found(sequence, cached)
        if not self._fits([*residents, sequence], found):
            return False
        sequence.blocks += self.pool.share(found)
        sequence.num_prefix_hits = len(sequence.blocks) * self.pool.block_size
        sequence.blocks += self.pool.take(blocks_for(cached, self.pool.block_size) - len(sequence.blocks))
        if not self.in_chunks:
            self._note_prompt(sequence, sequence.cached_at_entry)
        return True

    def reserve(self, members: Seq[T]) -> bool:
        """Bring every unfinished member to the end of what this round may write."""
        short = self._short(members)
        if not self._fits(short):
            return False
        for member in short:
            member.blocks += self.pool.take(self._missing(member))
        return True

    def settle(self, members: Iterable[T]) -> None:
        """Give back what only rejected drafts needed, or nobody sees any more; full blocks can be found."""
        size, notes = self.pool.block_size, self.shares == "texts"
        for member in members:
            if notes:
                self._note(member, member.cached_by_all)
            if member.finished:
                self.leave(member)
            elif (keep := blocks_for(member.seq_len - 1, size)) < len(member.blocks):
                self._cut(member, keep)
            self._free_unseen(member)

    def note_chunks(self, sequences: Iterable[T]) -> None:
        """Blocks that chunks of these prompts have filled can be found, as those of rounds."""
        for sequence in sequences:
            self._note_prompt(sequence, sequence.cached_by_all)
            self._free_unseen(sequence)

    def leave(self, sequence: T) -> None:
        """Give back all of a sequence."""
        self._cut(sequence, 0)
        sequence.num_prefix_hits = 0

    def check_round(self, members: Iterable[T]) -> None:
        """Before a round: raise InvariantViolation unless rows share only what none of them writes (INV-14, INV-18)."""
        for member in members:
            if not member.finished:
                self._check_own(member)
                self._check_shared(member)

    def check(self, residents: Iterable[T], ahead: Container[int] = ()) -> None:
        """Between rounds: raise InvariantViolation unless books and tables agree (INV-13, INV-15).

        Rows that were drafted ahead have what their round may write.
        """
        residents = list(residents)
        self.pool.check(sequence.blocks for sequence in residents)
        for sequence in residents:
            end = self._end(sequence) if sequence.ticket in ahead else sequence.seq_len - 1
            need = 0 if sequence.finished else blocks_for(end, self.pool.block_size)
            if len(sequence.blocks) != need:
                found = len(sequence.blocks)
                raise InvariantViolation("INV-15", row=sequence.ticket, expected=need, found=found)

    def _found(self, sequence: T, cached: int) -> list[int]:
        """Blocks that hold the sequence's first tokens already, of so many that it will have cached."""
        size = self.pool.block_size
        starts = range(0, self._sharable(sequence, cached) - size + 1, size)
        return self.pool.prefix_cache.find(sequence.block_tokens(start, start + size) for start in starts)

    def _note_prompt(self, sequence: T, cached: int) -> None:
        if self.shares != "nothing":
            self._note(sequence, self._sharable(sequence, cached))

    def _sharable(self, sequence: T, cached: int) -> int:
        """Tokens that may be shared, of so many; a row that was preempted has more of them than its prompt."""
        return min(cached, sequence.prompt_len - 1) if self.shares == "prompts" else cached

    def _note(self, sequence: T, cached: int) -> None:
        """Let the sequence's full blocks be found, of so many tokens."""
        size, texts, blocks = self.pool.block_size, self.pool.prefix_cache, sequence.blocks
        full = min(cached // size, len(blocks))
        if full == 0 or blocks[full - 1] in texts or blocks[full - 1] == self.pool.null_block:
            return  # no block has become full
        known = next((i for i in range(full, 0, -1) if blocks[i - 1] in texts), 0)
        for i in range(known, full):
            texts.note(blocks[i], blocks[i - 1] if i else None, sequence.block_tokens(i * size, (i + 1) * size))

    def _check_own(self, sequence: T) -> None:
        """Blocks from the first token on that some model has not cached: nobody finds what is still written."""
        for block in sequence.blocks[sequence.cached_by_all // self.pool.block_size :]:
            if block in self.pool.prefix_cache:
                found = f"block {block} is written, and can be found"
                raise InvariantViolation("INV-18", row=sequence.ticket, expected="no text", found=found)

    def _check_shared(self, sequence: T) -> None:
        """Blocks that the sequence has found, and those that others name, too: what has no text is one row's."""
        size, texts, before = self.pool.block_size, self.pool.prefix_cache, NOTHING
        freed = sequence.blocks.count(self.pool.null_block)
        for i, block in enumerate(sequence.blocks[freed:], freed):
            text = texts.of(block)
            if 0 < i == freed and text is not None:  # what was before it is gone
                before = text.before
            if text is None and self.pool.refs[block] > 1:
                found = f"block {block} is in {self.pool.refs[block]} tables"
                raise InvariantViolation("INV-14", row=sequence.ticket, expected="one table", found=found)
            if i * size < sequence.num_prefix_hits or self.pool.refs[block] > 1:
                wanted = before, sequence.block_tokens(i * size, (i + 1) * size)
                held = text and (text.before, text.tokens)
                if wanted != held:
                    raise InvariantViolation("INV-18", row=sequence.ticket, expected=wanted, found=held)
            before = NOTHING if text is None else text.number

    def _fits(self, sequences: Iterable[T], found: Seq[int] = ()) -> bool:
        """Whether a round of these finds blocks; `found` are blocks that the last of them would share."""
        idle = len([block for block in found if self.pool.refs[block] == 0])
        return sum(map(self._missing, self._short(sequences))) - len(found) <= self.pool.num_free - idle

    def _short(self, sequences: Iterable[T]) -> list[T]:
        """Those whose round may write beyond their last block: only they can miss one."""
        size, span = self.pool.block_size, self.span
        return [each for each in sequences if each.seq_len + span > len(each.blocks) * size]

    def _missing(self, sequence: T) -> int:
        """Blocks that a round of this sequence needs and it does not have."""
        if sequence.finished:
            return 0
        return max(0, blocks_for(self._end(sequence), self.pool.block_size) - len(sequence.blocks))

    def _end(self, sequence: T) -> int:
        """Tokens that a row has at most in its round, all of its drafts counted."""
        return min(sequence.seq_len + self.span, sequence.most_tokens)

    def _cut(self, sequence: T, keep: int) -> None:
        """Give back blocks; the last first, so that of a text its end is forgotten before its beginning."""
        self.pool.give_back(block for block in sequence.blocks[keep:][::-1] if block != self.pool.null_block)
        del sequence.blocks[keep:]

    def _free_unseen(self, sequence: T) -> None:
        """Give back the blocks in front of what later queries see."""
        blocks, null_block = sequence.blocks, self.pool.null_block
        stop = min(self._num_unseen(sequence), len(blocks))
        start = next((i + 1 for i in reversed(range(stop)) if blocks[i] == null_block), 0)
        self.pool.give_back(blocks[start:stop][::-1])
        blocks[start:stop] = [null_block] * (stop - start)

    def _num_unseen(self, sequence: T) -> int:
        """Leading blocks that no later query sees.

        The earliest one is behind what every model has cached, or one of the last tokens, that are fed again. Where
        blocks can be found, one more stays: the next that becomes full is noted behind it.
        """
        if self.first_seen is None:
            return 0
        first = self.first_seen(min(sequence.cached_by_all, sequence.seq_len - MOST_LAG))
        return max(0, first // self.pool.block_size - (self.shares != "nothing"))
