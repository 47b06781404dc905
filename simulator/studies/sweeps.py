"""Many scenarios: grids, Latin hypercubes and Sobol samples, on this machine or many, resumable by content hash.

Every finished scenario is one Parquet file named by the hash of all that decides its numbers, written whole or not
at all by the process that drives the sweep. A sweep that is started again skips what is there.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core import provenance
from refimpl.core.errors import InputError, require
from refimpl.core.files import check_folder, whole_file
from simulator.runner import run_replication
from simulator.settings.fields import REPLICATIONS, WORKERS, Range, plain, to_mapping
from simulator.settings.inputs import input_digests
from simulator.settings.paths import apply_settings
from simulator.settings.plain_yaml import read_yaml
from simulator.settings.scenario import Scenario, anchored, content_hash, from_data, load_scenario

SPEC_KEYS = ("base", "replications", "grid", "latin", "sobol", "skip_invalid")
MAX_POINTS = 100_000  # each is a file
MAX_RUNS = 10**7  # points × replications
SAMPLES = Range(1, integer=True, most=MAX_POINTS)
LIBRARIES = ("numpy", "pandas", "scipy", "simpy")  # what numbers may depend on
Ranges = dict[str, tuple[float, float]]
SweepProgress = Callable[[int, int], None]


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
        """Hash of everything that decides the numbers: settings, input files, replications, commit of the code.

        Changes that are not committed count as one state, whatever they are.
        """
        config = {name: value for name, value in to_mapping(self.scenario).items() if name != "name"}
        return content_hash([config, input_digests(self.scenario), self.replications, provenance.commit()])


@dataclass(frozen=True)
class SweepSpec:
    """A sweep as its YAML file describes it.

    Attributes:
        tasks: one per point, in a fixed order; several may come to the same scenario.
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

    ``base`` is a file beside the sweep's; other relative paths are sought as `load_scenario` seeks them.

    Raises:
        InputError: an unreadable file, unknown keys, impossible settings, none or several of the three kinds; one line
            that starts with the file's name.
    """
    path = Path(path)
    data = anchored(read_yaml(path), path.parent)
    require(isinstance(data, dict), f"{path}: must be a mapping with {', '.join(SPEC_KEYS)}")
    unknown = sorted(set(data) - set(SPEC_KEYS))
    require(not unknown, f"{path}: unknown key {', '.join(unknown)}; allowed: {', '.join(SPEC_KEYS)}")
    base = data.get("base", {})
    scenario = load_scenario(path.parent / base) if isinstance(base, str) else None
    try:
        given = {key: value for key, value in data.items() if key != "base"}
        return build_sweep(from_data(base) if scenario is None else scenario, **given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def build_sweep(
    base: Scenario,
    *,
    replications: int = 10,
    grid: dict[str, list] | None = None,
    latin: dict[str, Any] | None = None,
    sobol: dict[str, Any] | None = None,
    skip_invalid: bool = False,
) -> SweepSpec:
    """Lay out the scenarios of a sweep.

    Args:
        base: settings that are not swept.
        replications: per scenario.
        grid: dotted path → values; every combination runs.
        latin: ``samples``, ``seed`` and ``ranges`` (dotted path → [low, high], integers where both ends are).
        sobol: ``samples`` (a power of two) and ``ranges``; Saltelli's scheme for `sobol_indices`.
        skip_invalid: leave out impossible points, also those outside of the calibrated range, instead of refusing the
            sweep; not with `sobol`, whose indices need every point.

    Raises:
        InputError: impossible settings, none or several of the three kinds, or nothing left to run.
    """
    replications = REPLICATIONS.check(replications, "replications")
    require(isinstance(skip_invalid, bool), f"skip_invalid must be true or false, not {skip_invalid!r}")
    require(sum(kind is not None for kind in (grid, latin, sobol)) == 1, "give exactly one of grid, latin, sobol")
    for name, kind in (("grid", grid), ("latin", latin), ("sobol", sobol)):
        require(kind is None or isinstance(kind, dict), f"{name} must be a mapping, not {kind!r}")
    require(sobol is None or not skip_invalid, "skip_invalid does not go with sobol, whose indices need every point")
    problem = None
    if grid is not None:
        require(all(isinstance(v, list) and v for v in grid.values()), "grid: every path needs a list of values")
        require(bool(grid), "grid: names no setting, so there is nothing to sweep")
        _require_few(math.prod(map(len, grid.values())))
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    elif latin is not None:
        points = _latin_points(latin)
    else:
        problem, points = _sobol_points(sobol or {})
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


def _require_few(points: int) -> None:
    require(points <= MAX_POINTS, f"the sweep has {points} points, each a file and its runs; at most {MAX_POINTS}")


def _task(base: Scenario, point: dict[str, Any], replications: int) -> Task:
    data = to_mapping(base)
    with _named(point):
        apply_settings(data, point)
        return Task(from_data(data), point, replications)


@contextmanager
def _named(point: dict[str, Any]) -> Iterator[None]:
    """Put the point before what an InputError says."""
    try:
        yield
    except InputError as error:
        given = ", ".join(f"{name}={value}" for name, value in point.items())
        raise InputError(f"at {given}: {error}") from None


def _seed(data: dict[str, Any], kind: str) -> int:
    return Range(0, 2**32 - 1, integer=True).check(data.get("seed", 0), f"{kind}.seed")


def _ranges(data: dict[str, Any], kind: str) -> Ranges:
    unknown = sorted(map(str, set(data) - {"samples", "seed", "ranges"}))
    require(not unknown, f"{kind}: unknown key {', '.join(unknown)}; allowed: samples, seed, ranges")
    ranges = data.get("ranges")
    require(isinstance(ranges, dict) and bool(ranges), f"{kind}.ranges must map paths to [low, high]")
    for name, ends in ranges.items():  # type: ignore[union-attr]
        pair = isinstance(ends, list | tuple) and len(ends) == 2 and all(map(_is_number, ends))
        right = pair and ends[0] < ends[1]
        require(right, f"{kind}.ranges.{name} must be [low, high] with low < high, not {ends!r}")
    return {name: plain((ends[0], ends[1])) for name, ends in ranges.items()}  # type: ignore[union-attr]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scale(unit: np.ndarray, ranges: Ranges) -> list[dict[str, Any]]:
    """Points of the unit cube ``[n, paths]`` to settings; integer ranges include both ends."""
    return [{name: _place(x, *ends) for x, (name, ends) in zip(row, ranges.items(), strict=True)} for row in unit]


def _place(x: float, low: float, high: float) -> float:
    if isinstance(low, int) and isinstance(high, int):
        return min(high, int(low + x * (high - low + 1)))
    return float(low + x * (high - low))


def _latin_points(data: dict[str, Any]) -> list[dict[str, Any]]:
    from scipy.stats.qmc import LatinHypercube

    ranges, samples = _ranges(data, "latin"), SAMPLES.check(data.get("samples"), "latin.samples")
    return _scale(LatinHypercube(len(ranges), rng=_seed(data, "latin")).random(samples), ranges)


def _sobol_points(data: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from SALib.sample import sobol

    ranges, samples = _ranges(data, "sobol"), data.get("samples")
    _require_few(SAMPLES.check(samples, "sobol.samples") * (len(ranges) + 2))
    power = isinstance(samples, int) and samples >= 2 and samples & (samples - 1) == 0
    require(power, f"sobol.samples must be a power of two, not {samples!r}")
    problem = {"num_vars": len(ranges), "names": list(ranges), "bounds": [[0.0, 1.0]] * len(ranges)}
    unit = sobol.sample(problem, samples, calc_second_order=False, seed=_seed(data, "sobol"))
    return problem, _scale(unit, ranges)


def sobol_indices(spec: SweepSpec, frame: pd.DataFrame, metric: str = "tokens_per_s") -> pd.DataFrame:
    """First-order and total Sobol indices of a metric with their 95 % half widths, one line per setting."""
    from SALib.analyze import sobol

    require(spec.sobol is not None, "Sobol indices need a sweep of kind sobol")
    require(metric in frame, f"metric must be a column of the sweep, not {metric!r}")
    means = frame.groupby("key")[metric].mean()
    values = np.array([means[task.key] for task in spec.tasks])
    found = sobol.analyze(spec.sobol, values, calc_second_order=False, seed=0)
    columns = {"first": "S1", "first_half_width": "S1_conf", "total": "ST", "total_half_width": "ST_conf"}
    return pd.DataFrame({name: found[key] for name, key in columns.items()}, index=spec.sobol["names"])  # type: ignore[index]


# --- running -----------------------------------------------------------------------------------------------------


def run_task(key: str, task: Task) -> tuple[str, pd.DataFrame | str]:
    """All replications of a scenario: its key, as the process that drives the sweep knows it, and a line for each.

    Where the scenario turns out to be impossible, why stands in the place of the lines.
    """
    try:
        with _named(task.settings):
            done = [run_replication(task.scenario, i, keep_frames=False) for i in range(task.replications)]
    except InputError as error:
        return key, str(error)
    frame = pd.DataFrame([r.metrics for r in done])
    frame.insert(0, "replication", range(task.replications))
    frame["seed"], frame["origin"] = task.scenario.seed, done[0].origin
    frame["extrapolated"] = "; ".join(sorted({what for r in done for what in r.extrapolated}))
    return key, frame


def _labelled(frame: pd.DataFrame, task: Task, key: str) -> pd.DataFrame:
    """A scenario's lines under the settings of one of the points that come to it."""
    labels = {"key": key} | {n: str(v) if isinstance(v, list | dict) else v for n, v in task.settings.items()}
    rest = frame.drop(columns=[name for name in labels if name in frame])
    return pd.concat([pd.DataFrame(labels, index=rest.index), rest], axis=1)


