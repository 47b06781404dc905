"""The roofline beside a calibration: how far the facts of a device are from what was measured on it, by component."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import require
from refimpl.core.files import write_whole
from simulator.service.overlay import require_measured
from simulator.service.roofline import RooflineCost
from simulator.settings.calibration import RECORDED, find_calibration, load_calibration
from simulator.settings.fields import Spec
from simulator.settings.hardware import WEIGHT_BYTES, hardware_file
from simulator.settings.tables import read_table

COMPUTED = ("prefill", "draft", "verify", "mixed", "draft_chunk", "realign", "concat", "compact")
COPYING = ("inplace_scattered", "paged")  # layouts whose passes gather the K/V of their rows first


def compare_calibration(name: str, device: str, target: str, draft: str) -> pd.DataFrame:
    """Points of a calibration with column predicted_s, of the roofline, and relative_error (over mean_s, less 1).

    Rounds are computed as they were measured: with transformers' layers, of which the host launches every operation, or
    recorded.

    Args:
        name: of the calibration, ``device/pair`` or a folder.
        device, target, draft: facts of what was measured, names or YAML files.

    Raises:
        InputError: no such calibration or facts, one in a number format that the roofline does not know, or another
            device or other models than those that were measured.
    """
    calibration = load_calibration(name)
    meta = calibration.meta
    require(
        meta["dtype"] in WEIGHT_BYTES, f"calibration {name} is of {meta['dtype']}: choose {', '.join(WEIGHT_BYTES)}"
    )
    facts = {"device": device, "target": target, "draft": draft, "dtype": meta["dtype"], "layers": "transformers"}
    launched, recorded = (RooflineCost(Spec.of("roofline", graphs=g, **facts), None) for g in (False, True))
    require_measured(calibration, launched, "calibration", "")
    costs = {RECORDED: recorded}
    points = read_table(find_calibration(name) / "points.csv")
    points = points[points["component"].isin(COMPUTED) & (points["mean_s"] > 0)].reset_index(drop=True)
    each = points.to_dict(orient="records")
    predicted = np.array([_predict(costs.get(point["layout"], launched), point) for point in each])
    return points.assign(predicted_s=predicted, relative_error=predicted / points["mean_s"] - 1)


def files_of(name: str, device: str, target: str, draft: str) -> list[Path]:
    """Files that `compare_calibration` reads; raises InputError where there is none of one."""
    folder = find_calibration(name)
    models = [hardware_file("architectures", model) for model in (target, draft) if model]
    return [folder / "points.csv", folder / "meta.json", hardware_file("devices", device), *models]


def _predict(cost: RooflineCost, point: dict[str, Any]) -> float:
    at = point["component"], point["batch_size"], point["tokens_per_row"], np.array([float(point["width_tokens"])])
    return float(cost.seconds(*at, point["layout"] in COPYING)[0])


def summarize_components(points: pd.DataFrame) -> pd.DataFrame:
    """A line per component: points, median size, mean and worst of the errors, and mean seconds of both."""

    def line(component: str, group: pd.DataFrame) -> dict[str, Any]:
        errors = group["relative_error"]
        sizes = {"median": errors.abs().median(), "mean": errors.mean(), "worst": errors.loc[errors.abs().idxmax()]}
        seconds = {"measured_s": group["mean_s"].mean(), "predicted_s": group["predicted_s"].mean()}
        return {"component": component, "points": len(group), **sizes, **seconds}

    groups = points.groupby("component", sort=False)
    return pd.DataFrame([line(str(name), group) for name, group in groups]).set_index("component")


def write_points(points: pd.DataFrame, path: str | Path) -> None:
    """Write the points with their errors as CSV, whole or not at all."""
    write_whole(Path(path), [points.to_csv(index=False, float_format="%.6g", lineterminator="\n").rstrip("\n")])
