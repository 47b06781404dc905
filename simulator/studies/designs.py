"""The scenarios of a sweep: grids, Latin hypercubes, Sobol samples and the indices that follow from them."""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core import provenance
from refimpl.core.errors import InputError, require, shown
from refimpl.core.values import is_number, require_bool
from simulator.settings.fields import REPLICATIONS, Range, as_data, plain, refuse_unknown, to_mapping
from simulator.settings.folders import EXAMPLES, or_example
from simulator.settings.inputs import input_digests
from simulator.settings.paths import apply_settings
from simulator.settings.plain_yaml import read_yaml
from simulator.settings.scenario import (
    Scenario,
    ScenarioLike,
    anchored,
    as_scenario,
    content_hash,
    from_data,
    load_scenario,
)

SPEC_KEYS = ("base", "replications", "grid", "latin", "sobol", "skip_invalid")
MAX_POINTS = 100_000  # each is a file
MAX_RUNS = 10**7  # points × replications
SAMPLES = Range(1, integer=True, most=MAX_POINTS)
Ranges = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Task:
    """One scenario of a sweep.

    Attributes:
        scenario: what to simulate.
        settings: the swept settings and their values.
        replications: how many.
    """

    scenario: Scenario
    settings: dict[str, Any] = field(hash=False)
    replications: int

    @property
    def key(self) -> str:
        """Hash of everything that decides the numbers: settings, input files, replications, and the code.

        That is known by its commit, or by the version of an installed package. All uncommitted changes count as one
        state.
        """
        config = {name: value for name, value in to_mapping(self.scenario).items() if name != "name"}
        return content_hash([config, input_digests(self.scenario), self.replications, provenance.code()])


@dataclass(frozen=True)
class SweepSpec:
    """A sweep as its YAML file describes it.

    Attributes:
        tasks: one per point, in a fixed order; several may give the same scenario.
        sobol: the problem that a Sobol analysis needs, None for other sweeps.
        skip_invalid: whether points are left out that turn out to be impossible while they run.
        skipped: why points were left out.
    """

    tasks: tuple[Task, ...]
    sobol: dict[str, Any] | None = None
    skip_invalid: bool = False
    skipped: tuple[str, ...] = ()


