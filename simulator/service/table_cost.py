"""Costs that were measured: the points of a calibration, interpolated, and what lies outside of them."""

from collections.abc import Sequence as Seq
from functools import lru_cache

import numpy as np

from refimpl.core.errors import require
from simulator.service.cost import CostModel, Fed, Line
from simulator.settings.calibration import Calibration
from simulator.settings.grids import Grid

UNMEASURED = "mixed: passes with chunks of prompts were not measured; computed from prefills"
UNMEASURED_LAG = "draft: passes over what it has missed were not measured; left out"


class TableCost(CostModel):
    """Measured points, interpolated linearly; outside them it refuses, or marks the result.

    Args:
        calibration: the points.
        layout: whose points are used.
        extrapolate: whether to go on outside the measured range.
    """

    def __init__(self, calibration: Calibration, layout: str, factors: dict[str, float], *, extrapolate: bool):
        super().__init__(factors)
        self.calibration, self.layout, self.extrapolate = calibration, layout, extrapolate
        self.kv_bytes_per_token = calibration.kv_bytes_per_token
        self.state_bytes_per_row = calibration.state_bytes_per_row
        self.noise_cv = calibration.meta["round_cv"]
        self.origin = f"{calibration.name}@{calibration.digest} ({calibration.meta['origin']})"
        self.packing = lru_cache(maxsize=None)(self._packing)

    def seconds(self, component: str, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds between the points; below the narrowest width, where it hardly matters, those of that width.

        Prompts shorter than the shortest that was prefilled cost as much. Rows and tokens are checked here, widths at
        the end of the run.

        Raises:
            InputError: rows or tokens lie outside, and the table is not to be extrapolated.
        """
        grid = self._grid(component, scattered)
        if component == "prefill":
            tokens = max(tokens, float(grid.axes[1][0]))
        self._note(grid.outside(rows, tokens, grid.axes[2][0]), component)
        return grid.line(rows, tokens, np.maximum(widths, grid.axes[2][0]))

    def prefill_s(self, prompts: Seq[Fed], *, padded: bool = False) -> float:
        """As of prompts from their beginnings, and what chunks beside the fewest rows take longer after cached tokens.

        Where no such chunks were measured, nothing is known of the tokens before: that is marked.

        Raises:
            InputError: more tokens are cached than were measured, and the table is not to be extrapolated.
        """
        later = [prompt for prompt in prompts if prompt.context and prompt.tokens]
        if not later:
            return super().prefill_s(prompts, padded=padded)
        grid = self.calibration.find("mixed", self.layout)
        if grid is None:
            self.extrapolated.add(UNMEASURED)
            return super().prefill_s(prompts, padded=padded)
        alone = [Fed(prompt.rows, prompt.tokens, 0) for prompt in prompts]  # an overlay grows with what is before them
        return super().prefill_s(alone, padded=padded) + sum([self._later_s(grid, prompt) for prompt in later])

    def _later_s(self, grid: Grid, chunk: Fed) -> float:
        """Seconds that a chunk takes longer after cached tokens than at the beginning of its prompt."""
        rows, tokens = int(grid.axes[0][0]), int(chunk.tokens)
        self._note(grid.outside(rows, grid.axes[1][0], chunk.context), "mixed")
        at = chunk.context, 0
        more_s = [sum(self._more_s(each, rows, tokens, start) for each in ("draft_chunk", "mixed")) for start in at]
        return max(0.0, more_s[0] - more_s[1])

    def beside(self, rows: Fed, chunks: Seq[Fed]) -> tuple[float, float]:
        """A measured verify pass with the chunks less one without; where none was measured, from prefills, and marked.

        What chunks add is taken to be the same whatever the rows feed: they were measured beside `MEASURED_ROW`.

        Raises:
            InputError: the pass lies outside of the points, and the table is not to be extrapolated.
        """
        grid = self.calibration.find("mixed", self.layout)
        if grid is None:
            self.extrapolated.add(UNMEASURED)
            return super().beside(rows, chunks)
        tokens, start = sum([chunk.tokens for chunk in chunks]), max([chunk.context for chunk in chunks])
        self._note(grid.outside(rows.rows, tokens, start), "mixed")
        return self._added_s("draft_chunk", rows.rows, chunks), self._added_s("mixed", rows.rows, chunks)

    def _added_s(self, component: str, rows: int, chunks: Seq[Fed]) -> float:
        """Seconds that each chunk adds by its own tokens and start, and once what any chunk adds, however small."""
        first_s = max(0.0, self._with_chunk(component, rows, 0, 0) - self.point(component, rows, 0, 0))
        more_s = sum([self._more_s(component, rows, int(chunk.tokens), chunk.context) for chunk in chunks])
        return max(0.0, more_s - (len(chunks) - 1) * first_s)

    def _more_s(self, component: str, rows: int, tokens: int, start: int) -> float:
        """Seconds of passes with one chunk, less those without."""
        return self._with_chunk(component, rows, tokens, start) - self.point(component, rows, 0, start)

    def _with_chunk(self, component: str, rows: int, tokens: int, start: int) -> float:
        """Seconds of passes with a chunk; below the smallest that was measured, on the line through it and the next.

        They jump where a chunk begins, however small: the draft makes a pass for it, and the verify pass is packed.
        """
        sizes = [int(size) for size in self._grid(component, scattered=False).axes[1] if size > 0][:2]
        if tokens >= sizes[0] or len(sizes) < 2:
            return self.point(component, rows, tokens, start)
        at_first, at_second = (self.point(component, rows, size, start) for size in sizes)
        return max(0.0, at_first - (sizes[0] - tokens) * (at_second - at_first) / (sizes[1] - sizes[0]))

    def catch_up_s(self, missed: Seq[Fed]) -> float:
        """As a chunk of as many tokens, all rows together; nothing, and marked, where no chunks were measured."""
        grid = self.calibration.find("draft_chunk", self.layout)
        sizes = [] if grid is None else [int(size) for size in grid.axes[1] if size > 0]
        if grid is None or len(sizes) < 2:
            self.extrapolated.add(UNMEASURED_LAG)
            return 0.0
        cached = sum([row.context for row in missed]) // len(missed)
        least, start = int(grid.axes[0][0]), int(np.clip(cached, grid.axes[2][0], grid.axes[2][-1]))
        first_s, last_s = (self.point("draft_chunk", least, size, start) for size in (sizes[0], sizes[-1]))
        more = sum([row.tokens for row in missed]) - sizes[0]
        return max(0.0, first_s + more * (last_s - first_s) / (sizes[-1] - sizes[0]))

    def packing_s(self, rows: int, tokens: float, width: int) -> float:
        """As measured; nothing where no packed pass was."""
        return self.packing(rows, tokens)[width] * self.factors["packed"]

    def _packing(self, rows: int, tokens: float) -> Line:
        """A packed pass less the even one that was timed in turn with it, at the nearest place that was measured."""
        packed, even = (self.calibration.find(name, self.layout) for name in ("packed", "even"))
        if packed is None or even is None:
            return Line(lambda widths: np.zeros(len(widths)))

        def seconds(widths: np.ndarray) -> np.ndarray:
            at = packed.nearest(rows, tokens, widths)
            return np.maximum(packed.line(*at) - even.line(*at), 0.0)

        return Line(seconds)

    def check_widths(self) -> None:
        """Compare the widest stage of each component, at each number of rows and tokens, with what was measured.

        Raises:
            InputError: it was wider, and the table is not to be extrapolated.
        """
        for (component, rows, tokens, scattered), line in self.lines.items():
            grid = self._grid(component, scattered)
            self._note(grid.outside(rows, tokens, max(line.widest, grid.axes[2][0])), component)

    def _grid(self, component: str, scattered: bool) -> Grid:
        return self.calibration.grid(component, f"{self.layout}_scattered" if scattered else self.layout)

    def _note(self, what: str, component: str) -> None:
        if what:
            self.extrapolated.add(f"{component}: {what}")
            allowed = "measure more points, or set cost.outside: extrapolate"
            require(self.extrapolate, f"cost.calibration {self.calibration.name}: {component}: {what}; {allowed}")
