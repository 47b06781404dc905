"""The tables of docs/bugs.md: faults with their public reports, and what notices each."""

import json
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pages import markdown_table
from readme_tables import ROOT

from refimpl.core.invariants import STATEMENTS
from refimpl.faults.detection import DETECTORS
from refimpl.faults.matrix import HEALTHY, NOT_ASKED

Row = dict[str, Any]
ROWS: list[Row] = [
    row for row in json.loads((ROOT / "docs" / "detection_matrix.json").read_text())["rows"] if row["fault"] != HEALTHY
]
KINDS = tuple(dict.fromkeys(row["kind"] for row in ROWS))
SEEN, BLIND = "●", "·"
WRONG = ("what is wrong", "what notices it here")
SAID = {"output": "tokens", "acceptance": "acceptance", "report": "what is reported", "sampling": "law of samples"}


def link(source: str) -> str:
    """A public report, named as its repository does."""
    owner, _, number = source.partition("#")
    return f"[{owner.partition('/')[2]}#{number}](https://github.com/{owner}/issues/{number})"


def noticed(row: Row, detectors: Iterable[str]) -> tuple[str, Row] | None:
    """The first of some detectors that notices a fault, and its cell."""
    cells = ((name, row["cells"][name]) for name in detectors)
    return next(((name, cell) for name, cell in cells if isinstance(cell, dict)), None)


def seen_by(row: Row) -> str:
    """Invariant and level, comparison, and property of the kit, with the number of the case that showed it."""
    told = []
    if found := noticed(row, ("host", "device", "oracle")):
        level, cell = found
        told.append(f"{'**' + cell['by'] + '**' if row['first'] else 'an error'} (`{level}`, case {cell['examples']})")
    if found := noticed(row, SAID):
        name, cell = found
        told.append(SAID[name] + f" (case {cell['examples']})" * (name != "sampling"))
    if kit := row["kit"]:
        told.append(f"kit: `{kit['property']}`" + ", by an error" * bool(kit["error"]))
    return "; ".join(told) or "nothing but the exact enumeration of the law"


def hall(kind: str) -> str:
    """The faults of one kind: those with public reports, then the others."""
    mine = [row for row in ROWS if row["kind"] == kind]
    seen = [
        ["<br>".join([f"`{row['fault']}`", *map(link, row["sources"])]), row["symptom"], row["summary"], seen_by(row)]
        for row in mine
        if row["symptom"]
    ]
    others = [[f"`{row['fault']}`", row["summary"], seen_by(row)] for row in mine if not row["symptom"]]
    tables = [(["bug, and where it was seen", "what users see", *WRONG], seen), (["without a report", *WRONG], others)]
    return "\n".join(markdown_table(headings, lines, texts=headings) for headings, lines in tables if lines)


def invariants() -> str:
    """What each invariant says, the theorems about it, and the faults that break it first."""
    register = tomllib.loads((ROOT / "proofs" / "register.toml").read_text())["invariant"]
    lines = [
        [entry["id"], STATEMENTS[entry["id"]], *(", ".join(f"`{name}`" for name in names) for names in (
            entry["theorems"], [row["fault"] for row in ROWS if row["first"] == entry["id"]],
        ))]
        for entry in register
    ]  # fmt: skip
    headings = ["", "invariant", "theorems", "bugs that break it first"]
    return markdown_table(headings, lines, texts=headings)


def counts() -> str:
    """How many faults each detector notices, of how many it was asked about."""
    asked = {name: [row["cells"][name] for row in ROWS if row["cells"][name] != NOT_ASKED] for name in DETECTORS}
    lines = [[name, str(sum(cell is not None for cell in cells)), str(len(cells))] for name, cells in asked.items()]
    kits = [row["kit"] for row in ROWS if row["kit"]]
    by_tokens = sum(not kit["error"] for kit in kits)
    lines.append(["kit", f"{by_tokens}, and {len(kits) - by_tokens} by an error", str(len(ROWS))])
    return markdown_table(["detector", "notices", "of"], lines)


def mark(cell: Any) -> str:
    """Of a detector that was asked: noticed, or not."""
    return "" if cell == NOT_ASKED else SEEN if cell else BLIND


def matrix() -> str:
    """A row for each fault, a mark for each detector."""
    lines = []
    for row in ROWS:
        kit = ("!" if row["kit"]["error"] else SEEN) if row["kit"] else BLIND
        marks = [mark(row["cells"][detector]) for detector in DETECTORS]
        lines.append([f"`{row['fault']}`", row["effect"], row["first"] or "", *marks, kit])
    headings = ["fault", "changes", "first", *DETECTORS, "kit"]
    return markdown_table(headings, lines, texts=("changes", "first"))


BUG_TABLES: dict[str, Callable[[], str]] = {
    "bugs-counts": counts, "bugs-matrix": matrix,
    "bugs-invariants": invariants,
    **{f"bugs-{kind}": partial(hall, kind) for kind in KINDS},
}  # fmt: skip
