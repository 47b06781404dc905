"""The files of a calibration: points.csv, and meta.json, which says where the points come from."""

import csv
import json
import re
from pathlib import Path
from typing import Any

from refimpl.bench.reference import Reference
from refimpl.calibrate.points import Points
from refimpl.core.errors import require, shown
from refimpl.core.files import check_folder
from refimpl.core.formats import CALIBRATION_SCHEMA, POINT_COLUMNS
from refimpl.decoding.devices import device_name, provenance
from refimpl.models.adapter import Pair


def check_place(out: Path, pair_name: str) -> None:
    """Raise InputError, before any work is done, unless a pair of that name can have folders of its own in `out`."""
    check_folder(out)
    plain = pair_name not in ("", "..") and Path(pair_name).name == pair_name
    require(plain, f"pair_name must be the name of a folder, not {shown(pair_name)}")


def folder_name(pair: Pair, pair_name: str) -> str:
    """Folder ``<device>/<pair>``: ``cpu``, or the GPU's model, since GPUs differ."""
    device = "cpu" if pair.device.type == "cpu" else device_name(pair.device)
    return f"{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}/{pair_name}"


def write_points(folder: Path, lines: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """Write points.csv and meta.json."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "points.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, POINT_COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    write_json(folder / "meta.json", meta)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write plain data, indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def make_meta(
    pair: Pair,
    points: Points,
    reference: Reference,
    command: str,
    *,
    check_level: str,
    passes: int,
    seed: int,
    run_cv: float,
    skipped: list[str],
    runs_again: list[str],
) -> dict[str, Any]:
    """Where the points come from, and how much repeated measurements differ."""
    drift_cv, component_cv = points.drift()
    models = {"target": pair.target.kv_shape, "draft": pair.require_draft().kv_shape}
    return {
        "schema": CALIBRATION_SCHEMA,
        "origin": "measured",
        **provenance(pair.device),
        "command": command,
        "pair": pair.name,
        "dtype": str(pair.dtype).removeprefix("torch."),
        "seeds": [seed],
        "check_level": check_level,
        "cuda_graphs": False,  # but for points of layout inplace_recorded, and runs that say so
        "repeats": passes,
        "drift_cv": drift_cv,
        "run_cv": run_cv,
        "round_cv": points.round_cv(),
        "component_cv": component_cv,
        "kv_bytes_per_token": {role: shape.bytes_per_token for role, shape in models.items()},
        "state_bytes_per_row": {role: shape.bytes_per_row for role, shape in models.items()},
        "num_layers": {role: shape.num_layers for role, shape in models.items()},
        "reference_s": reference.mean_s,
        "reference_cv": reference.cv,
        "interrupted": points.num_interrupted,
        "skipped": skipped,
        "runs_again": runs_again,
        "split": "document",
    }
