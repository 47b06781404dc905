"""Plant the errors of planted.toml into engine and simulator, one at a time, and see the tests named there turn red.

    python tools/planted.py            all of them; exit status 1 unless every one is rejected
    python tools/planted.py seed stop  those whose name holds one of these words

Every test runs on the code as it is first, and must pass. Each error then gets a forked child that loads the altered
text instead of the file, as in tools/mutate.py, so nothing on disk changes.
"""

import argparse
import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutant_runs import MutantFinder, in_child, preload, run_pytest
from mutants import ROOT, Mutant

LIST = Path(__file__).with_suffix(".toml")
PACKAGES = ("refimpl", "simulator")


@dataclass(frozen=True)
class Planted:
    """One error: a text of engine or simulator that is replaced, and tests below tests/ that must not pass with it.

    `why` says why no stage of the proofs sees it, where it is in the engine and none does.
    """

    name: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""

    def mutant(self) -> Mutant:
        """The one file that holds the text, altered.

        Raises:
            ValueError: engine and simulator together have the text not once.
        """
        files = {path: path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
        found = [path for path, text in files.items() for _ in range(text.count(self.old))]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in the code {len(found)} times, not once")
        source = files[found[0]].replace(self.old, self.new)
        return Mutant(str(found[0].relative_to(ROOT)), (0, 0), 0, self.name, 1, source, False)


def read_planted() -> list[Planted]:
    """The list, in the order of the file."""
    return [Planted(**entry | {"tests": tuple(entry["tests"])}) for entry in tomllib.loads(LIST.read_text())["error"]]


class FirstFailure:
    """Pytest plugin: remembers the first test that fails, and how."""

    failed = ""

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Run the test as usual."""
        yield

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure of set-up, call or tear-down."""
        if report.failed and not self.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed = f"{report.nodeid}: {crash.message.splitlines()[0][:100] if crash else 'not loaded'}"

    pytest_collectreport = pytest_runtest_logreport  # a test file that cannot be loaded


def first_failure(tests: tuple[str, ...], error: Planted | None = None) -> str:
    """The first of the tests to fail, with an error planted or on the code as it is; empty if all pass.

    Raises:
        SystemExit: the tests did not run on what they were meant to.
    """

    mutant = error.mutant() if error else None

    def work() -> tuple[int, str]:
        os.chdir(ROOT)
        finder = plant(mutant) if mutant else None
        plugin = FirstFailure()
        status = run_pytest(["-x", *(f"tests/{test}" for test in tests)], plugin)
        loaded = finder is None or finder.loaded()
        return (0 if loaded and status in (0, 1) else 2), plugin.failed

    status, failed = in_child(work)
    if status != 0:
        raise SystemExit(f"the tests did not run: {error.name if error else tests}")
    return str(failed)


def plant(mutant: Mutant) -> MutantFinder:
    """Import the altered text in this process, instead of the file."""
    finder = MutantFinder(mutant)
    sys.meta_path.insert(0, finder)
    importlib.import_module(finder.module)
    return finder


def chosen(words: list[str]) -> list[Planted]:
    """Errors whose name holds one of the words; all without any word.

    Raises:
        SystemExit: there is none.
    """
    errors = read_planted()
    found = [error for error in errors if not words or any(word in error.name for word in words)]
    if not found:
        raise SystemExit(f"no error is named {' or '.join(words)}; there are: {', '.join(e.name for e in errors)}")
    return found


def main() -> int:
    """Print a line an error; 1 unless each is rejected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="plant only errors whose name holds one of these words")
    errors = chosen(parser.parse_args().words)
    preload()
    failed = first_failure(tuple(dict.fromkeys(test for e in errors for test in e.tests)))
    if failed:
        raise SystemExit(f"{failed} fails without any error")
    verdicts = []
    for error in errors:
        verdicts.append(first_failure(error.tests, error))
        print(f"{'rejected' if verdicts[-1] else 'SURVIVED'}  {error.name}  {verdicts[-1]}", flush=True)
    print(f"{sum(map(bool, verdicts))} of {len(errors)} planted errors rejected")
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
