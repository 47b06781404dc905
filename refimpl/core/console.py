"""What every command line does with errors, readers that leave and the signal to end."""

import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from refimpl.core.errors import InputError
from refimpl.core.extras import missing_extra
from refimpl.core.interrupts import ENDING, INTERRUPTED, tell

BAD_INPUT, NO_READER = 2, 1  # exit codes
RAISED_AGAIN_S = 0.05


def run_application(application: Callable[..., Any], arguments: list[str] | None = None) -> int:
    """Run an application of typer and return its exit code. Bad options, too, are one line on stderr and `BAD_INPUT`.

    A warning is one line on stderr, too. Characters that the terminal's encoding lacks become question marks. What is
    printed to a closed stdout counts as without a reader.

    Args:
        application: a `typer.Typer`.
        arguments: words of the command line, those of this process by default.
    """
    _open_closed_streams()
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


def _open_closed_streams() -> None:
    """Replace what the caller has closed (``>&-``), for which Python has None, until the process ends.

    Stdout becomes a pipe without a reader, so that what is printed is lost as where a reader has left: not unnoticed.
    Stderr leads nowhere.
    """
    if sys.stdout is None:
        reader, writer = os.pipe()
        os.dup2(writer, reader)  # the lowest descriptor that was free: the one that was closed
        os.close(writer)
        sys.stdout = open(reader, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _usage_error(error: Exception) -> int:
    """Print an error of the option parser as one line; anything else is a bug and keeps its traceback."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # typer may carry its own copy of click
    if "Abort" in kinds:
        return INTERRUPTED
    if "ClickException" not in kinds:
        raise error
    if "NoArgsIsHelpError" in kinds:
        with suppress(BrokenPipeError):
            print(error.format_message(), flush=True)  # type: ignore[attr-defined]
        _let_go_of_stdout()
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

    Where nobody reads stdout, end quietly.

    SIGTERM and SIGHUP end like an exit does, so that half-written files and worker processes go with the command.

    Raises:
        SystemExit: instead of the error.
    """
    with ended_by_signals(SystemExit):
        try:
            yield
            sys.stdout.flush()
        except InputError as error:
            tell(f"error: {error}")
            sys.exit(BAD_INPUT)
        except ModuleNotFoundError as error:
            message = missing_extra(error)
            if message is None:
                raise
            tell(f"error: {message}")
            sys.exit(BAD_INPUT)
        except BrokenPipeError:
            sys.exit(NO_READER)
        except OSError as error:
            tell(f"error: {error.filename or 'input or output'}: {error.strerror or error}")
            sys.exit(BAD_INPUT)
        finally:
            _let_go_of_stdout()


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings of the body as one line each, without the place in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: tell(f"warning: {' '.join(str(message).split())}")
        yield


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
def ended_by_signals(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Let each signal of `ENDING` raise an error in the body, so that what it has begun is ended, too.

    In the main thread only; a signal that is ignored, as SIGHUP under `nohup`, stays so. Python drops an error that is
    raised in a finalizer or in a callback of the interpreter, as around a fork: it is raised again soon after.

    Args:
        error: makes it of the exit code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handler = _RaisesAgain(error)
    before = {n: signal.signal(n, handler) for n in ENDING if signal.getsignal(n) != signal.SIG_IGN}
    sys.unraisablehook = handler.look_at_dropped
    try:
        yield
    finally:
        sys.unraisablehook = handler.tell_of_dropped
        handler.stop_ringing()
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


class _RaisesAgain:
    """Handler of signals that raises an error, and does so again as long as Python drops it."""

    def __init__(self, error: Callable[[int], BaseException]):
        self._error = error
        self._raised: BaseException | None = None
        self._number = 0
        self._before: Any = None  # handler of the timer, once that has been set
        self.tell_of_dropped = sys.unraisablehook

    def __call__(self, number: int, _: Any) -> None:
        self._number, self._raised = number, self._error(128 + number)
        raise self._raised

    def look_at_dropped(self, dropped: Any) -> None:
        """Set a timer where the error is this one's; what others raised is told as before."""
        if self._raised is None or dropped.exc_value is not self._raised or not hasattr(signal, "setitimer"):
            self.tell_of_dropped(dropped)
            return
        if self._before is None:
            self._before = signal.signal(signal.SIGALRM, lambda *_: self(self._number, None)) or signal.SIG_DFL
        signal.setitimer(signal.ITIMER_REAL, RAISED_AGAIN_S)

    def stop_ringing(self) -> None:
        """Set no timer any more, and give it back."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
