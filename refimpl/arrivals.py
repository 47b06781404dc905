"""Requests that come while others run, each at its time."""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from refimpl.core.errors import require
from refimpl.requests import ASKED, FAILED, Prepared, Prompt, SequenceMaker


class Made:
    """The sequences of an iterator's prompts, made when they are asked for.

    A prompt that an interrupt kept from becoming sequences is made into them the next time.

    Args:
        prompts: one after the other.
        maker: makes sequences of them.
    """

    def __init__(self, prompts: Iterator[Prompt], maker: SequenceMaker):
        self._prompts, self._maker = prompts, maker
        self._taken: list[Prompt] = []  # and not made yet
        self._failed = self._is_asked = False

    def __iter__(self) -> Iterator[Seq[Prepared]]:
        return self

    def __next__(self) -> Seq[Prepared]:
        """Sequences of the next prompt.

        Raises:
            InputError: it is no good prompt; the next one can be asked for. Or the iterator has ended by an error: the
                next time this ends, too. Or it is being asked already, and what it does, or another thread, asks again.
        """
        if not self._taken:
            self._taken = [self._take()]
        try:
            made = self._maker.make(self._taken)
        except Exception:
            self._taken = []
            raise
        self._taken = []
        return made

    def _take(self) -> Prompt:
        require(not self._is_asked, ASKED)
        try:
            self._is_asked = True
            return self._next_prompt()
        finally:
            self._is_asked = False

    def _next_prompt(self) -> Prompt:
        failed, self._failed = self._failed, True
        try:
            prompt = next(self._prompts)
        except StopIteration:
            self._failed = False
            require(not failed, FAILED)
            raise
        self._failed = False
        return prompt


class Arrivals:
    """What is still to come, in order of arrival.

    Args:
        coming: the sequences of one request after the other. The next one is taken as soon as the one before has come,
            and an error that it raises leaves those behind it.
    """

    def __init__(self, coming: Iterator[Seq[Prepared]]):
        self._coming = coming
        self._next: Seq[Prepared] | None = None

    @property
    def next_s(self) -> float:
        """When the next request comes, in seconds after the start of the run; infinite where none does.

        Raises:
            InputError: it is no good request, or comes before the last one; it is left out then.
        """
        if self._next is None:
            self._next = next(self._coming, None)
        return math.inf if self._next is None else self._next[0].arrival_s

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return self.next_s == math.inf

    def due(self, now_s: float) -> Iterator[Seq[Prepared]]:
        """Requests that have come by now."""
        while self.next_s <= now_s:
            assert self._next is not None
            come, self._next = self._next, None
            yield come
