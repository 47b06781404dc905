"""Lookup of the longest match: the row's longest suffix that stood in it before, found by a suffix automaton."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

SHORTEST = 2  # tokens that must agree
MOST_NOTED = 64  # suffixes whose latest end is noted for each token; only rows that repeat themselves have more


@dataclass(slots=True, eq=False)
class _State:
    """Strings that end at the same places of the row: the longest of them, and its suffixes down to the link's.

    Attributes:
        length: tokens of the longest string.
        link: state of the longest suffix that also ends elsewhere; None for the empty string.
        following: state of the string with one more token.
        end: latest place where the strings have ended, the end of the row left out.
    """

    length: int = 0
    link: "_State | None" = None
    following: "dict[int, _State]" = field(default_factory=dict)
    end: int = 0


class SuffixIndex:
    """The suffix automaton of one row, as far as the row has been read; a token costs a constant number of steps.

    What followed the longest match is proposed, at most as many tokens as agree: a long match is trusted further. Of
    several places the latest one is taken. Where the proposal reaches the end of the row it goes on with itself, so
    that a row that repeats a few tokens is continued at any length.
    Source: Blumer et al. 1985 (the automaton), Oliaro et al. 2024 (SuffixDecoding).
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._empty = _State()
        self._whole = self._empty  # the row read so far

    def read(self, token_ids: Seq[int]) -> None:
        """Take in a row, which begins with what was read of it before."""
        for token in token_ids[len(self._tokens) :]:
            self._note_end()
            self._tokens.append(token)
            self._extend(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that followed the row's longest suffix where it stood before; none if it did not."""
        match = self._whole.link
        if match is None or match.length < SHORTEST:
            return []
        period = len(self._tokens) - match.end
        return [self._tokens[match.end + i % period] for i in range(min(limit, match.length))]

    def _note_end(self) -> None:
        """The row is about to go on, so all of its suffixes have ended here."""
        state: _State | None = self._whole
        for _ in range(MOST_NOTED):
            if state is None:
                return
            state.end, state = len(self._tokens), state.link

    def _extend(self, token: int) -> None:
        """Give all suffixes of the row one more token."""
        new = _State(len(self._tokens), self._empty)
        state: _State | None = self._whole
        while state and token not in state.following:
            state.following[token] = new
            state = state.link
        if state:
            new.link = _apart(state, token)
        self._whole = new


def _apart(before: _State, token: int) -> _State:
    """The state whose longest string is that of `before` and the token; it leaves longer strings that it stood with."""
    both = before.following[token]
    if both.length == before.length + 1:
        return both
    apart = _State(before.length + 1, both.link, dict(both.following), both.end)
    both.link = apart
    state: _State | None = before
    while state and state.following.get(token) is both:
        state.following[token] = apart
        state = state.link
    return apart
