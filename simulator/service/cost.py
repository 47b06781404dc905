"""Seconds of each stage of a round.

A cost model answers in lines: for given rows and tokens, the seconds at every width, so that the event loop pays one
look-up. Which stages a layout pays for, and when, is `simulator.service.pricing`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from refimpl.core.errors import require
from simulator.service.streams import Purpose, Streams
from simulator.settings.calibration import COMPONENTS, Calibration
from simulator.settings.fields import Spec
from simulator.settings.grids import Grid
from simulator.settings.kinds import COST

BLOCK_WIDTHS = 64  # widths whose seconds are computed at a time
UNMEASURED = "mixed: passes with chunks of prompts were not measured; computed from prefills"
UNMEASURED_LAG = "draft: passes over what it has missed were not measured; left out"


@dataclass(frozen=True, slots=True)
class Fed:
    """Rows of a pass that are alike.

    Attributes:
        rows: how many.
        tokens: that each of them feeds.
        context: cached tokens that each looks back at; or several such numbers ``[n]``, for as many passes.
    """

    rows: int
    tokens: float
    context: Any


MEASURED_ROW = Fed(1, 4, 64)  # each row beside the chunk of a `mixed` point, as `raggedspec calibrate` times it


class Line(dict[int, float]):
    """Seconds by width in tokens, computed a block of widths at a time where they are asked for.

    Args:
        seconds: widths ``[n]`` → seconds ``[n]``.

    Attributes:
        widest: largest width of a stage that has run; negative where none has.
    """

    def __init__(self, seconds: Callable[[np.ndarray], np.ndarray]):
        super().__init__()
        self.seconds = seconds
        self.widest = -1

    def at(self, width: int) -> float:
        """Seconds of a stage that runs; a mere estimate reads them by index."""
        if width > self.widest:
            self.widest = width
        return self[width]

    def __missing__(self, width: int) -> float:
        first = width - width % BLOCK_WIDTHS
        widths = np.arange(first, first + BLOCK_WIDTHS)
        self.update(zip(widths.tolist(), self.seconds(widths).tolist(), strict=True))
        return self[width]


class CostModel(ABC):
    """Cost of the components for one layout.

    Args:
        factors: component → factor drawn for the replication (speed of the run, calibration uncertainty).

    Attributes:
        noise_cv: relative standard deviation of a round's duration.
        kv_bytes_per_token: target and draft together.
        kv_capacity_bytes: room for them, where the cost model knows the device; None where it does not.
        extrapolated: what was asked for outside the calibrated range; empty means nothing.
        origin: calibration id and where its numbers come from.
    """

    noise_cv = 0.0
    kv_bytes_per_token = 0.0
    kv_capacity_bytes: float | None = None
    origin = "linear"

    def __init__(self, factors: dict[str, float]):
        self.factors = factors
        self.extrapolated: set[str] = set()
        self.lines: dict[tuple[str, int, float, bool], Line] = {}
        self.point = lru_cache(maxsize=None)(self._point)

    def line(self, component: str, rows: int, tokens: float, scattered: bool = False) -> Line:
        """Seconds of a component at every width; of packed rows, `tokens` is their mean."""
        key = component, rows, tokens, scattered
        if key not in self.lines:
            factor = self.factors[component]
            self.lines[key] = Line(lambda widths: self.seconds(component, rows, tokens, widths, scattered) * factor)
        return self.lines[key]

    def _point(self, component: str, rows: int, tokens: float, width: int = 0) -> float:
        """Seconds of a component at one width: where few come up, or none matters."""
        return float(self.seconds(component, rows, tokens, np.array([width]), False)[0]) * self.factors[component]

    def prefill_s(self, prompts: Seq[Fed], *, padded: bool = False) -> float:
        """Seconds of a pass over prompts, or chunks of them, of one row each; 0 where no token is fed.

        Real tokens are fed: as many rows as feed any, of their mean, each after the mean of what is cached. Padded, all
        are as long as the longest.
        """
        parts = prompts if padded else [prompt for prompt in prompts if prompt.tokens > 0]
        lengths, rows = [part.tokens for part in parts], len(parts)
        if not any(lengths):
            return 0.0
        tokens = max(lengths) if padded else sum(lengths) / rows
        return self.point("prefill", rows, tokens, sum([part.context for part in parts]) // rows)

    def beside(self, rows: Fed, chunks: Seq[Fed]) -> tuple[float, float]:
        """Seconds of chunks of prompts beside rows that decode: of a pass of the draft, and of the verify pass.

        Computed together, as their prefill, less one of a single token: the verify pass is made anyway.

        Args:
            rows: that decode.
            chunks: of a row each.
        """
        return 0.0, max(0.0, self.prefill_s(chunks) - self.prefill_s([Fed(1, 1, 0)]))

    def packing_s(self, rows: int, tokens: float, width: int) -> float:
        """Seconds that a verify pass takes longer than an even one because its rows feed `tokens` on average only."""
        return 0.0

    def catch_up_s(self, missed: Seq[Fed]) -> float:
        """Seconds of a pass of the draft over what rows have missed, one row each: as many rows of their mean."""
        rows, cached = len(missed), sum([row.context for row in missed]) // len(missed)
        return self.point("draft_prefill", rows, sum([row.tokens for row in missed]) / rows, cached)

    def check_widths(self) -> None:  # noqa: B027 (most cost models know no range)
        """Refuse, or mark, a study with stages that were wider than what was measured; called at its end."""

    @abstractmethod
    def seconds(self, component: str, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds of one execution at each width ``[widths]``; `scattered`: the rows' slots are no neighbours."""


