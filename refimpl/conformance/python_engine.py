"""An engine that is a Python object: made by a factory, called with a time limit.

The limit uses the timer signal of POSIX. It has no effect outside the main thread, on systems without that signal,
and while the engine is in a call of another language that does not come back to Python.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from refimpl.conformance.protocol import (
    BLOCK_SIZE,
    EngineFailure,
    EngineGone,
    EngineSettings,
    NotSupported,
    check_block_size,
    check_description,
    check_timeout,
    one_line,
)
from refimpl.core.errors import InputError, shown

Ask = Callable[[list[list[int]], EngineSettings], Any]


class PythonEngine:
    """A Python object whose exceptions become failures, but for `KeyboardInterrupt`, and whose answers are timed.

    Args:
        engine: see `refimpl.conformance.protocol`.
        name: how messages call it.
        timeout_s: seconds that an answer may take.

    Raises:
        InputError: it is no engine.
    """

    def __init__(self, engine: Any, name: str = "engine", timeout_s: float = 60.0):
        if not (callable(engine) and hasattr(engine, "vocab_size") and hasattr(engine, "supports")):
            raise InputError(f"{name!r} makes {shown(engine)}, no callable with vocab_size and supports")
        self.vocab_size, self.supports = check_description(name, engine.vocab_size, engine.supports)
        self.block_size = check_block_size(name, getattr(engine, "block_size", BLOCK_SIZE))
        own = getattr(engine, "reference", None)
        if own is not None and not callable(own):
            raise InputError(f"{name!r}: reference must be a function, not {shown(own)}")
        self.engine, self.timeout_s = engine, check_timeout(timeout_s)
        self.reference = self._bounded(own) if own is not None else None

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Any:
        """Ask the engine."""
        return self._bounded(self.engine)(prompts, settings)

    def _bounded(self, ask: Ask) -> Ask:
        def bounded(prompts: list[list[int]], settings: EngineSettings) -> Any:
            try:
                with time_limit(self.timeout_s):
                    return ask(prompts, settings)
            except (NotSupported, EngineFailure, KeyboardInterrupt):
                raise
            except BaseException as error:  # an exit, a cancelled task, a panic of Rust
                raise EngineFailure(one_line(error)) from error

        return bounded


def load_engine(name: str, timeout_s: float = 60.0) -> PythonEngine:
    """Call the factory that ``module:factory`` or ``module:factory:argument`` names.

    Modules are looked for in the current folder, too, as `python -m` does.

    Raises:
        InputError: there is no such module or factory, or what it makes is no engine.
    """
    module_name, _, rest = name.partition(":")
    factory_name, _, argument = rest.partition(":")
    if not factory_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"--engine needs module:factory, as in an import, not {name!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(f"cannot load the engine {name!r}: {one_line(error)}") from error
    try:
        engine = factory(argument) if argument else factory()
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{name!r} fails to make an engine: {one_line(error)}") from error
    return PythonEngine(engine, name, timeout_s)


RING_AGAIN_S = 0.1


class _OutOfTimeError(BaseException):
    """Not an `Exception`, so that an engine that swallows those does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Run the body; end it after so many seconds, where the timer signal exists and this is the main thread.

    The timer goes on ringing until the body ends: what is raised in a finalizer or while garbage is collected is lost.

    Raises:
        EngineGone: it took longer.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, RING_AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _OutOfTimeError:
        raise EngineGone(f"no answer within {seconds:g} s (timeout_s); the call was broken off") from None
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
