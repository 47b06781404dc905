"""Measured points on a grid, linear in between, and what lies outside of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import require

AXES = ("batch_size", "tokens_per_row", "width_tokens")
CORNERS = tuple(np.ndindex(2, 2, 2))


@dataclass(frozen=True, eq=False)
class Grid:
    """Mean seconds of a component.

    Large batches of long rows may be missing, where they did not fit the device: their seconds are continued from the
    points before them and count as outside.

    Attributes:
        axes: ascending values of `AXES`, three arrays.
        mean_s: ``[batch_size, tokens_per_row, width_tokens]``
        measured: which of them were measured, of the same shape.
    """

    axes: tuple[np.ndarray, np.ndarray, np.ndarray]
    mean_s: np.ndarray
    measured: np.ndarray

    def line(self, rows: float, tokens: float, widths: np.ndarray) -> np.ndarray:
        """Seconds for each width, linear along every axis, and constant beyond an axis of a single point."""
        low, high, share = _bracket(self.axes[0], rows)
        plane = self.mean_s[low] * (1 - share) + self.mean_s[high] * share
        low, high, share = _bracket(self.axes[1], tokens)
        values = plane[low] * (1 - share) + plane[high] * share
        return _line(self.axes[2], values, widths)

    def nearest(self, rows: int, tokens: float, widths: np.ndarray) -> tuple[int, float, np.ndarray]:
        """The nearest place between measured points to the one given, at each width ``[widths]``.

        Rows and tokens keep within their axes; then widths, within what was measured of so many rows; of so many rows
        of which nothing was, the next fewer are taken.
        """
        (least_rows, most_rows), (least, most) = ((int(axis[0]), int(axis[-1])) for axis in self.axes[:2])
        rows, tokens = min(max(rows, least_rows), most_rows), min(max(tokens, least), most)
        while not (measured := self._measured(rows, tokens)).any():
            rows = int(self.axes[0][self.axes[0] < rows][-1])
        return rows, tokens, np.clip(widths, int(self.axes[2][0]), int(self.axes[2][measured][-1]))

    def _measured(self, rows: float, tokens: float) -> np.ndarray:
        """Which widths were measured of the rows and tokens on both sides of these ``[width_tokens]``."""
        low, high, share = _bracket(self.axes[0], rows)
        plane = self.measured[low] if not share else self.measured[low] & self.measured[high]
        low, high, share = _bracket(self.axes[1], tokens)
        return plane[low] if not share else plane[low] & plane[high]

    def outside(self, rows: float, tokens: float, width: float) -> str:
        """Where the point lies outside of what was measured; empty when inside.

        Of an axis of one point any value is inside, but for rows: what one batch size costs says nothing of others.
        """
        point = (rows, tokens, width)
        for name, axis, value in zip(AXES, self.axes, point, strict=True):
            says_all = len(axis) == 1 and (name != "batch_size" or axis[0] == 0)
            if not (says_all or axis[0] <= value <= axis[-1]):
                return f"{name} {value:g} is outside {axis[0]:g} … {axis[-1]:g}"
        brackets = [_bracket(axis, value) for axis, value in zip(self.axes, point, strict=True)]
        for corner in CORNERS:
            used = all(share > 0 or not upper for (_, _, share), upper in zip(brackets, corner, strict=True))
            place = tuple(high if upper else low for (low, high, _), upper in zip(brackets, corner, strict=True))
            if used and not self.measured[place]:
                given = ", ".join(f"{name} {value:g}" for name, value in zip(AXES, point, strict=True))
                return f"{given} is outside: that many rows of that width were not measured together"
        return ""


def _bracket(axis: np.ndarray, value: float) -> tuple[int, int, float]:
    if len(axis) == 1:
        return 0, 0, 0.0
    low = int(np.clip(np.searchsorted(axis, value, side="right") - 1, 0, len(axis) - 2))
    return low, low + 1, float((value - axis[low]) / (axis[low + 1] - axis[low]))


def _line(axis: np.ndarray, values: np.ndarray, widths: np.ndarray) -> np.ndarray:
    if len(axis) == 1:
        return np.full(len(widths), max(values[0], 0))
    low = np.clip(np.searchsorted(axis, widths, side="right") - 1, 0, len(axis) - 2)
    share = (widths - axis[low]) / (axis[low + 1] - axis[low])
    return np.maximum(values[low] * (1 - share) + values[low + 1] * share, 0)


def make_grid(points: pd.DataFrame, where: str) -> Grid:
    """Build the grid of one component and layout.

    Args:
        points: lines of points.csv.
        where: how errors call them.

    Raises:
        InputError: a point is listed twice, or missing between measured ones.
    """
    axes = tuple(np.sort(points[name].unique()).astype(float) for name in AXES)
    table = points.set_index(list(AXES))["mean_s"]
    require(table.index.is_unique, f"{where}: a point is listed twice")
    full = table.reindex(pd.MultiIndex.from_product(axes, names=AXES))
    means = full.to_numpy(dtype=float).reshape(tuple(len(axis) for axis in axes))
    measured = np.isfinite(means)
    reached = np.flip(np.logical_or.accumulate(np.flip(measured, 2), axis=2), 2)
    reached = np.flip(np.logical_or.accumulate(np.flip(reached, 0), axis=0), 0)
    shape = "×".join(str(len(axis)) for axis in axes)
    require(bool((reached == measured).all()), f"{where}: {len(points)} points do not fill a grid {shape}")
    return Grid(axes, _continued(means, axes), measured)  # type: ignore[arg-type]


def _continued(means: np.ndarray, axes: Any) -> np.ndarray:
    """Fill what is missing at the far corner by the slope before it: along the widths, else along the rows."""
    means = means.copy()
    for place in np.argwhere(np.isnan(means)):
        axis = max((2, 0), key=lambda name: min(place[name], 2))
        at = place[axis]
        before, last = (tuple(max(at - n, 0) if i == axis else v for i, v in enumerate(place)) for n in (2, 1))
        if at < 2:
            means[tuple(place)] = means[last]
            continue
        slope = (means[last] - means[before]) / (axes[axis][at - 1] - axes[axis][at - 2])
        means[tuple(place)] = max(means[last] + slope * (axes[axis][at] - axes[axis][at - 1]), means[last])
    return means
