"""Prompt lookup: the last tokens of a row stood somewhere before, and what followed them there is proposed."""

from collections.abc import Sequence as Seq

LONGEST, SHORTEST = 4, 2  # tokens that must agree: a long match is tried first


class NgramIndex:
    """Where the n-grams of one row have ended, as far as the row has been read.

    Only committed tokens may be read: they never change, so a token costs the same few entries whenever it is read.
    Source: Saxena 2023, "Prompt Lookup Decoding"; of several earlier places the latest one is taken.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}  # n-gram -> its latest end and the one before, or 0

    def read(self, token_ids: Seq[int]) -> None:
        """Take in a row, which begins with what was read of it before."""
        for token in token_ids[len(self._tokens) :]:
            self._tokens.append(token)
            end = len(self._tokens)
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                ngram = tuple(self._tokens[end - n :])
                self._ends[ngram] = end, self._ends.get(ngram, (0, 0))[0]

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that followed the row's last n-gram where it stood before; none if it did not."""
        end = len(self._tokens)
        for n in range(min(LONGEST, end), SHORTEST - 1, -1):
            _, before = self._ends[tuple(self._tokens[end - n :])]
            if before:
                return self._tokens[before : before + limit]
        return []
