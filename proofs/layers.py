"""``python -m proofs.layers REPLAYER [WORD …]``: plant errors in the engine; which layer of the proofs sees which?

The errors are those of errors.toml, and those of tools/planted.toml that are in the engine. Each gets a forked child
that loads the altered text instead of the file, and every layer is asked within a limit of processor time. Rows are
written to layers.json and layers.md as they come; errors that are there already are not asked about again.

| layer       | what it does with the altered code                                                           |
|-------------|------------------------------------------------------------------------------------------------|
| solver      | Z3 looks for a counterexample to the claims on the kernels; asked where it reads the file      |
| search      | breadth-first search over the schedulers; asked where it reads the file                        |
| enumeration | the exact law of small runs under rejection sampling                                           |
| runs        | tokens of small runs, every layout, greedy and coupled, cancelled, preempted, recorded         |
| replay      | small runs, with tokens and slots, before the machine extracted from Coq                       |
| checks      | the same runs with the run-time checks on                                                      |
| test        | the tests that name the error; asked where no other layer sees it                              |

Theorems are about relations and formulas, not about the code, so no error in the code can break one.
"""

import importlib
import json
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tools"))

import planted  # noqa: E402 (in tools)
from mutants import Mutant  # noqa: E402
from mutate import MutantFinder, in_child  # noqa: E402

DATA, PAGE = HERE / "layers.json", HERE / "layers.md"
LIMIT_S = 60  # of processor time, for each layer
NOT_ASKED = "not asked"
Seen = str | None
Cells = dict[str, Seen]


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
            raise ValueError(f"{self.name}: {self.old!r} is in the engine {len(files)} times, not once")
        return files[0]

    def mutant(self) -> Mutant:
        """The file, altered."""
        source = engine()[self.file()]
        for old, new in [[self.old, self.new], *self.then]:
            source = source.replace(old, new)
        return Mutant(self.file(), (0, 0), 0, self.name, 1, source, False)


