"""An engine that is a Python object: made by a factory, called with a time limit.

The limit uses the timer signal of POSIX. It has no effect outside the main thread, on systems without that signal,
and while the engine is in a call of another language that does not come back to Python.
"""

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from refimpl.conformance.places import place_of
from refimpl.conformance.protocol import EngineGone, EngineSettings, check_engine_is_one, check_timeout, one_line
from refimpl.core.errors import InputError

Ask = Callable[[list[list[int]], EngineSettings], Any]


class PythonEngine:
    """A Python object whose answers are timed, those of its own reference, too.

    Args:
        engine: see `refimpl.conformance.protocol`.
        name: how messages call it.
        timeout_s: seconds that an answer may take.

    Raises:
        InputError: it is no engine.
    """

    def __init__(self, engine: Any, name: str = "engine", timeout_s: float = 60.0):
        self.vocab_size, self.supports, self.block_size = check_engine_is_one(engine, name)
        self.engine, self.timeout_s = engine, check_timeout(timeout_s)
        own = getattr(engine, "reference", None)
        self.reference = None if own is None else self._bounded(own)

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Any:
        """Ask the engine."""
        return self._bounded(self.engine)(prompts, settings)

    def _bounded(self, ask: Ask) -> Ask:
        def bounded(prompts: list[list[int]], settings: EngineSettings) -> Any:
            with time_limit(self.timeout_s):
                return ask(prompts, settings)

        return bounded


def load_engine(name: str, timeout_s: float = 60.0) -> PythonEngine:
    """Call the factory that ``module:factory`` or ``module:factory:argument`` names.

    Modules are looked for in the current folder, too, as `python -m` does.

    Raises:
        InputError: there is no such module or factory, or what it makes is no engine.
    """
    module_name, _, rest = str(name).partition(":")
    factory_name, _, argument = rest.partition(":")
    if not factory_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"an engine is named module:factory, as in an import, not {name!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(f"cannot load the engine {name!r}: {_with_place(error)}") from error
    try:
        return PythonEngine(factory(argument) if argument else factory(), name, timeout_s)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{name!r} fails to make an engine: {_with_place(error)}") from error


def _with_place(error: BaseException) -> str:
    place = place_of(error)
    return f"{one_line(error)} (at {place})" if place else one_line(error)


RING_AGAIN_S = 0.1
AT_ONCE_S = 1e-6  # zero would be never


class _OutOfTimeError(BaseException):
    """Not an `Exception`, so that an engine that swallows those does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Run the body; end it after so many seconds, where the timer signal exists and this is the main thread.

    The timer goes on ringing until the body ends: what is raised in a finalizer or while garbage is collected is lost.
    A timer that was set before, as a suite has one for each test, goes on afterwards; if it is due by then, it rings.

    Raises:
        EngineGone: it took longer.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise _OutOfTimeError

    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
    before, start_s = signal.signal(signal.SIGALRM, ring), time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, RING_AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _OutOfTimeError as late:
        told = f"no answer within {seconds:g} s (timeout_s); the call was broken off"
        raise EngineGone(told, place_of(late)) from None
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        if left_s:
            left_s -= time.monotonic() - start_s
            signal.setitimer(signal.ITIMER_REAL, max(left_s, AT_ONCE_S), interval_s)
