"""Write the detection matrix: fault × what notices it. ``python -m refimpl.faults.matrix``.

The matrix is committed as ``docs/detection_matrix.json`` and ``docs/detection_matrix.md``; it holds no time and no
machine, so that a second run gives the same bytes.
"""

import argparse
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from refimpl.core.files import write_whole
from refimpl.faults import FAULTS
from refimpl.faults.base import Fault
from refimpl.faults.detection import DETECTORS, NUM_EXAMPLES, applies, detect, kit_notice

SEARCHES = 3  # of the kit, with seeds of their own
SCHEMA = "raggedspec.detection/4"
DOCS = Path(__file__).parents[2] / "docs"
HEALTHY = "(healthy engine)"
NOT_ASKED = "not asked"
HIDDEN = ("acceptance", "report", "nothing")  # effects that tokens alone do not show
SEEN, BLIND = "●", "·"
Matrix = dict[str, Any]
INTRODUCTION = f"""# Detection matrix

Each fault replaces one function of the engine by a broken one (`refimpl/faults/`, where docstrings say what is wrong),
and each column says whether a detector of `refimpl/faults/detection.py` noticed it ({SEEN}) or not ({BLIND}) in
{{cases}} random cases; an empty cell was not asked.
*changes* is what the fault does to a run without checks, *seen in* a public report of its kind in another engine,
*first* the invariant ([register](../proofs/README.md#register)) that breaks at the lowest level of checks.
{{kit}}

Written by `python -m refimpl.faults.matrix`; [the data](detection_matrix.json) have the number of cases and the
property by which the kit fails.

| fault | changes | seen in | first |{"|".join((*DETECTORS, "kit"))}|
|---|---|---|---|{":-:|" * (len(DETECTORS) + 1)}"""


def build_row(fault: Fault | None) -> dict[str, Any]:
    """Ask every detector about one fault."""
    cells: dict[str, Any] = {}
    for detector in DETECTORS:
        notice = detect(fault, detector) if applies(fault, detector) else None
        cells[detector] = asdict(notice) if notice else None if applies(fault, detector) else NOT_ASKED
    return about(fault) | {"first": first_invariant(cells), "cells": cells, "kit": kit_cell(fault)}


def kit_cell(fault: Fault | None) -> dict[str, str] | None:
    """What the kit notices first in most of its searches, JSON-ready; None where the first of them notices nothing."""
    first = kit_notice(fault)
    if first is None:
        return None
    further = [kit_notice(fault, [first.property], seed=seed) for seed in range(1, SEARCHES)]
    [(usual, _)] = Counter(notice for notice in [first, *further] if notice).most_common(1)
    return asdict(usual)


def about(fault: Fault | None) -> dict[str, Any]:
    """What a row says of the fault itself."""
    if fault is None:
        same = {"effect": "nothing", "summary": "No fault is injected."}
        return {"fault": HEALTHY, **same, "source": None, "fingerprint": None}
    described = {name: getattr(fault, name) for name in ("effect", "summary", "source")}
    return {"fault": fault.name} | described | {"fingerprint": fingerprint(fault)}


def fingerprint(fault: Fault) -> str:
    """Digest of what the cells depend on: what is replaced, where it is looked for, the lines after the docstring."""
    _, _, body = inspect.getsource(fault.make).rpartition('"""')
    replaced = [_place(fault.owner), fault.attribute]
    conditions = [(_place(owner), attribute, value) for owner, attribute, value in fault.conditions]
    parts = [replaced, fault.layouts, fault.schedulers, fault.settings, conditions, body]
    return hashlib.sha256(json.dumps(parts, default=_differing).encode()).hexdigest()[:16]


def _place(owner: Any) -> str:
    """Of a module its name, of a class its module, too: classes of different files may share a name."""
    return owner.__name__ if inspect.ismodule(owner) else f"{owner.__module__}.{owner.__qualname__}"


def _differing(value: Any) -> dict[str, Any]:
    """Fields of a dataclass that do not have their defaults."""
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


def first_invariant(cells: dict[str, Any]) -> str | None:
    """The invariant that breaks first: at the lowest level at which any does."""
    named = [cell["by"] for cell in cells.values() if isinstance(cell, dict) and cell["by"].startswith("INV")]
    return named[0] if named else None


def build_matrix(known: Iterable[dict[str, Any]] = ()) -> Matrix:
    """Ask every detector about every fault, and about the healthy engine; cells that are `known` stay as they are."""
    rows, kept = [], {row["fault"]: row for row in known}
    for fault in (None, *FAULTS.values()):
        what = about(fault)
        row = kept.get(what["fault"], {})
        rows.append(row | what if row.get("fingerprint", ...) == what["fingerprint"] else build_row(fault))
        print(rows[-1]["fault"], rows[-1]["first"], flush=True)
    return {"schema": SCHEMA, "examples_at_most": NUM_EXAMPLES, "rows": rows}


def as_markdown(matrix: Matrix) -> str:
    """The page: a row for each fault, a mark for each detector."""
    rows = [row for row in matrix["rows"] if row["fault"] != HEALTHY]
    return "\n".join(
        [INTRODUCTION.format(kit=kit_summary(matrix), cases=matrix["examples_at_most"]), *map(_line, rows)]
    )


def _line(row: dict[str, Any]) -> str:
    marks = [_mark(row["cells"][detector]) for detector in DETECTORS]
    kit = row["kit"] and ("!" if row["kit"]["error"] else SEEN)
    told = [f"`{row['fault']}`", row["effect"], _link(row["source"]), row["first"] or ""]
    return f"| {' | '.join(told)} |{'|'.join([*marks, kit or BLIND])}|"


def kit_summary(matrix: Matrix) -> str:
    """How many faults the kit sees, by what, and how many it could see."""
    rows = [row for row in matrix["rows"] if row["fault"] != HEALTHY]
    errors = [bool(row["kit"]["error"]) for row in rows if row["kit"]]
    unseen = [row["effect"] in HIDDEN for row in rows if not row["kit"]]
    return (
        f"Of {len(rows)} faults the kit sees {errors.count(False)} by wrong tokens, as it would in any engine, and\n"
        f"{sum(errors)} by an error of this engine alone (!); of the {len(unseen)} others {sum(unseen)} change\n"
        "neither tokens nor their distribution."
    )


def _link(source: str | None) -> str:
    if source is None:
        return ""
    repository, _, number = source.partition("#")
    return f"[{source}](https://github.com/{repository}/issues/{number})"


def _mark(cell: Any) -> str:
    return "" if cell == NOT_ASKED else SEEN if cell else BLIND


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write the detection matrix of the fault zoo.")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for detection_matrix.json and .md")
    parser.add_argument("--new", action="store_true", help="ask only about faults that are new or have changed")
    arguments = parser.parse_args()
    folder = arguments.output
    torch.set_num_threads(1)
    known = json.loads((folder / "detection_matrix.json").read_text())["rows"] if arguments.new else []
    matrix = build_matrix(known)
    write_whole(folder / "detection_matrix.json", json.dumps(matrix, indent=1, ensure_ascii=False).splitlines())
    write_whole(folder / "detection_matrix.md", as_markdown(matrix).splitlines())


if __name__ == "__main__":
    main()
