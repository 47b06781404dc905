"""The errors that `proofs.layers` plants: those of errors.toml, and of tools/planted.toml those in the engine."""

import hashlib
import json
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RENEW = "correct proofs/errors.toml or tools/planted.toml, then renew the rows: python -m proofs.layers REPLAYER"
# What times, judges, draws or reckons memory: no proof is about it.
APART = {"bench", "calibrate", "conformance", "judging", "viz", "memory.py", "dry_run.py"}
sys.path.insert(0, str(ROOT / "tools"))

import planted  # noqa: E402 (in tools)
from mutant_runs import in_child  # noqa: E402
from mutants import Mutant  # noqa: E402

__all__ = ["HERE", "RENEW", "ROOT", "Error", "Mutant", "engine", "errors", "in_child", "planted"]


@dataclass(frozen=True)
class Error:
    """One text of the engine replaced by another; `then` are further replacements in the same file."""

    name: str
    old: str
    new: str
    then: list[list[str]] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    why: str = ""

    def file(self) -> str:
        """The file of the engine that has the text, once.

        Raises:
            ValueError: there is none, or the text is there more than once.
        """
        files = [file for file, text in engine().items() for _ in range(text.count(self.old))]
        if len(files) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in the engine {len(files)} times, not once; {RENEW}")
        return files[0]

    def digest(self) -> str:
        """Of what is replaced, where, and by what."""
        return hashlib.sha256(json.dumps([self.file(), self.old, self.new, self.then]).encode()).hexdigest()[:12]

    def mutant(self) -> Mutant:
        """The file, altered.

        Raises:
            ValueError: a text that is to be replaced is not there.
        """
        source = engine()[self.file()]
        for old, new in [[self.old, self.new], *self.then]:
            if old not in source:
                raise ValueError(f"{self.name}: {old!r} is not in {self.file()}; {RENEW}")
            source = source.replace(old, new)
        return Mutant(self.file(), (0, 0), 0, self.name, 1, source, False)


@cache
def engine() -> dict[str, str]:
    """The engine's texts, by file."""
    files = [path for path in (ROOT / "refimpl").rglob("*.py") if not APART & set(path.parts)]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


def errors() -> list[Error]:
    """Those of errors.toml, then those of tools/planted.toml that are in the engine."""
    own = [Error(**entry) for entry in tomllib.loads((HERE / "errors.toml").read_text())["error"]]
    others = [e for e in planted.read_planted() if any(e.old in text for text in engine().values())]
    return own + [Error(e.name, e.old, e.new, tests=list(e.tests), why=e.why) for e in others]
