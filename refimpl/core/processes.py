"""Calls of a function in several processes, by joblib."""

import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
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
    yield from processes(delayed(function)(*given) for given in arguments)
