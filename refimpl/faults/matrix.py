"""Write the detection matrix: fault × what notices it. ``python -m refimpl.faults.matrix``.

The matrix is committed as ``docs/detection_matrix.json`` and ``docs/detection_matrix.md``; it holds no time and no
machine, so that a second run gives the same bytes.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from refimpl.core.files import write_whole
from refimpl.decoding.invariants import STATEMENTS
from refimpl.faults import FAULTS
from refimpl.faults.base import Fault
from refimpl.faults.detection import DETECTORS, NUM_EXAMPLES, applies, detect, kit_property

SCHEMA = "raggedspec.detection/2"
DOCS = Path(__file__).parents[2] / "docs"
HEALTHY = "(healthy engine)"
NOT_ASKED = "not asked"
Matrix = dict[str, Any]


def build_row(fault: Fault | None) -> dict[str, Any]:
    """Ask every detector about one fault."""
    cells: dict[str, Any] = {}
    for detector in DETECTORS:
        notice = detect(fault, detector) if applies(fault, detector) else None
        cells[detector] = asdict(notice) if notice else None if applies(fault, detector) else NOT_ASKED
    return about(fault) | {"first": first_invariant(cells), "cells": cells, "kit": kit_property(fault)}


def about(fault: Fault | None) -> dict[str, Any]:
    """What a row says of the fault itself."""
    fields = ("name", "effect", "summary", "source")
    values = (
        [getattr(fault, field) for field in fields] if fault else [HEALTHY, "nothing", "No fault is injected.", None]
    )
    return dict(zip(("fault", *fields[1:]), values, strict=True))


def first_invariant(cells: dict[str, Any]) -> str | None:
    """The invariant that breaks first: at the lowest level at which any does."""
    named = [cell["by"] for cell in cells.values() if isinstance(cell, dict) and cell["by"].startswith("INV")]
    return named[0] if named else None


def build_matrix(known: Iterable[dict[str, Any]] = ()) -> Matrix:
    """Ask every detector about every fault, and about the healthy engine; rows that are `known` stay as they are."""
    rows, kept = [], {row["fault"]: row for row in known}
    for fault in (None, *FAULTS.values()):
        rows.append(kept.get(fault.name if fault else HEALTHY) or build_row(fault))
        print(rows[-1]["fault"], rows[-1]["first"], flush=True)
    return {"schema": SCHEMA, "examples_at_most": NUM_EXAMPLES, "rows": rows}


def as_markdown(matrix: Matrix) -> str:
    """The page: the table, which invariant breaks first, and what each fault is."""
    head = ["fault", "seen in", "changes", *DETECTORS, "kit"]
    lines = [
        "# Detection matrix",
        "",
        "Written by `python -m refimpl.faults.matrix`. Each fault replaces one function of the engine by a broken one",
        "(`refimpl/faults/`). A cell names what noticed the fault and, in brackets, after how many random cases;",
        f"· means not noticed after {matrix['examples_at_most']} cases, – that the detector does not apply.",
        "",
        "- *host*, *device* and *oracle* are the levels of the run-time checks.",
        "- *output* compares tokens with autoregressive decoding; *acceptance* compares the accepted drafts with a",
        "  script; *report* compares log-probabilities, texts and statistics with those of ordinary decoding and with",
        "  sums over the rounds; *sampling* compares the distribution of sampled tokens with the target's. These four",
        "  run without checks. Two faults of block verification move the law by a percent or two; exact enumeration",
        "  sees them (tests/statistical/test_block_rule.py).",
        "- *kit* is the first property that fails when `raggedspec conformance` tests the broken engine by its outputs",
        "  alone, checks off, with the default settings; · means that the engine conforms.",
        "- *seen in* is a public issue or pull request about a fault of this kind in another engine.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in matrix["rows"]:
        cells = [_cell(row["cells"][detector]) for detector in DETECTORS]
        cells.append(f"`{row['kit']}`" if row["kit"] else "·")
        lines.append("| " + " | ".join([f"`{row['fault']}`", _link(row["source"]), row["effect"], *cells]) + " |")
    lines += [
        "",
        "## First to break",
        "",
        "| invariant | statement | faults it is the first to catch |",
        "|---|---|---|",
    ]
    for invariant, statement in STATEMENTS.items():
        names = [f"`{row['fault']}`" for row in matrix["rows"] if row["first"] == invariant]
        lines.append(f"| {invariant} | {statement} | {', '.join(names)} |")
    lines += ["", "## The faults", ""]
    lines += [f"- `{row['fault']}`: {row['summary']}" for row in matrix["rows"]]
    return "\n".join(lines)


def _link(source: str | None) -> str:
    if source is None:
        return ""
    repository, _, number = source.partition("#")
    return f"[{source}](https://github.com/{repository}/issues/{number})"


def _cell(cell: Any) -> str:
    if cell == NOT_ASKED:
        return "–"
    return f"{cell['by']} ({cell['examples']})" if cell else "·"


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write the detection matrix of the fault zoo.")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for detection_matrix.json and .md")
    parser.add_argument("--new", action="store_true", help="keep the rows that the folder's file has, build the others")
    arguments = parser.parse_args()
    folder = arguments.output
    torch.set_num_threads(1)
    known = json.loads((folder / "detection_matrix.json").read_text())["rows"] if arguments.new else []
    matrix = build_matrix(known)
    write_whole(folder / "detection_matrix.json", json.dumps(matrix, indent=1, ensure_ascii=False).splitlines())
    write_whole(folder / "detection_matrix.md", as_markdown(matrix).splitlines())


if __name__ == "__main__":
    main()
