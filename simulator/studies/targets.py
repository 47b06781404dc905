"""The published figures that simulations are compared with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refimpl.core.reading import read_mapping
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


def read_targets(path: str | Path = TARGETS) -> Targets:
    """Read a file of targets; texts named ``note`` are left out."""
    data = read_mapping(Path(path))
    logs, grouping, alignment, headline = (data.get(name, {}) for name in SECTIONS)
    anatomy = {method: _figures(logs.get(method, {})) for method in METHODS}
    return Targets(anatomy, _by_batch(grouping), _by_batch(alignment), headline.get(RATIO))


def _figures(given: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in given.items() if name != "note"}


def _by_batch(given: dict[str, Any]) -> dict[int, float]:
    """Batch size → percent, from two lists."""
    return dict(zip(given.get("batch_size", []), given.get("percent", []), strict=True))
