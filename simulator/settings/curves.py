"""Efficiency of matrix products: seconds of a pass over those of reading its weights once, from published tables.

A table lists, for one device and one model, the seconds of a layer's matrix products by the number of tokens. Divided
by the seconds that reading the layer's weights would take at the specified bandwidth, they depend on the intensity
alone: tokens over the number at which computing would take as long as reading. So a table serves other models, and
with a larger error other devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from simulator.settings.folders import PUBLISHED
from simulator.settings.hardware import WEIGHT_BYTES, Device, load_architecture, load_device

TABLE = PUBLISHED / "linear_ops.csv"  # published seconds: columns device, tokens and layer_us
TABLE_MODEL, TABLE_DTYPE = "llama-2-7b", "float16"
TABLE_DEVICES = {"a100": "a100-80", "h100": "h100"}


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds over those of reading the weights once, linear between points.

    Attributes:
        intensity: ascending ``[points]``.
        slowness: at each of them.
    """

    intensity: np.ndarray
    slowness: np.ndarray

    def at(self, intensity: float) -> float:
        """Seconds over those of reading the weights once.

        Constant below the first point, linear between points, proportional to the intensity beyond the last.
        """
        beyond = max(1.0, intensity / self.intensity[-1])
        return float(np.interp(intensity, self.intensity, self.slowness)) * beyond

    @property
    def read_efficiency(self) -> float:
        """Share of the bandwidth that is reached where little is computed."""
        return 1 / float(self.slowness[0])

    @property
    def compute_efficiency(self) -> float:
        """Share of the peak that is reached by the largest pass."""
        return float(self.intensity[-1] / self.slowness[-1])

    def without(self, place: int) -> "Curve":
        """The same with a point left out."""
        return Curve(np.delete(self.intensity, place), np.delete(self.slowness, place))


def ridge_tokens(device: Device, dtype: str) -> float:
    """Tokens of a pass at which computing takes as long as reading the weights: peak · bytes / (2 · bandwidth)."""
    peak = getattr(device.peak_flops_per_s, dtype)
    return peak * WEIGHT_BYTES[dtype] / (2 * device.bandwidth_bytes_per_s)


@lru_cache(maxsize=4)
def load_curve(name: str) -> Curve:
    """The curve of a table; raises KeyError if there is none of that name."""
    device, model = load_device(TABLE_DEVICES[name]), load_architecture(TABLE_MODEL)
    table = pd.read_csv(TABLE)
    points = table[table["device"] == name].sort_values("tokens")
    weights = model.dense_weights / model.layers
    read_s = weights * WEIGHT_BYTES[TABLE_DTYPE] / device.bandwidth_bytes_per_s
    intensity = points["tokens"].to_numpy(dtype=float) / ridge_tokens(device, TABLE_DTYPE)
    return Curve(intensity, points["layer_us"].to_numpy(dtype=float) * 1e-6 / read_s)


def left_out_points(name: str) -> np.ndarray:
    """Relative errors at each inner point of a table, predicted from the others ``[points - 2]``."""
    curve = load_curve(name)
    places = range(1, len(curve.intensity) - 1)
    return np.array([curve.without(i).at(curve.intensity[i]) / curve.slowness[i] - 1 for i in places])


def left_out_device(name: str) -> np.ndarray:
    """Relative errors at every point of a table, predicted from the other device's ``[points]``."""
    other = load_curve(next(each for each in TABLE_DEVICES if each != name))
    curve = load_curve(name)
    return np.array([other.at(x) / y - 1 for x, y in zip(curve.intensity, curve.slowness, strict=True)])


def curve_cv(device: Device) -> float:
    """Relative standard error of a curve: that of points left out, or of a device left out where it has no table."""
    own = device.name == load_device(TABLE_DEVICES[device.curve]).name
    errors = left_out_points(device.curve) if own else np.concatenate([*map(left_out_device, TABLE_DEVICES)])
    return float(np.sqrt(np.mean(errors**2)))


def curve_errors() -> Iterator[dict[str, float | str]]:
    """Errors of each table, in lines: its points left out one at a time, and all of them at once."""
    for name in TABLE_DEVICES:
        for what, errors in (("points", left_out_points(name)), ("device", left_out_device(name))):
            size = np.abs(errors)
            yield {"table": name, "left_out": what, "points": len(size), "median": float(np.median(size)),
                   "worst": float(size.max())}  # fmt: skip
