"""Progress of a run of the kit, its time limit, and interrupts."""

import math
import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]


class TimeUp(BaseException):
    """Ends the run; no `Exception`, so that Hypothesis and properties let it through."""


class Watch:
    """Tells progress and ends a run whose time is used up, or that is interrupted.

    Args:
        progress: called with a property, its cases done and those planned; shrinking adds to both.
        total_time_s: seconds from now on; None means no limit.
        clock: seconds, monotonic.
        keeps_interrupts: an interrupt ends the run as the end of its time does, and is kept; otherwise it goes on.

    Attributes:
        interrupt: the one that was kept.
    """

    interrupt: KeyboardInterrupt | None = None

    def __init__(
        self,
        progress: Progress | None = None,
        total_time_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        keeps_interrupts: bool = False,
    ):
        self._progress, self._clock, self._keeps_interrupts = progress, clock, keeps_interrupts
        self._end = math.inf if total_time_s is None else clock() + total_time_s

    def tell(self, name: str, done: int, planned: int) -> None:
        """Report how many cases of a property are done."""
        if self._progress:
            self._progress(name, done, max(done, planned))

    def require_time(self) -> None:
        """Raise `TimeUp` if no time is left."""
        if self._clock() >= self._end:
            raise TimeUp

    def end(self, cause: BaseException) -> str:
        """Leave no time for anything else; return why the run ends.

        Raises:
            KeyboardInterrupt: the cause is one, and interrupts are not kept.
        """
        if isinstance(cause, KeyboardInterrupt):
            if not self._keeps_interrupts:
                raise cause
            self.interrupt, self._end = cause, -math.inf
        return "interrupted" if self.interrupt else "the time was up"