def sweep(
    spec: SweepSpec,
    out: str | Path,
    *,
    workers: int = 1,
    dask: str | None = None,
    progress: SweepProgress | None = None,
    skip: Callable[[str], object] | None = None,
) -> pd.DataFrame:
    """Run what is missing of a sweep and return all of it, one line per point and replication.

    Points that come to the same scenario are simulated once.

    Args:
        spec: from `load_sweep` or `build_sweep`.
        out: folder of the finished scenarios, those of other sweeps too; ``results.parquet`` there joins those of the
            last sweep.
        workers: processes on this machine (joblib), the results do not depend on it.
        dask: address of a Dask scheduler, or ``local`` for a cluster on this machine.
        progress: told (done, all) after every scenario.
        skip: told why, for every point that is left out because it turned out to be impossible (`skip_invalid`).

    Raises:
        InputError: no files can be made in `out`, no cluster answers at `dask`, or a point that is not to be left out
            leaves the calibrated range.
    """
    WORKERS.check(workers, "workers")
    out = Path(out)
    check_folder(out)
    (out / "scenarios").mkdir(parents=True, exist_ok=True)
    keys = [task.key for task in spec.tasks]
    tasks = dict(zip(keys, spec.tasks, strict=True))
    missing = {key: task for key, task in tasks.items() if not _is_whole(_file(out, key))}
    finished = len(tasks) - len(missing)
    impossible = set()
    for key, found in _execute(missing, workers, dask):
        if isinstance(found, str):
            require(spec.skip_invalid, found)
            impossible.add(key)
            if skip:
                skip(found)
        else:
            _write(found, _file(out, key), tasks[key])
        finished += 1
        if progress:
            progress(finished, len(tasks))
    possible = [(key, task) for key, task in zip(keys, spec.tasks, strict=True) if key not in impossible]
    require(bool(possible), "every point of the sweep is impossible")
    parts = [_labelled(pd.read_parquet(_file(out, key)), task, key) for key, task in possible]
    result = pd.concat(parts, ignore_index=True)
    _write(result, out / "results.parquet", None)
    return result


