"""Write the detection matrix: fault × what notices it. ``python -m refimpl.faults.matrix``.

It is committed as ``docs/detection_matrix.json``, and ``docs/bugs.md`` shows it. It holds no time and no machine, so
that a second run gives the same bytes.
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
SCHEMA = "raggedspec.detection/5"
DOCS = Path(__file__).parents[2] / "docs"
HEALTHY = "(healthy engine)"
NOT_ASKED = "not asked"
NOTICED = ("first", "cells", "kit")  # of a row: by what
HIDDEN = ("acceptance", "report", "nothing")  # effects that tokens alone do not show
Matrix = dict[str, Any]


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
        return {"fault": HEALTHY, "effect": "nothing", "summary": "No fault is injected.", "fingerprint": None}
    described = {name: getattr(fault, name) for name in ("effect", "summary", "symptom")} | {
        "sources": list(fault.sources), "kind": fault.make.__module__.rpartition(".")[2].removesuffix("_faults")
    }  # fmt: skip
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
        same = row.get("fingerprint", ...) == what["fingerprint"]
        rows.append(what | {name: row[name] for name in NOTICED} if same else build_row(fault))
        print(rows[-1]["fault"], rows[-1]["first"], flush=True)
    return {"schema": SCHEMA, "examples_at_most": NUM_EXAMPLES, "rows": rows}


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write the detection matrix of the fault zoo.")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for detection_matrix.json")
    parser.add_argument("--new", action="store_true", help="ask only about faults that are new or have changed")
    arguments = parser.parse_args()
    folder = arguments.output
    torch.set_num_threads(1)
    known = json.loads((folder / "detection_matrix.json").read_text())["rows"] if arguments.new else []
    matrix = build_matrix(known)
    write_whole(folder / "detection_matrix.json", json.dumps(matrix, indent=1, ensure_ascii=False).splitlines())


if __name__ == "__main__":
    main()
