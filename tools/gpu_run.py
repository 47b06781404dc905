"""Runs one command of a piece: in a process of its own, or inside this one for a dry run."""

import contextlib
import importlib.util
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpu_ledger import CHECKOUT
from gpu_pieces import Command

TIMED_OUT = 124
TAIL = 1200  # characters of a failed command's output


@dataclass(frozen=True)
class Outcome:
    """How a command ended; state is done, failed, timeout or not available."""

    state: str
    exit_code: int | None
    seconds: float

    def as_dict(self, command: Command, root: Path) -> dict[str, Any]:
        """JSON-ready; files that it did not write are left out, as is the root."""
        words = [word.replace("{root}/", "") for word in command.argv]
        return {
            "command": f"python {' '.join(words)}",
            "state": self.state,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 1),
            "writes": [path for path in command.writes if (root / path).exists()],
        }


def available(command: Command) -> bool:
    """Whether this Python has what the command needs."""
    return all(importlib.util.find_spec(name) is not None for name in command.needs_modules)


def run_command(command: Command, root: Path, log: Path, seconds: float, *, inside: bool) -> Outcome:
    """Run a command to its end or to its time limit, its output appended to a log.

    Args:
        command: what to run.
        root: replaces ``{root}``.
        log: file.
        seconds: limit; not enforced inside this process.
        inside: run inside this process.
    """
    if not available(command):
        return Outcome("not available", None, 0.0)
    for path in command.writes:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
    argv = [word.replace("{root}", str(root)) for word in command.argv]
    begun = time.perf_counter()
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n$ python {' '.join(argv)}\n")
        file.flush()
        code = _inside(argv, file) if inside else _process(argv, file, seconds)
    spent = time.perf_counter() - begun
    state = "done" if code == 0 else "timeout" if code == TIMED_OUT else "failed"
    if state != "done":
        print(log.read_text(encoding="utf-8", errors="replace")[-TAIL:], file=sys.stderr)
    return Outcome(state, code, spent)


def _process(argv: list[str], log: IO[str], seconds: float) -> int:
    process = subprocess.Popen(
        [sys.executable, *argv], stdout=log, stderr=subprocess.STDOUT, cwd=CHECKOUT, start_new_session=True
    )
    try:
        return process.wait(timeout=seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, KeyboardInterrupt):
            raise
        return TIMED_OUT


def _inside(argv: list[str], log: IO[str]) -> int:
    """Run ``-m module …`` or ``file.py …`` as Python would; saves importing everything anew for every command."""
    module = argv[0] == "-m"
    target, words = (argv[1], argv[2:]) if module else (argv[0], argv[1:])
    with _arguments([target, *words]), contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            if module:
                runpy.run_module(target, run_name="__main__", alter_sys=False)
            else:
                runpy.run_path(str(CHECKOUT / target), run_name="__main__")
        except SystemExit as stopped:
            return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    return 0


@contextlib.contextmanager
def _arguments(argv: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, argv
    try:
        yield
    finally:
        sys.argv = before
