"""``python -m proofs.layers REPLAYER [WORD …]``: plant errors in the engine; which layer of the proofs sees which?

The errors are those of errors.toml, and those of tools/planted.toml that are in the engine. Each gets a forked child
that loads the altered text instead of the file, and every layer is asked within a limit of processor time. Rows are
written to layers.json and layers.md as they come; errors that are there already are not asked about again, unless
their text has changed. Without a replayer nothing is measured, and rows of changed errors are dropped.

| layer       | what it does with the altered code                                                           |
|-------------|------------------------------------------------------------------------------------------------|
| solver      | Z3 looks for a counterexample to the claims on kernels or placements; asked where it reads the file |
| search      | a third of the exhaustive searches over the schedulers; asked where it reads the file          |
| enumeration | the exact law of small runs by rejection or block, and of the keyed numbers                    |
| runs        | tokens of small runs, every layout, greedy and coupled, cancelled, preempted, recorded, asked  |
| replay      | small runs, with tokens, slots and blocks, before the machines extracted from Coq              |
| checks      | the same runs with the run-time checks on, and what the engine raises without them             |
| test        | the tests that name the error; asked where no other layer sees it                              |

Theorems are about relations and formulas, not about the code, so no error in the code can break one.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from proofs.layer_claims import (
    ENDLESS,
    NO_FINDING,
    RAISED,
    Seen,
    by_checks,
    by_law,
    by_replay,
    by_runs,
    by_search,
    by_solver,
    proved,
)  # fmt: skip
from proofs.layer_errors import HERE, ROOT, Error, Mutant, errors, in_child, planted

DATA, PAGE = HERE / "layers.json", HERE / "layers.md"
LIMIT_S = 60  # of processor time, for each layer
NOT_ASKED = "not asked"
Cells = dict[str, Seen]
Rows = dict[str, Cells]  # by the name of the error


def by_tests(tests: list[str]) -> Seen:
    """The first of the tests that fails."""
    plugin = planted.FirstFailure()
    planted.run_pytest(["-x", *(f"tests/{test}" for test in tests)], plugin)
    return plugin.failed or None


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeoutError in the body when it has used its processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def asked(layer: Callable[[], Seen]) -> Seen:
    """What a layer sees, or what the engine raised.

    Raises:
        NO_FINDING: an error that says that the layer could not be asked.
    """
    try:
        with time_limit():
            return layer()
    except NO_FINDING:
        raise
    except TimeoutError:
        return ENDLESS
    except Exception as error:
        return f"{RAISED}{type(error).__name__}: {str(error)[:80]}"


def layers_of(file: str, replayer: str) -> dict[str, Callable[[], Seen]]:
    """The layers that read a file."""
    every = {"enumeration": by_law, "runs": by_runs, "replay": lambda: by_replay(replayer), "checks": by_checks}
    about = next((word for word in ("kernels", "placement") if word in file), "")
    solver = {"solver": lambda: by_solver(about)} if about else {}
    search = {"search": by_search} if "/scheduling/" in file else {}
    return solver | search | every


LAYERS = ("solver", "search", "enumeration", "runs", "replay", "checks", "test")
PROOFS = LAYERS[:5]


def judge(mutant: Mutant | None, layers: dict[str, Callable[[], Seen]], tests: list[str]) -> Cells:
    """What some layers see of an altered engine, or of the engine as it is; if they see nothing, the tests are asked.

    Raises:
        RuntimeError: a layer could not be asked, or did not load the altered code.
    """

    def work() -> tuple[int, Any]:
        os.chdir(ROOT)
        importlib.import_module("torch").set_num_threads(1)
        try:
            finder = planted.plant(mutant) if mutant else None
            cells = with_refusals({name: asked(layer) for name, layer in layers.items()})
            if tests and not any(cells.values()):
                cells["test"] = asked(lambda: by_tests(tests))
        except NO_FINDING as error:
            return 2, f"{type(error).__name__}: {error}"
        return (0, cells) if finder is None or finder.loaded() else (2, "the altered file was not loaded")

    status, found = in_child(work)
    if status != 0:
        raise RuntimeError(found or f"the child ended with status {status}")
    return dict(found)


def with_refusals(cells: Cells) -> Cells:
    """Let what the engine itself has raised count for its checks."""
    refused = (cell for name, cell in cells.items() if name != "checks" and cell and cell.startswith(RAISED))
    return cells | {"checks": cells.get("checks") or next(refused, None)}


# --- the table ---------------------------------------------------------------------------------------------------


def seen(cell: Seen) -> bool:
    """Whether a layer has noticed."""
    return cell is not None and cell != NOT_ASKED


def by_proof(cells: Cells) -> bool:
    """Whether a claim of a proof stage fails."""
    return any(cells[layer] != NOT_ASKED and proved(cells[layer]) for layer in PROOFS)


def read_rows() -> Rows:
    """What was measured, of errors that are still the same, in their order."""
    stored = {row["error"]: row for row in (json.loads(DATA.read_text()) if DATA.exists() else [])}
    some = [e for e in errors() if stored.get(e.name, {}).get("digest") == e.digest()]
    return {e.name: stored[e.name]["cells"] for e in some}


def write_rows(rows: Rows) -> None:
    """Both files."""
    some = [e for e in errors() if e.name in rows]
    stored = [{"error": e.name, "file": e.file(), "digest": e.digest(), "cells": rows[e.name]} for e in some]
    DATA.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(as_markdown({e.name: rows[e.name] for e in some}))


def as_markdown(rows: Rows) -> str:
    """The page."""
    parts = [layer.strip("| ") for layer in (__doc__ or "").splitlines() if layer.startswith("| ")]
    every = errors()
    left = [f"- {e.name}" for e in every if e.name not in rows]
    reasons = [f"- {e.name}: {e.why}" for e in every if e.why]
    lines = [
        "# Which layer sees which error",
        "",
        "Written by `python -m proofs.layers REPLAYER`, with one row for each planted error (`proofs/errors.toml`,",
        "`tools/planted.toml`). ✓: a claim of the layer fails; !: none does, but the engine itself raises an error,",
        "which counts for its checks; ∞: it does not end; ·: it does not notice; an empty cell: it was not asked.",
        "A proof stage has its runs with all run-time checks off, and only ✓ counts as seen by it.",
        f"A layer that uses {LIMIT_S} s of processor time does not end; the engine as it is needs less.",
        "A row is measured when its error is new or its text has changed; layers have grown since the first. Cells",
        "that were measured with some checks on were measured anew where the engine had raised an error; the others",
        "were kept, as a check that finds nothing changes nothing.",
        "",
        "| " + " | ".join(["layer", "what it does with the altered code"]) + " |",
        "|---|---|",
        *(f"| {part} |" for part in parts[1:]),
        "",
        "Theorems are about relations and formulas, not about the code, so no error in the code can break one.",
        "",
        f"**{len(rows)} of {len(every)} errors measured. Of these, {sum(map(by_proof, rows.values()))} are seen by a "
        f"proof stage, {sum(any(map(seen, cells.values())) for cells in rows.values())} by something.**",
        "",
        "| error | file | " + " | ".join(LAYERS) + " |",
        "|---" * (len(LAYERS) + 2) + "|",
        *(_line(e, rows[e.name]) for e in every if e.name in rows),
        "",
        "## Not measured yet",
        "",
        *(left or ["None."]),
        "",
        "## Seen by no proof stage, and why",
        "",
        *(reasons or ["None."]),
        "",
        "## What was seen first",
        "",
        *(f"- {name}: {_first(cells)}" for name, cells in rows.items()),
    ]
    return "\n".join(lines) + "\n"


def _line(error: Error, cells: Cells) -> str:
    file = f"`{error.file().removeprefix('refimpl/')}`"
    return f"| {' | '.join([error.name, file, *(_sign(cells, layer) for layer in LAYERS)])} |"


def _sign(cells: Cells, layer: str) -> str:
    refused = layer in PROOFS and (cells[layer] or "").startswith(RAISED)
    return {NOT_ASKED: "", ENDLESS: "∞", None: "·"}.get(cells[layer], "!" if refused else "✓")


def _first(cells: Cells) -> str:
    found = [(name, cells[name]) for name in LAYERS if seen(cells[name])]
    name, cell = next(chain((each for each in found if proved(each[1])), found), ("nothing", ""))
    return f"{name}: {' '.join(str(cell).split())[:100]}".replace("|", "/")


def main(replayer: str, words: list[str]) -> int:
    """Ask about the engine as it is, then about every error that has no row yet; 1 if one could not be measured."""
    planted.preload()
    every = layers_of("core/kernels.py", replayer) | layers_of("/scheduling/", replayer)
    healthy = judge(None, every | {"placements": lambda: by_solver("placement")}, [])
    if any(map(seen, healthy.values())):
        raise SystemExit(f"seen without any error: {healthy}")
    rows, failed = read_rows(), 0
    for error in errors():
        if error.name in rows or (words and not any(word in error.name for word in words)):
            continue
        try:
            found = judge(error.mutant(), layers_of(error.file(), replayer), error.tests)
        except RuntimeError as why:
            failed = 1
            print(f"{error.name}: not measured: {why}", flush=True)
            continue
        print(error.name, [name for name, cell in found.items() if seen(cell)], flush=True)
        rows[error.name] = {name: found.get(name, NOT_ASKED) for name in LAYERS}
        write_rows(rows)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]) if sys.argv[1:] else write_rows(read_rows()))