def load_sweep(path: str | Path) -> SweepSpec:
    """Read a sweep: ``base`` (scenario or file), ``replications``, and one of ``grid``, ``latin``, ``sobol``.

    ``example`` is the sweep that comes with the package. ``base`` is a file beside the sweep's, or ``example``; other
    relative paths are looked up as `load_scenario` does.

    Raises:
        InputError: an unreadable file, unknown keys, impossible settings, none or several of the three kinds; one line
            that starts with the file's name.
    """
    path = or_example(path, "sweep.yaml")
    data = anchored(read_yaml(path), path.parent)
    require(isinstance(data, dict), f"{path}: must be a mapping with {', '.join(SPEC_KEYS)}")
    refuse_unknown(data, SPEC_KEYS, str(path))
    base = data.get("base", {})
    scenario = _load_base(path.parent, base) if isinstance(base, str) else None
    try:
        given = {key: value for key, value in data.items() if key != "base"}
        return build_sweep(from_data(base) if scenario is None else scenario, **given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _load_base(folder: Path, base: str) -> Scenario:
    shipped = base == "example" and not (folder / base).exists()
    return load_scenario(EXAMPLES / "scenario.yaml" if shipped else folder / base)


def build_sweep(
    base: ScenarioLike,
    *,
    replications: int = 10,
    grid: Mapping[str, Any] | None = None,
    latin: Mapping[str, Any] | None = None,
    sobol: Mapping[str, Any] | None = None,
    skip_invalid: bool = False,
) -> SweepSpec:
    """Lay out the scenarios of a sweep.

    Args:
        base: settings that are not swept, or their YAML file.
        replications: per scenario.
        grid: dotted path → values (a list, tuple, range or array); every combination runs.
        latin: ``samples``, ``seed`` and ``ranges`` (dotted path → [low, high], integers where both ends are).
        sobol: ``samples`` (a power of two) and ``ranges``; Saltelli's scheme for `sobol_indices`.
        skip_invalid: leave out impossible points, also those outside of the calibrated range, instead of refusing the
            sweep; not with `sobol`, whose indices need every point.

    Raises:
        InputError: impossible settings, none or several of the three kinds, or nothing left to run.
    """
    base, replications = as_scenario(base), REPLICATIONS.check(replications, "replications")
    require_bool("skip_invalid", skip_invalid)
    require(sobol is None or not skip_invalid, "skip_invalid does not go with sobol, whose indices need every point")
    problem, points = _points({"grid": grid, "latin": latin, "sobol": sobol})
    runs = len(points) * replications
    require(runs <= MAX_RUNS, f"{len(points)} points × {replications} replications are {runs} runs; at most {MAX_RUNS}")
    tasks, skipped = [], []
    for point in points:
        try:
            tasks.append(_task(base, point, replications))
        except InputError as error:
            if not skip_invalid:
                raise
            skipped.append(str(error))
    require(bool(tasks), "every point of the sweep is impossible")
    return SweepSpec(tuple(tasks), problem, skip_invalid, tuple(skipped))


def _points(kinds: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The problem of a Sobol analysis, and settings of every point, of the one kind that is given."""
    given = {name: data for name, data in kinds.items() if data is not None}
    require(len(given) == 1, f"give exactly one of {', '.join(kinds)}")
    ((name, data),) = given.items()
    require(isinstance(data, Mapping), f"{name} must be a mapping, not {shown(data)}")
    if name == "sobol":
        return _sobol_points(data)
    return None, _grid_points(data) if name == "grid" else _latin_points(data)


def _grid_points(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    require(bool(grid), "grid: names no setting, so there is nothing to sweep")
    axes = {name: plain(values) for name, values in grid.items()}
    require(all(isinstance(v, tuple) and v for v in axes.values()), "grid: every path needs a list of values")
    _require_few(math.prod(map(len, axes.values())))
    values = [[as_data(value) for value in axis] for axis in axes.values()]
    for name, axis in zip(axes, values, strict=True):
        require(len(set(map(repr, axis))) == len(axis), f"grid: {name} has a value twice, whose runs would count twice")
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*values)]


def _require_few(points: int) -> None:
    require(points <= MAX_POINTS, f"the sweep has {points} points, each a file and its runs; at most {MAX_POINTS}")


@contextmanager
def named(point: dict[str, Any]) -> Iterator[None]:
    """Put the point before what an InputError says."""
    try:
        yield
    except InputError as error:
        given = ", ".join(f"{name}={value}" for name, value in point.items())
        raise InputError(f"at {given}: {error}") from None


def _task(base: Scenario, point: dict[str, Any], replications: int) -> Task:
    data = to_mapping(base)
    with named(point):
        apply_settings(data, point)
        return Task(from_data(data), point, replications)


def _seed(data: Mapping[str, Any], kind: str) -> int:
    return Range(0, 2**32 - 1, integer=True).check(data.get("seed", 0), f"{kind}.seed")


def _ranges(data: Mapping[str, Any], kind: str) -> Ranges:
    refuse_unknown(data, ("samples", "seed", "ranges"), kind)
    given = data.get("ranges")
    require(isinstance(given, Mapping) and bool(given), f"{kind}.ranges must map paths to [low, high]")
    ranges = {name: plain(ends) for name, ends in given.items()}  # type: ignore[union-attr]
    for name, ends in ranges.items():
        pair = isinstance(ends, tuple) and len(ends) == 2 and all(map(is_number, ends))
        right = pair and -math.inf < ends[0] < ends[1] < math.inf
        require(right, f"{kind}.ranges.{name} must be [low, high] with low < high, not {as_data(ends)!r}")
    return ranges


def _scale(unit: np.ndarray, ranges: Ranges) -> list[dict[str, Any]]:
    """Points of the unit cube ``[n, paths]`` to settings; integer ranges include both ends."""
    return [{name: _place(x, *ends) for x, (name, ends) in zip(row, ranges.items(), strict=True)} for row in unit]


def _place(x: float, low: float, high: float) -> float:
    if isinstance(low, int) and isinstance(high, int):
        return min(high, int(low + x * (high - low + 1)))
    return float(low + x * (high - low))


def _latin_points(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    from scipy.stats.qmc import LatinHypercube

    ranges, samples = _ranges(data, "latin"), SAMPLES.check(data.get("samples"), "latin.samples")
    return _scale(LatinHypercube(len(ranges), rng=_seed(data, "latin")).random(samples), ranges)


def _sobol_points(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from SALib.sample import sobol

    ranges, samples = _ranges(data, "sobol"), data.get("samples")
    _require_few(SAMPLES.check(samples, "sobol.samples") * (len(ranges) + 2))
    power = isinstance(samples, int) and samples >= 2 and samples & (samples - 1) == 0
    require(power, f"sobol.samples must be a power of two, not {samples!r}")
    problem = {"num_vars": len(ranges), "names": list(ranges), "bounds": [[0.0, 1.0]] * len(ranges)}
    unit = sobol.sample(problem, samples, calc_second_order=False, seed=_seed(data, "sobol"))
    return problem, _scale(unit, ranges)


def sobol_indices(spec: SweepSpec, frame: pd.DataFrame, metric: str = "tokens_per_s") -> pd.DataFrame:
    """First-order and total Sobol indices of a metric with their 95 % half widths, one line per setting.

    Raises:
        InputError: no sweep of kind sobol, or a metric that is no number or has no value at some of its points.
    """
    from SALib.analyze import sobol

    require(spec.sobol is not None, "Sobol indices need a sweep of kind sobol")
    numeric = metric in frame and pd.api.types.is_numeric_dtype(frame[metric])
    require(numeric, f"metric must be a column of the sweep that holds numbers, not {shown(metric)}")
    means = frame.groupby("key")[metric].mean()
    values = np.array([means[task.key] for task in spec.tasks], dtype=float)
    lacking = int(np.count_nonzero(~np.isfinite(values)))
    require(lacking == 0, f"{metric} has no value at {lacking} of {len(values)} points: Sobol indices need one at each")
    with np.errstate(invalid="ignore"):  # of a metric that is the same at all points, nothing has a share
        found = sobol.analyze(spec.sobol, values, calc_second_order=False, seed=0)
    columns = {"first": "S1", "first_half_width": "S1_conf", "total": "ST", "total_half_width": "ST_conf"}
    indices = pd.DataFrame({name: found[key] for name, key in columns.items()}, index=spec.sobol["names"])  # type: ignore[index]
    return indices if np.ptp(values) else indices.fillna(0.0)  # some versions of SALib leave 0 / 0