def _file(out: Path, key: str) -> Path:
    return out / "scenarios" / f"{key}.parquet"


def _is_whole(path: Path) -> bool:
    """Whether a scenario is finished: a file that a broken disk or copy has cut or changed is computed anew."""
    try:
        return not pd.read_parquet(path).empty
    except (OSError, ValueError):  # the latter is what pyarrow says of files that are none of its own
        return False


def _write(frame: pd.DataFrame, path: Path, task: Task | None) -> None:
    """Write a file whole or not at all; config, seed, inputs and commit stand in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    meta: dict[str, Any] = provenance.stamp(*LIBRARIES)
    if task is not None:
        meta |= {"scenario": to_mapping(task.scenario), "seed": task.scenario.seed}
        meta |= {"inputs": input_digests(task.scenario), "replications": task.replications}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"raggedspec": json.dumps(meta).encode()})
    with whole_file(path, "wb") as file:
        pq.write_table(table, file)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Config, seed, inputs and commit inside a sweep's Parquet file."""
    import pyarrow.parquet as pq

    return json.loads(pq.read_schema(path).metadata[b"raggedspec"])


def _execute(tasks: dict[str, Task], workers: int, dask: str | None) -> Iterator[tuple[str, pd.DataFrame | str]]:
    """Results as they come."""
    if dask is not None:
        yield from _execute_dask(tasks, dask, workers)
    elif workers == 1:
        yield from map(run_task, tasks, tasks.values())
    else:
        from joblib import Parallel, delayed

        jobs = (delayed(run_task)(key, task) for key, task in tasks.items())
        yield from Parallel(n_jobs=min(workers, max(len(tasks), 1)), return_as="generator_unordered")(jobs)


def _execute_dask(tasks: dict[str, Task], address: str, workers: int) -> Iterator[tuple[str, pd.DataFrame | str]]:
    from distributed import Client, LocalCluster, as_completed

    local = address == "local"
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) if local else None
    try:
        with Client(cluster or address, timeout="20s") as client:
            futures = client.map(run_task, list(tasks), list(tasks.values()), pure=False)
            for future in as_completed(futures):
                yield future.result()
                future.release()
    except OSError as error:
        raise InputError(f"--dask {address}: cannot connect: {str(error).splitlines()[0]}") from None
    finally:
        if cluster is not None:
            cluster.close()
