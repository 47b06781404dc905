"""Requests that come while others run, each at its time."""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from refimpl.requests import Prepared


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
