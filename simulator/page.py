"""The what-if panel as one HTML page: all answers are in it, and it needs no server and no Python."""

import html
import json
from dataclasses import dataclass
from pathlib import Path

from refimpl.core.files import write_whole
from simulator.studies.whatif_grid import WhatIfGrid

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "GRID"
HEIGHT = 520  # pixels of the panel in a notebook


@dataclass(frozen=True)
class Page:
    """Answers to choose from with sliders; at the end of a cell of a notebook, the panel itself.

    Example::

        Page(answer_grid(scenario, axes={"batch_size": (1, 4, 8), "rate_per_s": (0.0, 5.0)}))
    """

    grid: WhatIfGrid

    @property
    def text(self) -> str:
        """The page."""
        data = json.dumps(self.grid.as_dict(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        template = TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
        return template.replace(f">{PLACE}<", f">{data.replace('<', chr(92) + 'u003c')}<")

    def write(self, path: str | Path) -> None:
        """Write the page; raises InputError if that is impossible."""
        write_whole(path, [self.text])

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.text)}" width="100%" height="{HEIGHT}"></iframe>'
