"""Which blocks hold which text, so that sequences with a common beginning can share them."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

NOTHING = 0  # number of the text before the first block


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """All tokens of a row up to the end of one of its full blocks.

    Attributes:
        number: of this text; no other text ever gets it.
        before: number of the text that ends where the block begins.
        tokens: tokens of the block.
    """

    number: int
    before: int
    tokens: Hashable


class PrefixCache:
    """Full blocks, found by the text before them and their own tokens.

    Both are compared as they are, token by token; a hash only says where to look. A number is never given twice, so
    nothing is found behind a text that was forgotten.
    """

    def __init__(self) -> None:
        self._of: dict[int, CachedPrefix] = {}  # by block
        self._blocks: dict[Hashable, int] = {}  # by key: the first block that held the text
        self._last_number = NOTHING

    def __contains__(self, block: int) -> bool:
        return block in self._of

    def of(self, block: int) -> CachedPrefix | None:
        """The text that ends with a block; None where that is not known."""
        return self._of.get(block)

    def find(self, blocks_of_tokens: Iterable[Hashable]) -> list[int]:
        """Blocks of the longest known text that a row with these tokens, block by block, begins with."""
        found: list[int] = []
        before = NOTHING
        for tokens in blocks_of_tokens:
            block = self._blocks.get(self.key(before, tokens))
            if block is None:
                break
            found.append(block)
            before = self._of[block].number
        return found

    def note(self, block: int, previous: int | None, tokens: Hashable) -> None:
        """Remember that a block holds these tokens behind the text of the previous block; None: at the beginning.

        Where another block holds the same text, both get its number, and the other one is found.
        """
        before = NOTHING if previous is None else self._of[previous].number
        first = self._blocks.setdefault(self.key(before, tokens), block)
        if first == block:
            self._last_number += 1
        number = self._last_number if first == block else self._of[first].number
        self._of[block] = CachedPrefix(number, before, tokens)

    def forget(self, block: int) -> None:
        """A block is about to hold something else."""
        if self.finds(block):
            del self._blocks[self.key(self._of[block].before, self._of[block].tokens)]
        self._of.pop(block, None)

    def finds(self, block: int) -> bool:
        """Whether a search can come to this very block."""
        text = self._of.get(block)
        return text is not None and self._blocks.get(self.key(text.before, text.tokens)) == block

    @staticmethod
    def key(before: int, tokens: Hashable) -> Hashable:
        """What a text is looked up by."""
        return before, tokens
