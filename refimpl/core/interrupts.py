"""What Ctrl-C does from the first import of a command on, and what else ends one. Nothing else of the project or of
libraries is loaded here, so that this comes first."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130  # exit code: 128 + SIGINT
# Signals that end a command; SIGHUP: its terminal was closed.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def tell(line: str, end: str = "\n") -> None:
    """Print a line to stderr. Where that is closed, full or unread, the exit code alone tells: no error comes of it."""
    if sys.stderr is None:
        return
    try:
        print(line, end=end, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # else Python flushes what is left at its end, and changes the exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Told(io.StringIO):
    """Stderr as a file, for what may be lost: see `tell`."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of files in general it can be set
        """That of stderr."""
        return getattr(sys.stderr, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether stderr is a terminal."""
        return sys.stderr is not None and sys.stderr.isatty()

    def write(self, text: str) -> int:
        """Print it."""
        tell(text, end="")
        return len(text)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """End with one word on stderr and `INTERRUPTED` where Ctrl-C stops the body, in which commands are loaded and run.

    Raises:
        SystemExit: instead of KeyboardInterrupt, also where a library has made another error of it while it was loaded.
    """
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        tell("interrupted")
        sys.exit(INTERRUPTED)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or came of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
