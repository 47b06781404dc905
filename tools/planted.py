"""Plant the errors of planted.toml into engine and simulator, one at a time: do those who must see an error see it?

    python tools/planted.py            all of them; exit status 1 unless each is seen by each that is named there
    python tools/planted.py seed stop  those whose name holds one of these words

Every test runs on the code as it is first, and must pass; the stages of the proofs do so in proofs/check.sh. Each error
then gets a forked child that loads the altered text instead of the file, so nothing on disk changes.
"""

import argparse
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutant_runs import AlteredFile, FirstFailure, in_child, preload, run_pytest
from mutants import ROOT

LIST = Path(__file__).with_suffix(".toml")
STAGES = ("z3", "schedulers", "laws", "runs", "reach")  # of proofs/check.sh: those that need no Coq and no Spin


@dataclass(frozen=True)
class Planted:
    """One error: a text of a file that is replaced by another.

    Attributes:
        tests: below tests/; with the error, each must fail.
        seen_by: of `STAGES`; with the error, a claim of each must fail, while the engine checks nothing itself.
    """

    file: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    seen_by: tuple[str, ...] = ()

    def altered(self) -> AlteredFile:
        """The file with the error.

        Raises:
            ValueError: it has the text not once.
        """
        text = (ROOT / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in {self.file} {text.count(self.old)} times, not once")
        return AlteredFile(self.file, text.replace(self.old, self.new))


def read_planted() -> list[Planted]:
    """The list, in the order of the file."""
    by_file = tomllib.loads(LIST.read_text())
    return [Planted(file, **entry) for file, entries in by_file.items() for entry in entries]


def first_failure(tests: list[str]) -> str:
    """The first of some tests that fails, empty if all pass.

    Raises:
        SystemExit: they did not run.
    """
    plugin = FirstFailure()
    if run_pytest(["-x", *(f"tests/{test}" for test in tests)], plugin) not in (0, 1):
        raise SystemExit(f"the tests did not run: {tests}")
    return plugin.failed


def seen(error: Planted, witness: str) -> str:
    """What a test or a stage of the proofs says of an error, empty if it does not notice.

    Raises:
        SystemExit: it did not judge the altered code.
    """
    altered = error.altered()

    def work() -> tuple[int, str]:
        os.chdir(ROOT)
        altered.plant()
        if witness in STAGES:
            from proofs.stages import broken_claim  # loads the engine

            said = broken_claim(witness)
        else:
            said = first_failure([witness])
        return int(not altered.loaded()), said

    status, said = in_child(work)
    if status != 0:
        raise SystemExit(f"{error.name}: {witness} did not judge it")
    return str(said)


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
    """Print a line for each error and witness; 1 unless each is seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="plant only errors whose name holds one of these words")
    errors = chosen(parser.parse_args().words)
    preload()
    tests = list(dict.fromkeys(test for error in errors for test in error.tests))
    status, failed = in_child(lambda: (0, first_failure(tests) if tests else ""))
    if status or failed:
        raise SystemExit(f"fails without any error: {failed or tests}")
    missed = 0
    for error, witness in [(e, each) for e in errors for each in (*e.seen_by, *e.tests)]:
        said = seen(error, witness)
        missed += not said
        print(f"{'seen' if said else 'MISSED'}  {error.name}  {witness}: {' '.join(said.split())[:100]}", flush=True)
    print(f"{len(errors)} planted errors, missed {missed} times")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
