"""What Ctrl-C does from the first import of a command on. Nothing else is loaded here, so that this comes first."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130  # exit code: 128 + SIGINT


def tell(line: str, end: str = "\n") -> None:
    """Print a line to stderr; what cannot be written there is lost, and no error."""
    with suppress(OSError):
        print(line, end=end, file=sys.stderr, flush=True)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """End with one word on stderr and `INTERRUPTED` where Ctrl-C stops the body, in which commands are loaded and run.

    Raises:
        SystemExit: instead of KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt:
        tell("interrupted")
        sys.exit(INTERRUPTED)
