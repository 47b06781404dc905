"""The published figures that simulations are compared with, read from a JSON file and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refimpl.core.errors import InputError, require, shown
from refimpl.core.reading import read_mapping
from simulator.settings.fields import COUNT, POSITIVE
from simulator.settings.folders import PUBLISHED

TARGETS = PUBLISHED / "targets.json"
METHODS = ("eqspec", "exspec")
RATIO = "throughput_ratio_batch8_over_batch1"
SECTIONS = ("overhead_anatomy", "grouping_rate_all_mean", "alignment_share_text", "headline")


@dataclass(frozen=True)
class Targets:
    """Published figures; a section that a file leaves out is empty.

    Attributes:
        anatomy: method → name of a figure of its log → value.
        grouping_percent, alignment_percent: batch size → share of grouped rounds, and of the time that aligning takes.
        ratio: throughput at batch 8 over that at batch 1; None where no file says.
    """

    anatomy: dict[str, dict[str, float]]
    grouping_percent: dict[int, float]
    alignment_percent: dict[int, float]
    ratio: float | None

    def row(self, method: str, names: tuple[str, ...]) -> dict[str, float]:
        """The log of a method; raises InputError unless it has these figures."""
        missing = [name for name in names if name not in self.anatomy[method]]
        require(
            not missing, f"overhead_anatomy.{method}.{(missing or names)[0]} is missing: constants are fitted to it"
        )
        return self.anatomy[method]


def read_targets(path: str | Path = TARGETS) -> Targets:
    """Read a file of targets; texts named ``note`` are left out.

    Raises:
        InputError: one line that names the file and the place: no known section, no number above 0, lists of unequal
            length.
    """
    data = read_mapping(Path(path))
    require(any(name in data for name in SECTIONS), f"{path}: holds none of {', '.join(SECTIONS)}")
    try:
        logs, grouping, alignment, headline = (_mapping(data, name) for name in SECTIONS)
        anatomy = {method: _figures(_mapping(logs, method), f"{SECTIONS[0]}.{method}") for method in METHODS}
        by_batch = _by_batch(grouping, SECTIONS[1]), _by_batch(alignment, SECTIONS[2])
        return Targets(anatomy, *by_batch, _figures(headline, SECTIONS[3]).get(RATIO))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name, {})
    require(isinstance(found, Mapping), f"{name} must be a mapping, not {shown(found)}")
    return found  # type: ignore[no-any-return]


def _figures(given: Mapping[str, Any], where: str) -> dict[str, float]:
    return {name: POSITIVE.check(value, f"{where}.{name}") for name, value in given.items() if name != "note"}


def _by_batch(given: Mapping[str, Any], where: str) -> dict[int, float]:
    """Batch size → percent, from two lists."""
    sizes, percent = (given.get(name, []) for name in ("batch_size", "percent"))
    lists = isinstance(sizes, list) and isinstance(percent, list) and len(sizes) == len(percent)
    require(lists, f"{where}: batch_size and percent must be lists of equal length")
    pairs = [(COUNT.check(n, f"{where}.batch_size"), value) for n, value in zip(sizes, percent, strict=True)]
    found = {size: POSITIVE.check(value, f"{where}.percent") for size, value in pairs}
    require(len(found) == len(pairs), f"{where}: batch_size names one size twice")
    return found
