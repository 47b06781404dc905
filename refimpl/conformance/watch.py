"""Progress of a run of the kit, and its time limit."""

import math
import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]


class TimeUp(BaseException):
    """Ends the run; no `Exception`, so that Hypothesis and properties let it through."""


class Watch:
    """Tells progress and ends a run whose time is used up.

    Args:
        progress: called with a property, its cases done and those planned; shrinking adds to both.
        total_time_s: seconds from now on; None means no limit.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        total_time_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._progress, self._clock = progress, clock
        self._end = math.inf if total_time_s is None else clock() + total_time_s

    def tell(self, name: str, done: int, planned: int) -> None:
        """Report how many cases of a property are done."""
        if self._progress:
            self._progress(name, done, max(done, planned))

    def require_time(self) -> None:
        """Raise `TimeUp` if no time is left."""
        if self._clock() >= self._end:
            raise TimeUp
