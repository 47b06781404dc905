"""Seconds of each stage of a round.

A cost model answers in lines: for given rows and tokens, the seconds at every width, so that the event loop pays one
look-up. Which stages a layout pays for, and when, is `simulator.service.pricing`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from simulator.service.streams import Purpose, Streams
from simulator.settings.calibration import COMPONENTS
from simulator.settings.fields import Spec
from simulator.settings.kinds import COST

BLOCK_WIDTHS = 64  # widths whose seconds are computed at a time


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


class PassSeconds(NamedTuple):
    """Seconds of a round's passes, and of the host beside them."""

    draft_s: float
    verify_s: float
    host_s: float


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
        kv_bytes_per_token, state_bytes_per_row: of K/V and of recurrent states, target and draft together.
        kv_capacity_bytes: room for them, where the cost model knows the device; None where it does not.
        num_devices: that the target runs on.
        cost_per_hour, watts: of one of them; None where nobody says.
        own_contexts: whether a pass reads each row's own K/V where they lie, as the kernels of servers do; else every
            row is read as wide as the widest, and rows that are no neighbours are copied first, as this engine does.
        extrapolated: what was asked for outside the calibrated range; empty means nothing.
        origin: calibration id and where its numbers come from.
    """

    noise_cv = 0.0
    kv_bytes_per_token = 0.0
    state_bytes_per_row = 0.0
    kv_capacity_bytes: float | None = None
    num_devices = 1
    cost_per_hour: float | None = None
    watts: float | None = None
    own_contexts = False
    origin = "linear"

    def __init__(self, factors: dict[str, float]):
        self.factors = factors
        self.extrapolated: set[str] = set()
        self.lines: dict[tuple[str, int, float, bool], Line] = {}
        self.point = lru_cache(maxsize=None)(self._point)
        self.passes_s = lru_cache(maxsize=None)(self._passes_s)
        self.gather_s = lru_cache(maxsize=None)(self._gather_s)

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

    def _passes_s(self, rows: int, passes: int, span: int, mean: float, width: int, scattered: bool) -> PassSeconds:
        """Seconds of so many passes of the draft, of a verify pass of up to `span` tokens a row, and of the host.

        Args:
            mean: tokens that a row feeds the verify pass on average, where it leaves the pads out; 0 where it does not.
        """
        packing_s = self.packing_s(rows, mean, width) if mean else 0.0
        verify_s = self.line("verify", rows, mean or span, scattered).at(width) + packing_s
        draft_s = self.line("draft", rows, passes, scattered).at(width) if passes else 0.0
        return PassSeconds(draft_s, verify_s, self.point("host", rows, span))

    def _gather_s(self, component: str, rows: int, width: int) -> float:
        """Seconds of one gather of so many rows."""
        return self.line(component, rows, 0).at(width)

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
        self.kv_bytes_per_token, self.state_bytes_per_row = self.p["kv_bytes_per_token"], self.p["state_bytes_per_row"]

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
