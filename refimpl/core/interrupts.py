"""What Ctrl-C does from the first import of a command on, and what else ends one. Nothing else of the project or of
libraries is loaded here, so that this comes first."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130  # exit code: 128 + SIGINT
# Signals that end a command; SIGHUP: its terminal was closed.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def tell(line: str, end: str = "\n") -> None:
    """Print a line to stderr; what cannot be written there is lost, and no error."""
    with suppress(OSError, ValueError):
        print(line, end=end, file=sys.stderr, flush=True)


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
