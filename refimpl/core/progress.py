"""Progress of a command on stderr, so that stdout can be piped."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from refimpl.core.interrupts import tell

SECONDS_A_LINE = 30  # where stderr is no terminal


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (label, done, total): bars on a terminal, elsewhere a line now and then."""
    if not _is_terminal():
        yield _line_now_and_then()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, Any] = {}

        def update(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done, total=total)

        yield update


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None: closed, or a program without a console


def _line_now_and_then() -> Callable[[str, int, int], None]:
    last = time.monotonic()

    def update(label: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_A_LINE:
            last = time.monotonic()
            tell(f"{label}: {done} of {total}")

    return update
