"""Replications of a scenario: run, stopped when precise enough, summarized."""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from refimpl.core.errors import require, shown
from refimpl.core.files import check_folder, check_writable, write_whole
from refimpl.core.processes import run_in_processes
from refimpl.core.progress import progress_bars
from refimpl.core.shown import counted
from simulator.intervals import mean_interval, metric_interval, summarize
from simulator.service.metrics import Frames, check_metric, frames_of, measure
from simulator.service.simulation import Simulation
from simulator.settings.fields import LEVEL, PAIRED, REPLICATIONS, SHARE, WORKERS
from simulator.settings.inputs import input_files, scenario_meta
from simulator.settings.scenario import Scenario, ScenarioLike, as_scenario
from simulator.settings.tables import Table, write_parquet

MIN_SEQUENTIAL = 10  # replications before a precision is judged: fewer say too little about their spread
MOST_SEQUENTIAL = 1000  # replications, unless more are asked for
FRAMES = ("requests", "rounds", "rows")
WRITTEN = ("metrics", "requests", "rounds")  # by `Results.write`, a CSV file each
BETWEEN = re.compile(r"; (?=\w+: )")  # two of what had to be extrapolated, each of which begins with a component
Progress = Callable[[int, int], None]  # called with (done, planned)
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Replication:
    """What one replication leaves: its metrics, its tables, what it had to extrapolate, where costs came from."""

    index: int
    metrics: dict[str, float]
    frames: Frames | None
    extrapolated: tuple[str, ...]
    origin: str

    def __repr__(self) -> str:
        return f"Replication({self.index}: {self.metrics['tokens_per_s']:.4g} tokens/s)"


@dataclass(frozen=True, eq=False, repr=False)
class Results(Table):
    """A scenario's replications.

    Attributes:
        scenario: what was simulated.
        replications: in order of index.
    """

    scenario: Scenario
    replications: tuple[Replication, ...]

    def __repr__(self) -> str:
        mean, low, high, n = metric_interval(self.metrics["tokens_per_s"], 0.95)
        known = f" [{low:.4g}, {high:.4g}]" if n > 1 else ""
        count = counted(len(self.replications), "replication")
        return f"Results({self.scenario.name!r}: {count}, {mean:.4g}{known} tokens/s)"

    def to_frame(self, table: str = "summary") -> pd.DataFrame:
        """One of the tables.

        Args:
            table: ``"summary"`` (a line per metric, with 95 % intervals), ``"metrics"`` (a line per replication), or
                what happened: ``"requests"``, ``"rounds"``, or ``"rows"`` (kept with ``keep_rows=True``).

        Raises:
            InputError: no such table, or it was not kept.
        """
        tables = {"summary": self.summary, "metrics": lambda: self.metrics}
        tables |= {name: partial(self.frame, name) for name in FRAMES}
        require(table in tables, f"table must be one of {', '.join(tables)}, not {shown(table)}")
        return tables[table]()

    def to_parquet(self, path: str | Path, table: str = "metrics") -> None:
        """Write one of the tables of `to_frame` as Parquet, whole or not at all.

        Scenario, seed, digests of input files, commit and library versions are in the file's metadata.
        """
        frame = self.to_frame(table)
        meta = scenario_meta(self.scenario, len(self.replications))
        write_parquet(frame.reset_index() if table == "summary" else frame, path, meta)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One line per replication, one column per metric; NaN where a replication does not have it."""
        frame = pd.DataFrame([r.metrics for r in self.replications])
        frame.insert(0, "replication", [r.index for r in self.replications])
        return frame

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Metric → mean over the replications, its Student t interval, p05 and p95 of single replications, how many.

        The interval ends where the metric does: at 0, and at 1 if it is a share.

        More replications narrow the interval around the model's mean, but not p05 … p95: that range holds 90 % of
        single runs, and includes the error of a calibration. It takes at least 19 replications, and is NaN with fewer.
        """
        return summarize(self.metrics.drop(columns="replication"), LEVEL.check(level, "level"))

    def frame(self, name: str, replication: int | None = None) -> pd.DataFrame:
        """``"requests"``, ``"rounds"`` or ``"rows"`` of one or all replications, with a column `replication`."""
        require(name in FRAMES, f"frame must be one of {', '.join(FRAMES)}, not {shown(name)}")
        known = [r.index for r in self.replications]
        there = replication is None or replication in known
        require(there, f"replication must be one of {known[0]} … {known[-1]}, not {shown(replication)}")
        asked = [r for r in self.replications if r.frames is not None and replication in (None, r.index)]
        parts = [getattr(r.frames, name).assign(replication=r.index) for r in asked]
        require(bool(parts), "the tables were not kept: simulate with keep_frames=True")
        table = pd.concat(parts, ignore_index=True)
        not_kept = name == "rows" and table.empty and not self.frame("rounds").empty
        require(not not_kept, "the rows were not kept: simulate with keep_rows=True")
        return table

    def write(self, folder: str | Path) -> None:
        """Write metrics.csv, and requests.csv and rounds.csv of all replications, each file whole or not at all.

        Raises:
            InputError: the tables were not kept, no files can be made in the folder, or the scenario reads one of them.
        """
        tables = [self.to_frame(name) for name in WRITTEN]
        check_tables(folder := Path(folder), self.scenario)
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in zip(WRITTEN, tables, strict=True):
            write_whole(folder / f"{name}.csv", [table.to_csv(index=False, lineterminator="\n").rstrip("\n")])

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """What lay outside the calibrated range; empty means that nothing did."""
        return tuple(sorted({what for r in self.replications for what in r.extrapolated}))

    @property
    def origin(self) -> str:
        """Where the costs came from."""
        return self.replications[0].origin

    def __getitem__(self, metric: str) -> float:
        check_metric(metric, self.scenario)
        return float(self.metrics[metric].mean())

    def relative_error(self, metric: str) -> float:
        """Half the width of the 95 % interval of a metric over its mean; NaN for a single replication."""
        check_metric(metric, self.scenario)
        return _relative_error(self.replications, metric)


