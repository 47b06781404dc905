"""An engine that is a Python object: made and called in a thread of its own, so that waiting for it can end."""

import importlib
import os
import queue
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from refimpl.conformance.places import place_of, place_on
from refimpl.conformance.protocol import BLOCK_SIZE, EngineGone, EngineSettings, one_line
from refimpl.core.errors import InputError


class Worker:
    """A thread that does one thing after the other. What never ends does not hold up the end of the process."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work_off, args=[self._jobs], daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def do(self, job: Callable[[], Any], timeout_s: float | None = None) -> Any:
        """What a job returns or raises.

        Raises:
            EngineGone: it takes longer; it goes on, and nothing else may be done here.
        """
        future: Future = Future()
        self._jobs.put((future, job))
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            place = place_on(traceback.extract_stack(sys._current_frames()[self._thread.ident or 0]))
            raise EngineGone(f"no answer within {timeout_s:g} s (timeout_s)", place) from None


def _work_off(jobs: queue.SimpleQueue[Any]) -> None:
    while todo := jobs.get():
        future, job = todo
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        del todo, future, job  # the engine may go while this waits


class PythonEngine:
    """A Python object whose answers are timed, those of its own reference, too.

    Args:
        engine: see `refimpl.conformance.protocol`.
        timeout_s: seconds that an answer may take.
        worker: where it was made, if not here.
    """

    def __init__(self, engine: Any, timeout_s: float = 60.0, worker: Worker | None = None):
        self.vocab_size, self.supports = engine.vocab_size, engine.supports
        self.block_size = getattr(engine, "block_size", BLOCK_SIZE)
        self.engine, self.timeout_s, self._worker = engine, timeout_s, worker or Worker()
        for part in ("reference", "law", "decode"):
            if (own := getattr(engine, part, None)) is not None:
                setattr(self, part, self._timed(own))

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Any:
        """Ask the engine."""
        return self._timed(self.engine)(prompts, settings)

    def _timed(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *asked: self._worker.do(lambda: ask(*asked), self.timeout_s)


def load_engine(name: str, timeout_s: float = 60.0) -> PythonEngine:
    """Call the factory that ``module:factory`` or ``module:factory:argument`` names.

    Modules are looked for in the current folder, too, as `python -m` does.

    Raises:
        InputError: there is no such module or factory, it fails, or what it makes is no engine.
    """
    module_name, _, rest = str(name).partition(":")
    factory_name, _, argument = rest.partition(":")
    if not factory_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"an engine is named module:factory, as in an import, not {name!r}")
    worker = Worker()
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = worker.do(lambda: getattr(importlib.import_module(module_name), factory_name))
        engine = worker.do(lambda: factory(argument) if argument else factory())
        return PythonEngine(engine, timeout_s, worker)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        place = f" (at {place_of(error)})" * bool(place_of(error))
        raise InputError(f"{name!r} fails to make an engine: {one_line(error)}{place}") from error
