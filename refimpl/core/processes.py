"""Calls of a function in several processes, by joblib."""

import os
import signal
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_processes(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], workers: int, *, ordered: bool = True
) -> Generator[T, None, None]:
    """Call a function on each tuple of arguments; results as they come.

    Whoever may leave them early has to close the generator, which ends the workers: left to a collection, it would end
    those of a later call.

    Args:
        function, arguments: what is called, and on what.
        workers: processes at most, >= 1.
        ordered: whether a result waits for those of the arguments before.
    """
    from joblib import Parallel, delayed

    # Results that nobody wants after an error, and workers that joblib replaces since they grew, as by a first model:
    # raised in joblib's own thread, as under `-W error`, such a warning would end it, and every call would wait for it.
    warnings.filterwarnings("ignore", "[0-9]+ tasks|A worker stopped", UserWarning)
    order = "generator" if ordered else "generator_unordered"
    processes = Parallel(n_jobs=min(workers, len(arguments)), return_as=order)
    calls = (delayed(_call)(os.getpid(), function, *given) for given in arguments)
    with closing(processes(calls)) as results:
        yield from results


def _call(caller: int, function: Callable[..., T], *given: Any) -> T:
    """Call a function in a worker, which leaves Ctrl-C to the process that started it."""
    if os.getpid() != caller:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return function(*given)