def check_tables(folder: Path, scenario: Scenario, file: Path | None = None) -> None:
    """Raise InputError unless `Results.write` can write to a folder, over none of the files that a study reads.

    Args:
        folder: where to.
        scenario: what is simulated.
        file: that it was read from.
    """
    check_folder(folder)
    if folder.is_dir():
        for name in WRITTEN:
            check_writable(folder / f"{name}.csv", file, *input_files(scenario).values())


def run_replication(scenario: Scenario, index: int, *, keep_frames: bool, keep_rows: bool = False) -> Replication:
    """Run replication `index`; the same bytes on any worker."""
    simulation = Simulation(scenario, index, keep_rows=keep_rows)
    simulation.run()
    frames = frames_of(simulation) if keep_frames else None
    extrapolated = tuple(sorted(simulation.cost.extrapolated))
    return Replication(index, measure(simulation), frames, extrapolated, simulation.cost.origin)


@contextmanager
def reporting(progress: Progress | bool | None, what: str) -> Iterator[Progress]:
    """Yield a function to call with (done, planned): the one given; for True, one that draws a bar on stderr."""
    if progress is True:
        with progress_bars() as bars:
            yield partial(bars, what)
    else:
        yield progress or (lambda done, planned: None)


def simulate(
    scenario: ScenarioLike,
    replications: int = 20,
    *,
    precision: float | None = None,
    metric: str = "tokens_per_s",
    max_replications: int | None = None,
    workers: int = 1,
    keep_frames: bool = True,
    keep_rows: bool = False,
    progress: Progress | bool | None = None,
) -> Results:
    """Simulate a scenario.

    Args:
        scenario: what to simulate, or its YAML file (``"example"`` is shipped).
        replications: how many; when `precision` is given, how many to begin with, at least `MIN_SEQUENTIAL`.
        precision: go on until the 95 % interval's half width is at most this share of the mean of `metric`.
        metric: what `precision` refers to.
        max_replications: where to stop at the latest, None for 1000; the interval tells what was reached.
        workers: processes; the results do not depend on it.
        keep_frames: keep the tables of requests and rounds.
        keep_rows: also log every row of every round.
        progress: True draws a bar; a function is called with (done, planned) after every replication.

    Raises:
        InputError: impossible arguments, or a study outside the calibrated range.
    """
    replications = REPLICATIONS.check(replications, "replications")
    most = _most_replications(replications, max_replications)
    if precision is not None:
        precision = SHARE.check(precision, "precision")
        replications = min(max(replications, MIN_SEQUENTIAL), most)
    scenario = as_scenario(scenario)
    check_metric(metric, scenario)
    settings = {"keep_frames": keep_frames, "keep_rows": keep_rows}
    done: list[Replication] = []
    planned = replications
    with reporting(progress, "replications") as report:
        while len(done) < planned:
            jobs = [(scenario, index) for index in range(len(done), planned)]
            with closing(run_parallel(run_replication, jobs, workers, settings)) as runs:
                for replication in runs:
                    done.append(replication)
                    report(len(done), planned)
            if precision is not None and _is_unknown(done, metric, precision):
                planned = min(most, len(done) + len(done) // 2)
    return Results(scenario, tuple(done))


def run_parallel(
    function: Callable[..., T],
    arguments: Iterable[tuple],
    workers: int,
    settings: dict[str, Any],
    *,
    ordered: bool = True,
) -> Generator[T, None, None]:
    """Call a function on each tuple of arguments; results as they come. Whoever may leave them early has to close it.

    Args:
        function, arguments: what is called, and on what.
        workers: processes; 1 for none but this one.
        settings: keywords of every call.
        ordered: whether a result waits for those of the arguments before.
    """
    WORKERS.check(workers, "workers")
    jobs = list(arguments)
    if workers == 1 or len(jobs) <= 1:
        yield from (function(*given, **settings) for given in jobs)
        return
    yield from run_in_processes(partial(function, **settings), jobs, workers, ordered=ordered)


def run_all(
    function: Callable[..., T],
    jobs: Sequence[tuple],
    workers: int,
    what: str,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> list[T]:
    """As `run_parallel`, all results in order; `progress` is told how many of `what` are done."""
    done: list[T] = []
    with reporting(progress, what) as report, closing(run_parallel(function, jobs, workers, settings)) as runs:
        for result in runs:
            done.append(result)
            report(len(done), len(jobs))
    return done


def run_points(
    jobs: Mapping[tuple[Any, ...], Scenario],
    replications: int,
    names: tuple[str, ...],
    metrics: Sequence[str],
    *,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> pd.DataFrame:
    """Run scenarios that are to be compared: replications of one number share their requests and constants.

    Args:
        jobs: values of `names` -> scenario.
        replications: of each, at least 2.
        names: of the columns that tell scenarios apart.
        metrics: columns of results.

    Returns:
        One line per scenario and replication, with `names`, ``replication``, `metrics` and ``extrapolated``, see
        `extrapolated_of`.
    """
    PAIRED.check(replications, "replications")
    points = [(point, index) for point in jobs for index in range(replications)]
    given = [(jobs[point], index) for point, index in points]
    runs = run_all(run_replication, given, workers, "runs", progress, keep_frames=False)
    return pd.DataFrame(
        dict(zip(names, point, strict=True))
        | {"replication": index}
        | {name: run.metrics[name] for name in metrics}
        | {"extrapolated": joined(run.extrapolated)}
        for (point, index), run in zip(points, runs, strict=True)
    )


def joined(extrapolated: Iterable[str]) -> str:
    """What had to be extrapolated, in one text, as a column of a table has it."""
    return "; ".join(sorted(set(extrapolated)))


def extrapolated_of(frame: pd.DataFrame) -> list[str]:
    """What lay outside the calibrated range in any line of a table with a column ``extrapolated``."""
    return sorted({what for told in frame["extrapolated"].unique() for what in BETWEEN.split(told) if what})


def _relative_error(done: Sequence[Replication], metric: str) -> float:
    mean, low, _, _ = mean_interval(np.array([r.metrics[metric] for r in done]), 0.95)
    return (mean - low) / abs(mean) if mean else mean - low


def _most_replications(replications: int, most: int | None) -> int:
    """Where sequential stopping ends at the latest."""
    if most is None:
        return max(replications, MOST_SEQUENTIAL)
    most = REPLICATIONS.check(most, "max_replications")
    require(most >= replications, f"max_replications {most} is less than replications {replications}")
    return most


def _is_unknown(done: Sequence[Replication], metric: str, precision: float) -> bool:
    """Whether more replications would tell more: some have the metric, and it is not known as precisely as asked."""
    return any(np.isfinite(r.metrics[metric]) for r in done) and not _relative_error(done, metric) <= precision
