"""What every command line does with errors, readers that leave and the signal to end."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from refimpl.core.errors import InputError
from refimpl.core.extras import missing_extra

BAD_INPUT, NO_READER, TERMINATED = 2, 1, 128 + signal.SIGTERM  # exit codes


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End with one line on stderr and `BAD_INPUT` on bad input, missing extras and files that fail.

    Where nobody reads stdout, end quietly.

    SIGTERM ends like an exit does, so that half-written files and worker processes go with the command.

    Raises:
        SystemExit: instead of the error.
    """
    with ended_by_sigterm(SystemExit(TERMINATED)):
        try:
            yield
            sys.stdout.flush()
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(BAD_INPUT)
        except ModuleNotFoundError as error:
            message = missing_extra(error)
            if message is None:
                raise
            print(f"error: {message}", file=sys.stderr)
            sys.exit(BAD_INPUT)
        except BrokenPipeError:
            sys.exit(NO_READER)
        except OSError as error:
            print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
            sys.exit(BAD_INPUT)
        finally:
            _let_go_of_stdout()


def _let_go_of_stdout() -> None:
    """Flush what is left; where nobody reads it, point stdout at nothing, as Python flushes it once more at its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError):  # a stdout without descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a full disk, which was told; a stdout that is closed
        pass


@contextmanager
def ended_by_sigterm(error: BaseException) -> Iterator[None]:
    """Let SIGTERM raise an error in the body, so that what it has begun is ended, too; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
