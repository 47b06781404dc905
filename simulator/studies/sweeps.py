"""Running a sweep: on this machine or many, in memory or in a folder where it can be resumed.

In a folder every finished scenario is one Parquet file named by the hash of all that decides its numbers, written whole
or not at all by the process that drives the sweep. A sweep that is started again skips what is there.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from refimpl.core.errors import InputError, require, shown
from refimpl.core.files import check_folder
from simulator.intervals import metric_interval
from simulator.runner import Progress, joined, reporting, run_parallel, run_replication
from simulator.settings.fields import WORKERS
from simulator.settings.inputs import scenario_meta
from simulator.settings.tables import write_parquet
from simulator.studies.designs import SweepSpec, Task, load_sweep, named

Found = tuple[str, pd.DataFrame | str]  # a scenario's key, and its lines, or why it is impossible


def run_task(key: str, task: Task) -> Found:
    """All replications of a scenario: its key, as the process that drives the sweep knows it, and a line for each.

    If the scenario turns out to be impossible, the reason replaces the lines.
    """
    try:
        with named(task.settings):
            done = [run_replication(task.scenario, i, keep_frames=False) for i in range(task.replications)]
    except InputError as error:
        return key, str(error)
    frame = pd.DataFrame([r.metrics for r in done])
    frame.insert(0, "replication", range(task.replications))
    frame["seed"], frame["origin"] = task.scenario.seed, done[0].origin
    frame["extrapolated"] = joined(what for r in done for what in r.extrapolated)
    return key, frame


def table_of_points(frame: pd.DataFrame, metric: str, level: float = 0.95) -> pd.DataFrame:
    """Mean of a metric with its interval over replications: a line for each point of a sweep, under its settings."""
    settings = list(frame.columns[frame.columns.get_loc("key") + 1 : frame.columns.get_loc("replication")])
    points = frame.groupby(["key", *settings], sort=False, dropna=False)[metric]
    lines = {point[1:]: metric_interval(values, level)[:3] for point, values in points}
    index = pd.MultiIndex.from_tuples(lines, names=settings)
    return pd.DataFrame(list(lines.values()), index=index, columns=[metric, "low", "high"])


def _labelled(frame: pd.DataFrame, task: Task, key: str) -> pd.DataFrame:
    """A scenario's lines under the settings of one of the points that give it."""
    labels = {"key": key} | {n: str(v) if isinstance(v, list | dict) else v for n, v in task.settings.items()}
    rest = frame.drop(columns=[name for name in labels if name in frame])
    return pd.concat([pd.DataFrame(labels, index=rest.index), rest], axis=1)


def sweep(
    spec: SweepSpec | str | Path,
    out: str | Path | None = None,
    *,
    workers: int = 1,
    dask: str | None = None,
    progress: Progress | bool | None = None,
    skip: Callable[[str], object] | None = None,
) -> pd.DataFrame:
    """Run a sweep and return all of it, one line per point and replication.

    Points that give the same scenario are simulated once. Points of the same settings, as whole numbers that are
    drawn may be, are one point: repeated, its lines would count as further replications.

    Args:
        spec: from `load_sweep` or `build_sweep`, or the YAML file of a sweep.
        out: folder of the finished scenarios, which are not run again; ``results.parquet`` there joins those of the
            last sweep. Without it the results are in memory alone.
        workers: processes on this machine (joblib), the results do not depend on it.
        dask: address of a Dask scheduler, or ``local`` for a cluster on this machine.
        progress: True draws a bar; a function is called with (done, all) after every scenario.
        skip: called with the reason for every point that turned out to be impossible and is left out (`skip_invalid`).

    Raises:
        InputError: no files can be made in `out`, no cluster answers at `dask`, or a point that is not to be left out
            leaves the calibrated range.
    """
    WORKERS.check(workers, "workers")
    known = isinstance(spec, SweepSpec | str | Path)
    require(known, f"give a SweepSpec (build_sweep) or the path of a YAML file, not {shown(spec)}")
    spec = spec if isinstance(spec, SweepSpec) else load_sweep(spec)
    store = _Finished(None if out is None else Path(out))
    points = [(task.key, task) for task in spec.tasks]

    def left_out(why: str) -> None:
        require(spec.skip_invalid, why)
        if skip:
            skip(why)

    impossible = _run_missing(dict(points), store, partial(_execute, workers, dask), progress, left_out)
    possible = {(key, repr(task.settings)): task for key, task in points if key not in impossible}
    require(bool(possible), "every point of the sweep is impossible")
    frame = pd.concat([_labelled(store[key], task, key) for (key, _), task in possible.items()], ignore_index=True)
    if store.folder:
        write_parquet(frame, store.folder / "results.parquet")
    return frame


def _run_missing(
    tasks: dict[str, Task],
    store: "_Finished",
    results: Callable[[dict[str, Task]], Generator[Found, None, None]],
    progress: Progress | bool | None,
    left_out: Callable[[str], object],
) -> set[str]:
    """Run what the store has not; return the keys of scenarios that turned out to be impossible."""
    missing = {key: task for key, task in tasks.items() if store[key].empty}
    impossible = set()
    with reporting(progress, "scenarios") as report, closing(results(missing)) as new:
        for count, (key, found) in enumerate(new, len(tasks) - len(missing) + 1):
            if isinstance(found, str):
                impossible.add(key)
                left_out(found)
            else:
                store.write(key, found, tasks[key])
            report(count, len(tasks))
    return impossible


class _Finished(dict[str, pd.DataFrame]):
    """Lines of finished scenarios by key; in a folder, of any number of sweeps, a file each."""

    def __init__(self, folder: Path | None):
        super().__init__()
        self.folder = folder
        if folder:
            check_folder(folder)

    def __missing__(self, key: str) -> pd.DataFrame:
        """What the folder has; nothing of a file that a broken disk or copy has cut or changed: it is computed anew."""
        try:
            self[key] = pd.read_parquet(self._file(key)) if self.folder else pd.DataFrame()
        except (OSError, ValueError):  # the latter is what pyarrow says of files that are none of its own
            return pd.DataFrame()
        return self[key]

    def write(self, key: str, frame: pd.DataFrame, task: Task) -> None:
        """Keep the lines of a scenario."""
        self[key] = frame
        if self.folder:
            self._file(key).parent.mkdir(parents=True, exist_ok=True)
            write_parquet(frame, self._file(key), scenario_meta(task.scenario, task.replications))

    def _file(self, key: str) -> Path:
        return Path(self.folder or ".") / "scenarios" / f"{key}.parquet"


def _execute(workers: int, dask: str | None, tasks: dict[str, Task]) -> Generator[Found, None, None]:
    """Results as they come."""
    if dask is not None:
        return _execute_dask(tasks, dask, workers)
    return run_parallel(run_task, tasks.items(), workers, {}, ordered=False)


def _execute_dask(tasks: dict[str, Task], address: str, workers: int) -> Generator[Found, None, None]:
    from distributed import LocalCluster, as_completed

    local = address == "local"
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) if local else None
    try:
        with _connected(address, cluster) as client:
            futures = client.map(run_task, list(tasks), list(tasks.values()), pure=False)
            for future in as_completed(futures):
                yield future.result()
                future.release()
    finally:
        if cluster is not None:
            cluster.close()


def _connected(address: str, cluster: Any) -> Any:
    """A client of the Dask scheduler at an address, or of a cluster on this machine.

    Raises:
        InputError: there is none that answers.
    """
    from distributed import Client

    try:
        return Client(cluster or address, timeout="20s")
    except OSError as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"--dask {address}: cannot connect: {why}") from None