class LinearCost(CostModel):
    """Base plus so much per token, per row and per byte: for what-if studies and for tests against theory."""

    def __init__(self, spec: Spec, factors: dict[str, float]):
        super().__init__(factors)
        self.p = spec.resolved(COST)
        self.noise_cv = self.p["noise_cv"]
        self.kv_bytes_per_token = self.p["kv_bytes_per_token"]

    def seconds(self, component: str, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds by the formula of the component ``[widths]``."""
        p, fed = self.p, rows * tokens
        context_s = p["context_s_per_token"] * rows * widths
        moved_s = 2 * rows * widths * p["kv_bytes_per_token"] / p["move_bytes_per_s"]  # read and write
        if component == "prefill":
            return p["prefill_base_s"] + p["prefill_s_per_token"] * fed + context_s
        if component == "draft":
            return np.full(len(widths), p["draft_base_s"] * tokens + p["draft_s_per_token"] * fed)
        if component == "draft_prefill":
            return np.full(len(widths), p["draft_base_s"] + p["draft_s_per_token"] * fed)
        if component == "verify":
            return p["verify_base_s"] + p["verify_s_per_token"] * fed + context_s
        if component == "host":
            return np.full(len(widths), p["host_base_s"] + p["host_s_per_row"] * rows)
        if component == "split":
            return np.full(len(widths), p["split_base_s"])
        base_s = p["concat_base_s"] if component == "concat" else p["realign_base_s"]
        return base_s + p["realign_s_per_row"] * rows + moved_s


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
        self.noise_cv = calibration.meta["round_cv"]
        self.origin = f"{calibration.name}@{calibration.digest} ({calibration.meta['origin']})"
        self.packing = lru_cache(maxsize=None)(self._packing)

    def seconds(self, component: str, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds between the points; below the narrowest width, where it hardly matters, those of that width.

        Rows and tokens are checked here, widths at the end of the run.

        Raises:
            InputError: rows or tokens lie outside, and the table is not to be extrapolated.
        """
        grid = self._grid(component, scattered)
        self._note(grid.outside(rows, tokens, grid.axes[2][0]), component)
        return grid.line(rows, tokens, np.maximum(widths, grid.axes[2][0]))

    def prefill_s(self, prompts: Seq[Fed], *, padded: bool = False) -> float:
        """As of prompts from their beginnings, and what chunks beside the fewest rows take longer after cached tokens.

        Raises:
            InputError: more tokens are cached than were measured, and the table is not to be extrapolated.
        """
        later = [prompt for prompt in prompts if prompt.context and prompt.tokens]
        grid = self.calibration.find("mixed", self.layout) if later else None
        whole_s = super().prefill_s(prompts, padded=padded)
        return whole_s + sum([self._later_s(grid, prompt) for prompt in later]) if grid else whole_s

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


def draw_factors(
    streams: Streams, component_cv: dict[str, float], run_cv: float, noise: bool, purpose: Purpose = Purpose.CALIBRATION
) -> dict[str, float]:
    """One factor per component, mean 1: the speed of the run, common to all, times each component's uncertainty."""
    normal = streams.generator(purpose).standard_normal(len(COMPONENTS) + 1)
    if not noise:
        return dict.fromkeys(COMPONENTS, 1.0)
    run = lognormal_factor(normal[0], run_cv)
    pairs = zip(COMPONENTS, normal[1:], strict=True)
    return {name: run * lognormal_factor(z, component_cv.get(name, 0.0)) for name, z in pairs}


def lognormal_factor(z: float, cv: float) -> float:
    """Lognormal number of mean 1 and relative standard deviation `cv`, from a standard normal one."""
    return float(lognormal_factors(np.array([z]), cv)[0])


def lognormal_factors(z: np.ndarray, cv: float) -> np.ndarray:
    """Lognormal numbers of mean 1 and relative standard deviation `cv`, from standard normal ones."""
    variance = np.log1p(cv**2)
    return np.exp(np.sqrt(variance) * z - variance / 2)