@cache
def engine() -> dict[str, str]:
    """The engine's texts, by file."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "refimpl").rglob("*.py")}


def errors() -> list[Error]:
    """Those of errors.toml, then those of tools/planted.toml that are in the engine."""
    own = [Error(**entry) for entry in tomllib.loads((HERE / "errors.toml").read_text())["error"]]
    others = [e for e in planted.read_planted() if any(e.old in text for text in engine().values())]
    reasons = tomllib.loads((HERE / "errors.toml").read_text())["only_a_test"]
    return own + [Error(e.name, e.old, e.new, tests=list(e.tests), why=reasons.get(e.name, "")) for e in others]


# --- layers ------------------------------------------------------------------------------------------------------
# Imports are inside: a child must load the altered code.


def by_solver() -> Seen:
    """The first claim on a kernel that Z3 refutes."""
    from proofs.z3 import blocks, choices, layouts
    from proofs.z3.obligation import prove
    from refimpl.core import kernels

    claims = [o for module in (layouts, choices, blocks) for o in module.obligations(kernels)]
    found = (prove(claim, second_opinion=False) for claim in claims)
    return next((v.name for v in found if "z3: sat" in v.detail), None)  # no answer in time is no counterexample


def by_search() -> Seen:
    """The first search that meets a wrong transition."""
    from collections import Counter

    from proofs.conformance import schedulers as s

    some = [*islice(s.with_blocks(), 0, None, 3), *islice(s.configurations(), 0, None, 3)]
    return next((v.name for v in s.verdicts(iter(some), Counter()) if not v.ok), None)


def by_law() -> Seen:
    """The first law that is off."""
    from proofs.conformance import laws

    methods = ("inplace+fifo", "realigned+static", "masked+grouped", "paged+fifo", "rollback+static")
    some = [*((method, laws.RAGGED, "model") for method in methods), ("inplace+fifo", laws.REPEATED, "ngram")]
    found = (laws.verdict(method, drafter, shape, drafter) for method, shape, drafter in some)
    return next((v.detail or v.name for v in found if not v.ok), None)


def small_runs(checks: str) -> Iterator[tuple[str, Any]]:
    """Names and runs of the layers `runs` and `checks`: some of each kind, every layout."""
    from collections import Counter

    from proofs.conformance import reach, runs
    from proofs.conformance.borders import small_borders

    original = runs.engine_for
    runs.engine_for = lambda *a, **settings: original(*a, **settings | {"checks": settings.get("checks") or checks})
    methods = ("inplace+fifo", "realigned+static", "rollback+fifo", "masked+grouped", "paged+grouped")
    with small_borders():
        for method in methods:
            yield method, islice(runs.greedy_runs(method), 0, None, 29)
            yield method, islice(runs.coupled_runs(method), 0, None, 5)
            for kind, some in reach.KINDS.items():
                if reach.applies(kind, method):
                    yield f"{method}, {kind}", islice(some(method, Counter()), 0, None, 3)


def by_runs(checks: str = "off") -> Seen:
    """The first run with other tokens, or other drafts accepted."""
    from proofs.conformance import runs

    found = (runs.verdict(name, some)[0] for name, some in small_runs(checks))
    return next((f"{v.name}: {v.detail}" for v in found if not v.ok), None)


def by_checks() -> Seen:
    """The first invariant that a check finds broken."""
    found = by_runs("device")
    return found[found.index("INV-") :].split(":")[0] if found and "INV-" in found else None


def by_replay(replayer: str) -> Seen:
    """The first run that the machine does not replay."""
    from proofs.conformance import replay
    from proofs.conformance.borders import small_borders

    for method in ("inplace+fifo", "realigned+static", "rollback+fifo", "masked+grouped", "paged+grouped"):
        with small_borders():
            some = list(replay.small_runs(method))
        for answer in replay.judge(replayer, some):
            if answer != "valid":
                return f"{method}: {answer}"
    return None


def by_tests(tests: list[str]) -> Seen:
    """The first of the tests that fails."""
    plugin = planted.FirstFailure()
    planted.run_pytest(["-x", *(f"tests/{test}" for test in tests)], plugin)
    return plugin.failed or None


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeoutError in the body when it has used its processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError("does not end")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def asked(layer: Callable[[], Seen]) -> Seen:
    """What a layer sees; an error of its own is seen, too."""
    try:
        with time_limit():
            return layer()
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:80]}"


def layers_of(file: str, replayer: str) -> dict[str, Callable[[], Seen]]:
    """The layers that read a file; None of them sees anything in the engine as it is."""
    every = {"enumeration": by_law, "runs": by_runs, "replay": lambda: by_replay(replayer), "checks": by_checks}
    solver = {"solver": by_solver} if file.endswith("core/kernels.py") else {}
    search = {"search": by_search} if "/scheduling/" in file else {}
    return solver | search | every


LAYERS = ("solver", "search", "enumeration", "runs", "replay", "checks", "test")
PROOFS = LAYERS[:5]


def judge(mutant: Mutant | None, file: str, replayer: str, tests: list[str]) -> Cells:
    """What every layer sees of an altered engine, or of the engine as it is."""

    def work() -> tuple[int, Cells]:
        os.chdir(ROOT)
        importlib.import_module("torch").set_num_threads(1)
        if mutant:
            finder = MutantFinder(mutant)
            sys.meta_path.insert(0, finder)
        cells: Cells = {name: asked(layer) for name, layer in layers_of(file, replayer).items()}
        if tests and not any(cells.values()):
            cells["test"] = asked(lambda: by_tests(tests))
        return 0, cells

    status, cells = in_child(work)
    if status != 0:
        raise SystemExit(f"the layers did not run: {status}")
    return {name: cells.get(name, NOT_ASKED) for name in LAYERS}


# --- the table ---------------------------------------------------------------------------------------------------


def seen(cell: Seen) -> bool:
    """Whether a layer has noticed."""
    return cell is not None and cell != NOT_ASKED


def share_seen(rows: list[dict[str, Any]], layers: tuple[str, ...]) -> float:
    """Of the errors, those that one of the layers sees."""
    return sum(any(seen(row["cells"][layer]) for layer in layers) for row in rows) / len(rows)


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The page."""
    parts = [layer.strip("| ") for layer in (__doc__ or "").splitlines() if layer.startswith("| ")]
    lines = [
        "# Which layer sees which error",
        "",
        "Written by `python -m proofs.layers REPLAYER`, with one row for each planted error (`proofs/errors.toml`,",
        "`tools/planted.toml`). ✓: the layer notices; ·: it does not; an empty cell: it was not asked.",
        "",
        "| " + " | ".join(["layer", "what it does with the altered code"]) + " |",
        "|---|---|",
        *(f"| {part} |" for part in parts[1:]),
        "",
        "Theorems are about relations and formulas, not about the code, so no error in the code can break one.",
        "",
        f"**{len(rows)} errors; {share_seen(rows, PROOFS):.0%} are seen by a proof stage, "
        f"{share_seen(rows, LAYERS):.0%} by something.**",
        "",
        "| error | file | " + " | ".join(LAYERS) + " |",
        "|---" * (len(LAYERS) + 2) + "|",
        *(_line(row) for row in rows),
        "",
        "## What no proof stage sees",
        "",
        *(f"- {row['error']}: {row['why']}" for row in rows if not any(seen(row["cells"][name]) for name in PROOFS)),
        "",
        "## What was seen first",
        "",
        *(f"- {row['error']}: {_first(row)}" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    marks = ["" if cell == NOT_ASKED else "✓" if cell else "·" for cell in row["cells"].values()]
    return "| " + " | ".join([row["error"], f"`{row['file'].removeprefix('refimpl/')}`", *marks]) + " |"


def _first(row: dict[str, Any]) -> str:
    name, cell = next(((name, cell) for name, cell in row["cells"].items() if seen(cell)), ("nothing", ""))
    return f"{name}: {' '.join(str(cell).split())[:100]}".replace("|", "/")


def write(rows: list[dict[str, Any]]) -> None:
    """Both files."""
    DATA.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(as_markdown(rows))


def main(replayer: str, words: list[str]) -> int:
    """Ask about the engine as it is, then about every error that has no row yet."""
    known = {row["error"]: row for row in (json.loads(DATA.read_text()) if DATA.exists() else [])}
    planted.preload()
    for file in ("refimpl/core/kernels.py", "refimpl/scheduling/pool.py"):
        healthy = judge(None, file, replayer, [])
        if any(map(seen, healthy.values())):
            raise SystemExit(f"seen without any error: {healthy}")
    rows = []
    for error in errors():
        row = known.get(error.name)
        if row is None and (not words or any(word in error.name for word in words)):
            cells = judge(error.mutant(), error.file(), replayer, error.tests)
            row = {"error": error.name, "file": error.file(), "why": error.why, "cells": cells}
            print(error.name, [name for name, cell in cells.items() if seen(cell)], flush=True)
        if row:
            rows.append(row | {"why": error.why})
            write(rows + [known[e.name] for e in errors()[len(rows) :] if e.name in known])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
