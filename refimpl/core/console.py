"""What every command line does with errors, readers that leave and the signal to end."""

import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from refimpl.core.errors import InputError
from refimpl.core.extras import missing_extra
from refimpl.core.interrupts import INTERRUPTED, tell

BAD_INPUT, NO_READER = 2, 1  # exit codes


def run_application(application: Callable[..., Any], arguments: list[str] | None = None) -> int:
    """Run an application of typer and return its exit code. Bad options, too, are one line on stderr and `BAD_INPUT`.

    A warning is one line on stderr, too. Characters that the terminal's encoding lacks become question marks.

    Args:
        application: a `typer.Typer`.
        arguments: words of the command line, those of this process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with one_line_errors(), one_line_warnings():
            code = application(arguments, standalone_mode=False)  # what `typer.Exit` says, or a command returns
    except SystemExit as end:
        code = end.code
    except Exception as error:
        code = _usage_error(error)
    if code == INTERRUPTED:
        tell("interrupted")
    return code if isinstance(code, int) else 0


def _usage_error(error: Exception) -> int:
    """Print an error of the option parser as one line; anything else is a bug and keeps its traceback."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # typer may carry its own copy of click
    if "Abort" in kinds:
        return INTERRUPTED
    if "ClickException" not in kinds:
        raise error
    if "NoArgsIsHelpError" in kinds:
        print(error.format_message())  # type: ignore[attr-defined]
    else:
        tell(f"error: {_usage_message(error)}")
    return BAD_INPUT


def _usage_message(error: Any) -> str:
    """What the option parser says, in the form of other errors, for example ``--limit must be a valid integer``."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = re.sub(r"^Invalid value for '([^']+)'(?: / '[^']+')*: (?:Value error, )?", r"\1: ", message)
    message = re.sub(r": Input should be ([^,]*).*", r" must be \1", message)
    message = re.sub(r"\.? (?:\(Possible options: (.*)\)|Did you mean (.*)\?)$", r". Did you mean \1\2?", message)
    message = message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    if message.startswith("No such command") and "Did you mean" not in message:
        message += f": choose {', '.join(error.ctx.command.commands)}"
    return message[0].lower() + message[1:]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End with one line on stderr and `BAD_INPUT` on bad input, missing extras and files that fail.

    Where nobody reads stdout, end quietly. SIGTERM ends like an exit does, so that half-written files and worker
    processes go with the command.

    Raises:
        SystemExit: instead of the error.
    """
    with ended_by_signals(SystemExit):
        try:
            yield
            sys.stdout.flush()
        except InputError as error:
            tell(f"error: {error}")
        except ModuleNotFoundError as error:
            if (message := missing_extra(error)) is None:
                raise
            tell(f"error: {message}")
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
            sys.exit(NO_READER)
        except OSError as error:
            tell(f"error: {error.filename or 'input or output'}: {error.strerror or error}")
        else:
            return
        sys.exit(BAD_INPUT)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings of the body as one line each, without the place in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: tell(f"warning: {' '.join(str(message).split())}")
        yield


@contextmanager
def ended_by_signals(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Let SIGTERM raise an error in the body, so that what it has begun is ended, too. In the main thread only.

    Args:
        error: makes it of the exit code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: Any) -> None:
        raise error(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
