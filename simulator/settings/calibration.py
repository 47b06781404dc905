"""Measured costs of an engine's components: read, checked field by field, interpolated, never guessed."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import InputError, require, shown
from refimpl.core.formats import CALIBRATION_SCHEMA, POINT_COLUMNS
from refimpl.core.reading import is_file, read_mapping
from simulator.settings.fields import COUNT, NON_NEGATIVE, VARIATION
from simulator.settings.folders import CALIBRATION
from simulator.settings.grids import Grid, make_grid
from simulator.settings.tables import read_table

ORIGINS = ("measured", "published", "synthetic")
COMPONENTS = (
    "prefill", "draft", "verify", "realign", "concat", "split", "compact", "host", "draft_prefill", "mixed",
    "draft_chunk", "even", "packed",
)  # fmt: skip
RECORDED = "inplace_recorded"  # layout of rounds that were replayed; those of no other layout stand in for them
# whose points are used where a layout has none; a paged pass copies what it reads, as one of scattered rows does
SAME_CODE = {
    "rollback": "realigned",
    "paged_scattered": "paged",
    "paged": "inplace_scattered",
    "inplace_scattered": "inplace",
}
META_FIELDS = (
    "schema", "origin", "utc_time", "commit", "command", "device", "torch_threads", "libraries", "pair", "dtype",
    "seeds", "check_level", "repeats", "drift_cv", "run_cv", "round_cv", "component_cv",
    "kv_bytes_per_token", "num_layers",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Calibration:
    """A directory of measured points.

    Attributes:
        name: ``device/pair``, or the directory.
        meta: the fields of meta.json.
        grids: (component, layout) → Grid.
        digest: sixteen hex digits of both files.
    """

    name: str
    meta: dict[str, Any]
    grids: dict[tuple[str, str], Grid]
    digest: str

    def find(self, component: str, layout: str) -> Grid | None:
        """Points of a component for a layout, or for any layout; None where there are none."""
        names = [layout]
        while names[-1] in SAME_CODE:
            names.append(SAME_CODE[names[-1]])
        found = (self.grids.get((component, name)) for name in (*names, "any"))
        return next((grid for grid in found if grid is not None), None)

    def grid(self, component: str, layout: str) -> Grid:
        """As `find`.

        Raises:
            InputError: there are no such points.
        """
        found = self.find(component, layout)
        if found is not None:
            return found
        have = ", ".join(sorted({found for name, found in self.grids if name == component})) or "none"
        raise InputError(f"calibration {self.name}: no points of {component} for layout {layout}; it has {have}")

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of K/V of one token, target and draft together."""
        return float(sum(self.meta["kv_bytes_per_token"].values()))

    @property
    def state_bytes_per_row(self) -> float:
        """Bytes of a row's recurrent states, target and draft together; files of before there were any do not say."""
        return float(sum(self.meta.get("state_bytes_per_row", {}).values()))


def available_calibrations() -> list[str]:
    """Names of the calibrations that are shipped, ``device/pair``."""
    return sorted(str(p.parent.relative_to(CALIBRATION)) for p in CALIBRATION.glob("*/*/points.csv"))


def find_calibration(name: str) -> Path:
    """Directory behind ``device/pair`` or a path.

    Raises:
        InputError: neither exists; lists what is shipped.
    """
    for folder in (CALIBRATION / name, Path(name)):
        if is_file(folder / "points.csv"):
            return folder
    known = ", ".join(available_calibrations()) or "none"
    raise InputError(f"calibration {shown(name)} not found: give a directory with points.csv, or one of: {known}")


def load_calibration(name: str) -> Calibration:
    """Read and check a calibration.

    Raises:
        InputError: a missing file, column, field, unit or grid point; names file and field.
    """
    folder = find_calibration(name)
    stamp = tuple((folder / f).stat().st_mtime_ns if (folder / f).is_file() else 0 for f in ("points.csv", "meta.json"))
    return _load(name, folder, stamp)


@lru_cache(maxsize=16)
def _load(name: str, folder: Path, stamp: tuple[int, ...]) -> Calibration:
    meta = read_meta(folder / "meta.json", META_FIELDS, CALIBRATION_SCHEMA)
    _check_numbers(meta, f"{folder / 'meta.json'}: ")
    require(meta["origin"] in ORIGINS, f"{folder / 'meta.json'}: origin must be one of {', '.join(ORIGINS)}")
    frame = _read_points(folder / "points.csv")
    content = b"".join((folder / name).read_bytes() for name in ("points.csv", "meta.json"))
    keys = frame.groupby(["component", "layout"], sort=True)
    grids = {(str(key[0]), str(key[1])): make_grid(_drafts(group), _place(folder, key)) for key, group in keys}
    return Calibration(name, meta, grids, hashlib.sha256(content).hexdigest()[:16])


def _drafts(points: pd.DataFrame) -> pd.DataFrame:
    """Where drafts of a single k were measured, none take no seconds: a draft model makes a pass for each."""
    if points["component"].iloc[0] != "draft" or points["tokens_per_row"].nunique() > 1:
        return points
    seconds = [column for column in points if str(column).endswith("_s")]
    return pd.concat([points, points.assign(tokens_per_row=0, **dict.fromkeys(map(str, seconds), 0.0))])


def _check_numbers(meta: dict[str, Any], where: str) -> None:
    for name in ("run_cv", "round_cv"):
        VARIATION.check(meta[name], f"{where}{name}")
    for name, limits in (("component_cv", VARIATION), ("kv_bytes_per_token", NON_NEGATIVE), ("num_layers", COUNT)):
        require(isinstance(meta[name], dict), f"{where}{name} must be a mapping, not {shown(meta[name])}")
        for key, value in meta[name].items():
            limits.check(value, f"{where}{name}.{key}")


def read_meta(path: Path, names: tuple[str, ...], schema: str) -> dict[str, Any]:
    """Read a meta.json in which every field of `names` is required."""
    require(path.is_file(), f"{path}: no such file")
    meta = read_mapping(path)
    missing = [name for name in names if name not in meta]
    require(not missing, f"{path}: missing {', '.join(missing)}")
    require(meta["schema"] == schema, f"{path}: schema must be {schema}, not {shown(meta['schema'])}")
    return meta


def _read_points(path: Path) -> pd.DataFrame:
    frame = read_table(path)
    missing = [column for column in POINT_COLUMNS if column not in frame]
    require(not missing, f"{path}: missing column {', '.join(missing)} (names include the units)")
    unknown = sorted(set(frame["component"]) - set(COMPONENTS))
    known = ", ".join(COMPONENTS)
    require(not unknown, f"{path}: component must be one of {known}, not {', '.join(map(str, unknown))}")
    numbers = frame[list(POINT_COLUMNS[2:])].apply(pd.to_numeric, errors="coerce")
    bad = np.flatnonzero(~(numbers.to_numpy() >= 0).all(axis=1))
    require(bad.size == 0, f"{path}: line {bad[0] + 2 if bad.size else 0}: a value is missing or negative")
    return frame


def _place(folder: Path, key: Any) -> str:
    return f"{folder / 'points.csv'}: {key[0]} ({key[1]})"
