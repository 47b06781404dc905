"""The what-if panel as one HTML file: all answers are in it, and it needs no server."""

import json
from pathlib import Path

from refimpl.core.files import write_whole
from simulator.studies.whatif_grid import WhatIfGrid

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "GRID"


def write_page(grid: WhatIfGrid, path: str | Path) -> None:
    """Write the page.

    Raises:
        InputError: the file cannot be written.
    """
    data = json.dumps(grid.as_dict(), ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", r"\u003c"
    )
    write_whole(path, [TEMPLATE.read_text(encoding="utf-8").rstrip("\n").replace(f">{PLACE}<", f">{data}<")])
