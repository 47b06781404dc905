"""The whole calibration: visits and runs in one go, in random order, until all is done or the time is up."""

import math
import os
import random
import statistics
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from refimpl.bench.forced import iid_lengths
from refimpl.bench.reference import CHECKS, Reference, pooled_cv
from refimpl.calibrate import grid, studies
from refimpl.calibrate.files import check_place, folder_name, make_meta, write_json, write_points
from refimpl.calibrate.grid import Axes, Cell, levels_of
from refimpl.calibrate.points import Points
from refimpl.calibrate.prompts import Piece, PromptSupply, token_prompts
from refimpl.calibrate.runs import Run, Runner, write_run
from refimpl.calibrate.studies import Studies, StudySettings
from refimpl.calibrate.visits import Visit, Visitor
from refimpl.core.errors import InputError, is_out_of_memory, require, shown
from refimpl.core.files import in_place_of
from refimpl.core.formats import VALIDATION_SCHEMA
from refimpl.core.interrupts import tell
from refimpl.core.values import require_int
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt

FORCED_PROBABILITY = 0.7  # of a draft to be accepted, where both models' weights are random
MAX_THREADS = max(64, 4 * (os.cpu_count() or 1))
TOO_SHORT = "no second pass over the coarsest grid was begun"
LONGEST_REASON = 200  # characters of an error that are kept


Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class Job:
    """A visit or a run: its name in messages, and the function that does it."""

    name: str
    do: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        grids: axes of each level, from coarse to fine; a level holds all values of those before it.
        studies: the runs.
        passes: over each level, at least two, so that drift can be seen. All levels are visited once before the finer
            ones are visited again.
        repeats: how often each held-out study runs, each time on other prompts.
        forced_probability: of a draft to be accepted, where the pair is made of noise; None leaves it natural.
    """

    grids: tuple[Axes, ...]
    studies: Studies
    passes: int
    repeats: int
    forced_probability: float | None = None

    @property
    def prompts_needed(self) -> tuple[int, int]:
        """Prompts of what calibrates, and of all held-out runs."""
        fitted = sum(study.num_prompts for study in (self.studies.acceptance, *self.studies.probes))
        return fitted, self.repeats * sum(study.num_prompts for study in self.studies.held_out)


def default_plan(pair: Pair) -> Plan:
    """The plan for a pair on its device; random weights agree on nothing, so their acceptance is forced."""
    cuda = pair.device.type == "cuda"
    plan = Plan(grid.CUDA, studies.CUDA, passes=2, repeats=2) if cuda else Plan(grid.CPU, studies.CPU, 5, repeats=6)
    if pair.tokenizer is not None:
        return plan
    return replace(plan, studies=plan.studies.of_forced(), forced_probability=FORCED_PROBABILITY)


class Calibration:
    """Measures, and keeps what it has measured.

    Args:
        pair: what is timed.
        given: prompts; None for pieces of the standard library, or random ids without a tokenizer.
        plan: what is measured.
        seed: of every random choice.
        minutes: when to stop; None for when all is done.
        progress: called with (label, done, all).

    Attributes:
        visits, levels_done, probes, held_out: so far.
        skipped: cells that do not fit, visits and runs that were refused or ran out of memory, with the reason, one
            line each.
    """

    def __init__(
        self,
        pair: Pair,
        given: list[Prompt] | None,
        plan: Plan,
        seed: int,
        minutes: float | None,
        progress: Progress | None = None,
    ):
        self.plan, self.seed, self.rng = plan, seed, random.Random(seed)
        self.progress: Progress = progress or (lambda label, done, total: None)
        self.deadline_s = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.supply = PromptSupply(token_prompts(pair, given, self.rng), *plan.prompts_needed, self.rng)
        stream = self.supply.stream
        longest = max(axes.longest for axes in plan.grids)
        stream *= 1 + 2 * longest // len(stream)
        self.reference = Reference(pair, stream)
        deepest = max(k for axes in plan.grids for k in axes.drafts)
        forced = () if plan.forced_probability is None else iid_lengths(plan.forced_probability, deepest)
        self.visitor = Visitor(pair, stream, self.reference, self.rng, CHECKS, forced)
        self.runner = Runner(pair, self.reference, CHECKS, plan.forced_probability)
        self.visits: list[Visit] = []
        self.levels_done = 0
        self.acceptance: Run | None = None
        self.probe_prompts = [self._deal(study, fitted=True) for study in plan.studies.probes]
        self.probes: dict[str, list[Run]] = defaultdict(list)
        self.held_out: dict[str, Run] = {}
        self.skipped: list[str] = []

    @property
    def sufficient(self) -> bool:
        """Whether the coarsest level was visited in full, and a further pass begun: less makes no calibration."""
        return self.levels_done > 0 and len({visit.pass_index for visit in self._counted}) > 1

    def measure(self) -> None:
        """Do all jobs in order, until the time is up; what cannot be done is skipped.

        Raises:
            InputError: not even the coarsest level could be measured twice.
        """
        levels = [[cell for cell in level if self.fits_or_skip(cell)] for level in levels_of(self.plan.grids)]
        unfit = len(self.skipped)
        self._warm_up(levels[0])
        self._run_acceptance()
        blocks = block_order(len(levels), self.plan.passes)
        held_out = self._held_out_jobs(len(blocks), self.plan.passes)
        for number, (level, index) in enumerate(blocks):
            jobs = [self._visit_job(cell, level * self.plan.passes + index) for cell in levels[level]]
            jobs += [] if level else self._probe_jobs()
            finished = self._do(jobs + held_out[number], f"pass {number + 1}/{len(blocks)}")
            self.levels_done += finished and index == 0
            if not finished:
                break
        if not self.sufficient:
            late = time.monotonic() > self.deadline_s or not self.skipped
            first = (self.skipped[unfit:] or self.skipped)[:1]  # what was tried and failed, before what cannot fit
            why = "--minutes is too short" if late else f"too much was skipped, first {first[0]}"
            raise InputError(f"{why}: {TOO_SHORT}")

    def _warm_up(self, cells: list[Cell]) -> None:
        """Visit some cells, and forget it.

        Raises:
            InputError: not even one pass over these cells fits into the time, going by the visits that were made.
        """
        some, taken_s = cells[:: max(1, len(cells) // 8)], list[float]()
        for number, cell in enumerate(some, start=1):
            begun_s = time.monotonic()
            require(begun_s <= self.deadline_s, f"--minutes is too short: {TOO_SHORT}")
            self._attempt(Job(f"warm-up of {cell}", partial(self.visitor.visit, cell, 0)))
            taken_s.append(time.monotonic() - begun_s)
            self.progress("warm-up", number, len(some))
        need_s = statistics.median(taken_s or [0.0]) * len(cells)
        short = f"--minutes is too short: a pass over the coarsest grid takes about {need_s / 60:.1f} minutes"
        require(time.monotonic() + need_s <= self.deadline_s, short)
        self.reference.samples.clear()

    def points(self) -> Points:
        """Executions of the levels that were visited in full at least once; what is left of others does not count."""
        return Points(self._counted, self.reference)

    @property
    def _counted(self) -> list[Visit]:
        last = self.levels_done * self.plan.passes
        return [visit for visit in self.visits if visit.pass_index < last]

    def fits_or_skip(self, cell: Cell) -> bool:
        """Whether a cell can be visited; one that cannot is skipped."""
        try:
            self.visitor.require_fit(cell)
        except InputError as error:
            self._skip(str(cell), error)
            return False
        return True

    def _do(self, jobs: list[Job], label: str) -> bool:
        """Do jobs in random order; return whether the time sufficed."""
        self.rng.shuffle(jobs)
        for number, job in enumerate(jobs):
            if time.monotonic() > self.deadline_s:
                tell(f"{label}: the time is up after {number} of {len(jobs)} visits and runs")
                return False
            self._attempt(job)
            self.progress(label, number + 1, len(jobs))
        tell(f"{label}: reference {1e3 * self.reference.mean_s:.2f} ms so far")
        return True

    def _attempt(self, job: Job) -> None:
        """Do a job; if it is refused or out of memory, say so and go on."""
        try:
            job.do()
            return
        except (InputError, RuntimeError) as error:
            if not isinstance(error, InputError) and not is_out_of_memory(error):
                raise
            self._skip(job.name, error)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # once the failed job's tensors have gone with its frames

    def _skip(self, name: str, error: Exception) -> None:
        self.skipped.append(f"{name}: {textwrap.shorten(str(error), LONGEST_REASON)}")
        tell(f"skipped {self.skipped[-1]}")

    def _deal(self, study: StudySettings, *, fitted: bool) -> list[Piece]:
        return self.supply.deal(study.num_prompts, fitted=fitted)

    def _run_acceptance(self) -> None:
        study = self.plan.studies.acceptance
        self.acceptance = self.runner.run(study, self._deal(study, fitted=True), self.seed)

    def _visit_job(self, cell: Cell, pass_index: int) -> Job:
        name = f"{cell}, pass {pass_index % self.plan.passes + 1}"
        return Job(name, lambda: self.visits.append(self.visitor.visit(cell, pass_index)))

    def _probe_jobs(self) -> list[Job]:
        def probe(study: StudySettings, prompts: list[Piece]) -> None:
            run = self.runner.run(study, prompts, self.seed)
            self.probes[study.name].append(run)

        studies = zip(self.plan.studies.probes, self.probe_prompts, strict=True)
        return [Job(study.name, partial(probe, study, prompts)) for study, prompts in studies]

    def _held_out_jobs(self, num_blocks: int, num_used: int) -> list[list[Job]]:
        """Jobs of each block: all in those used, the first, since the time may be up before the finer levels.

        The first runs of all studies lie in the first of these blocks, the last ones in the last.
        """

        def hold_out(study: StudySettings, prompts: list[Piece], seed: int) -> None:
            self.held_out[study.name] = self.runner.run(study, prompts, seed)

        jobs = list[Job]()
        for repeat in range(self.plan.repeats):
            for study in self.rng.sample(self.plan.studies.held_out, len(self.plan.studies.held_out)):
                named = replace(study, name=f"{study.name}-{repeat}")
                prompts = self._deal(study, fitted=False)
                jobs.append(Job(named.name, partial(hold_out, named, prompts, self.seed + 1 + repeat)))
        ends = [len(jobs) * min(block, num_used) // num_used for block in range(num_blocks + 1)]
        return [jobs[start:stop] for start, stop in pairwise(ends)]


def block_order(num_levels: int, passes: int) -> list[tuple[int, int]]:
    """(level, pass) in the order in which they are measured: the coarsest level twice, every other once, the rest."""
    once = [(level, 0) for level in range(num_levels)]
    again = [(level, index) for index in range(1, passes) for level in range(num_levels)]
    return [once[0], again[0], *once[1:], *again[1:]]


def calibrate(
    pair: Pair,
    texts: list[Prompt] | None,
    out: Path,
    *,
    pair_name: str,
    plan: Plan | None = None,
    passes: int | None = None,
    repeats: int | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    seed: int = 0,
    command: str = "",
    progress: Progress | None = None,
) -> None:
    """Measure, and write ``calibration/<device>/<pair>`` and ``validation/<device>/<pair>`` under `out`.

    If an error or interrupt ends a calibration, it writes what it has, provided that is enough.

    Args:
        pair: what is timed.
        texts: prompts, at least 32; None for pieces of the standard library, or random ids without a tokenizer.
        out: the simulator's data folder.
        pair_name: name of the folder.
        plan: what is measured; None for the device's usual grid and studies.
        passes, repeats: replace the plan's.
        minutes: stop then, with what has been measured.
        threads: of the tensor library; None leaves it.
        seed: of every random choice.
        command: what the user typed, for the record.
        progress: called with (label, done, all).

    Raises:
        InputError: too few passes or prompts, too many threads, too little time for the coarsest grid, or no folder to
            write to.
    """
    check_place(out, pair_name)
    plan = _with_visits(plan or default_plan(pair), passes, repeats)
    require(minutes is None or minutes > 0, f"minutes must be above 0, not {shown(minutes)}")
    if threads is not None:
        require_int("threads", threads, 1, MAX_THREADS)
        torch.set_num_threads(threads)
    calibration = Calibration(pair, texts, plan, seed, minutes, progress)
    try:
        calibration.measure()
    finally:
        if calibration.sufficient:
            write_calibration(calibration, pair, out, folder_name(pair, pair_name), command)


def _with_visits(plan: Plan, passes: int | None, repeats: int | None) -> Plan:
    """The plan with as many passes and repeats as are given; raises InputError for too few."""
    passes, repeats = plan.passes if passes is None else passes, plan.repeats if repeats is None else repeats
    require_int("passes", passes, 2)
    require_int("repeats", repeats, 1)
    return replace(plan, passes=passes, repeats=repeats)


def write_calibration(calibration: Calibration, pair: Pair, out: Path, folder: str, command: str) -> None:
    """Write points, traces and what they come from, in place of an earlier calibration of the folder."""
    points = calibration.points()
    meta = make_meta(
        pair, points, calibration.reference, command, check_level=CHECKS, passes=calibration.plan.passes,
        seed=calibration.seed, skipped=calibration.skipped,
        run_cv=pooled_cv([run.seconds for run in found] for found in calibration.probes.values()),
        runs_again=[name for name, run in calibration.held_out.items() if run.attempts > 1],
    )  # fmt: skip
    with in_place_of(out / "calibration" / folder) as costs, in_place_of(out / "validation" / folder) as runs:
        write_points(costs, points.lines(), meta)
        assert calibration.acceptance is not None
        write_run(runs / "fit" / "acceptance.ndjson.gz", calibration.acceptance)
        for name, found in calibration.probes.items():
            for index, run in enumerate(found):
                write_run(runs / "fit" / f"{name}-{index}.ndjson.gz", run)
        for name, run in calibration.held_out.items():
            write_run(runs / f"{name}.ndjson.gz", run)
        write_json(runs / "meta.json", meta | {"schema": VALIDATION_SCHEMA})
