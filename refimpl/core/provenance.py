"""Where a number comes from: written beside every measured file."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = ("--", "*.py", "*.safetensors", "constraints.txt")  # what a result depends on


def stamp(*libraries: str) -> dict[str, Any]:
    """Time, commit, and the versions of Python and of some libraries."""
    return {"utc_time": utc_time(), "commit": commit(), "libraries": dict(_versions(libraries))}


def utc_time() -> str:
    """Now, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def processor() -> str:
    """Model of the processor, or its architecture where the system does not say, and how many cores of it there are."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or os.cpu_count() or 1} cores"


@lru_cache(maxsize=8)
def _versions(libraries: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    installed = {"python": platform.python_version()}
    for name in libraries:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "not installed"
    return tuple(installed.items())


def command_line() -> str:
    """What the user typed, ready to be typed again: ``raggedspec …``, ``python -m …`` or ``python file.py …``."""
    return shlex.join([*_program(), *sys.argv[1:]])


def _program() -> list[str]:
    path, spec = Path(sys.argv[0]), sys.modules["__main__"].__spec__
    if spec is not None and spec.origin == sys.argv[0]:
        return ["python", "-m", spec.name.removesuffix(".__main__")]
    if path.suffix != ".py":
        return [path.stem or "python"]
    file = path.resolve()
    return ["python", str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name]


@lru_cache(maxsize=1)
def commit() -> str:
    """Commit of the code that runs, marked when the packages differ from it (measured files may).

    Unknown where the code lies in no checkout of its own, for example in an environment inside of another project's.
    """
    try:
        if Path(_git("rev-parse", "--show-toplevel")) != ROOT.resolve():
            return "unknown"
        return _git("rev-parse", "--short=12", "HEAD") + (
            "-dirty" if _git("diff", "HEAD", "--name-only", *CODE) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def code() -> str:
    """Which code runs: its commit; the version of the installed package where that is unknown."""
    return commit() if commit() != "unknown" else f"version {dict(_versions(('raggedspec',)))['raggedspec']}"


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=ROOT)
    return run.stdout.strip()
