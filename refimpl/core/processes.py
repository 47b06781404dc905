"""Calls of a function in several processes, by joblib."""

import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

from refimpl.core.interrupts import ENDING

T = TypeVar("T")
HAS_MASKS = hasattr(signal, "pthread_sigmask")
HANDED_OUT_S = 0.5
UNCONCERNING = (
    # after an error, which is told, the results of the others are not wanted
    "[0-9]+ tasks (which were still being processed|have been successfully executed)",
    # a worker that grew is replaced, which joblib tells in the thread that serves the workers: were the warning an
    # error, that thread would end, and the call would wait for ever
    "A worker stopped while some jobs were given to the executor",
)


def run_in_processes(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], workers: int, *, ordered: bool = True
) -> Generator[T, None, None]:
    """Call a function on each tuple of arguments; results as they come.

    Whoever may leave them early has to close the generator: left to a collection, it would stop the workers of a later
    call.

    Args:
        function, arguments: what is called, and on what.
        workers: processes at most, >= 1.
        ordered: whether a result waits for those of the arguments before.
    """
    from joblib import Parallel, delayed

    for message in UNCONCERNING:
        warnings.filterwarnings("ignore", message, UserWarning)
    order = "generator" if ordered else "generator_unordered"
    processes = Parallel(n_jobs=min(workers, len(arguments)), return_as=order)
    with ExitStack() as started:
        with _signals_held():  # what was held back comes at its end, where the stack ends the workers
            results = started.enter_context(closing(processes(delayed(_call)(function, *given) for given in arguments)))
        yield from results


def _call(function: Callable[..., T], *given: Any) -> T:
    """Call a function in a worker, and let come what ends a command: on its own, too, a worker can be ended."""
    if HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return function(*given)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold back Ctrl-C and what ends a command: joblib would lose a worker that had just been started, and wait for it.

    Processes that are started meanwhile inherit this: they never see Ctrl-C, and cannot tell of it from an import.
    What tracks the resources of processes is started before, as starting it lets signals through again.
    """
    if not HAS_MASKS:
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as tracker_of_joblib

    resource_tracker.ensure_running()
    tracker_of_joblib.ensure_running()
    held = {signal.SIGINT, *ENDING}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        if signal.sigpending() & held:
            time.sleep(HANDED_OUT_S)  # joblib's thread would miss a call that it has yet to hand out, and die of it
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
