"""Mutation testing of the engine's core: change one operator, constant or call at a time, and see which test notices.

    python tools/mutate.py --chunk 50                judge the next 50 mutants; run again to go on
    python tools/mutate.py --jobs 2                  judge all, two at a time
    python tools/mutate.py --again                   judge the survivors anew, after tests were added
    python tools/mutate.py --report                  write docs/results/mutation.json and docs/mutation.md
    python tools/mutate.py --stale                   count what was judged in files that have changed since

Outcomes are appended to a log as they come, so a run that was killed goes on where it was; those of files that have not
changed since the last report are not judged again. Files take turns, each in a random order of fixed seed, so any
number of judged mutants is a sample of all.

Every test runs once on the code as it is, to see which lines it executes and how long it takes. A mutant is then judged
by the tests that execute the changed statement until one fails or they have taken so long on the healthy code
(``--enough``): half of the time the quickest, then each test once before any comes again with other parameters. More
would kill some that count as survivors. Third-party packages are imported once; each mutant runs in a forked child that
loads the mutated text instead of the file, so nothing on disk changes. A mutant is *killed* when a test fails, or takes
far more processor time than it should.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import accumulate, zip_longest
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from mutant_runs import LineTracer, MutantFinder, Ordered, Trace, in_child, preload, run_pytest
from mutants import ROOT, Mutant, digest, mutants_of
from mutation_report import DATA, reported, told_stale, write_report

FILES = [
    "refimpl/core/kernels.py",
    "refimpl/decoding/sampling.py",
    *(
        str(path.relative_to(ROOT))
        for room in (
            "decoding/acceptance",
            "decoding/drafters",
            "drafting",
            "drafting/budgets",
            "scheduling",
            "placement",
            "layouts",
        )
        for path in sorted((ROOT / "refimpl" / room).glob("[!_]*.py"))
    ),
]
TESTS = [
    "unit/test_arrivals.py",
    "unit/test_budgets.py",
    "unit/test_drafters.py",
    "unit/test_drafting_product.py",
    "unit/test_forced.py",
    "unit/test_head.py",
    "unit/test_kernels.py",
    "unit/test_memory.py",
    "unit/test_overlapped.py",
    "unit/test_packed.py",
    "unit/test_pool_sizes.py",
    "unit/test_shape_stable.py",
    "unit/test_varlen.py",
    "unit/test_varlen_runs.py",
    "stateful",
    "property",
    "statistical",
    "sampling",
]  # below tests/
LOG = ROOT / ".work" / "mutation.jsonl"
NOT_LOADED = 99  # status of a child that tested the file on disk
NO_TESTS = 5  # pytest's status when it finds none
FIRST_STAGE = 15  # the quickest tests of a mutant, which are loaded alone
ENOUGH_S = 20.0  # processor time of a mutant's tests on the healthy code, after which it has survived
TEST_LIMIT_S, SLOWER_THAN_HEALTHY = 30.0, 5.0  # processor time of a test that counts as endless
MEMORY_BYTES = 8 << 30


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: ``killed``, ``timeout``, ``survived``, or ``not run`` by any test."""

    key: str
    digest: str
    fate: str
    by: str
    tests: int
    seconds: float
    commit: str

    def as_row(self) -> dict[str, Any]:
        """Entry of the report; seconds are of one machine, and stay in the log."""
        row = {"mutant": self.key, "fate": self.fate, "by": self.by, "tests": self.tests}
        return row | {"file": self.digest, "commit": self.commit}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Outcome":
        """Read an entry of the report."""
        return cls(row["mutant"], row["file"], row["fate"], row["by"], row["tests"], 0.0, row["commit"])


# --- judging -----------------------------------------------------------------------------------------------------


def trace_tests(files: list[str]) -> list[Trace]:
    """Run all tests on the healthy code. Those that fail on it, which are named, can judge no mutant."""

    def work() -> tuple[int, Any]:
        tracer = LineTracer(files)
        run_pytest([f"tests/{name}" for name in TESTS], tracer)
        return 0, {"traces": [asdict(trace) for trace in tracer.traces], "failed": sorted(tracer.failed)}

    _, found = in_child(work)
    for test in found["failed"]:
        print(f"fails without any mutation, and is left out: {test}", file=sys.stderr, flush=True)
    return [Trace(**trace) for trace in found["traces"] if trace["test"] not in found["failed"]]


def tests_of(mutant: Mutant, traces: list[Trace], enough_s: float) -> dict[str, float]:
    """Tests that execute the changed statement, with their limits in seconds.

    What runs at import concerns every test: a constant may be read where no line of its file is executed. Tests that
    execute none have as long for themselves.
    """
    first, last = mutant.lines

    def executes(trace: Trace) -> bool:
        return mutant.at_import or any(first <= line <= last for line in trace.lines[mutant.file])

    by_time = sorted(traces, key=attrgetter("seconds"))
    near = [trace for trace in by_time if mutant.file in trace.lines and executes(trace)]
    far = [trace for trace in by_time if mutant.at_import and mutant.file not in trace.lines]
    quickest = in_time(near, enough_s / 2)
    chosen = quickest + in_time(far, enough_s / 2) + in_time(in_variety(near[len(quickest) :]), enough_s / 2)
    return {trace.test: TEST_LIMIT_S + SLOWER_THAN_HEALTHY * trace.seconds for trace in chosen}


def in_variety(traces: list[Trace]) -> list[Trace]:
    """Each test with some of its parameters, before any comes again."""
    turns, times_before = [], Counter[str]()
    for trace in traces:
        name = trace.test.partition("[")[0]
        turns.append(times_before[name])
        times_before[name] += 1
    return [trace for _, trace in sorted(zip(turns, traces, strict=True), key=itemgetter(0))]


def in_time(traces: list[Trace], enough_s: float) -> list[Trace]:
    """The first of them, until they have taken so long."""
    before = accumulate((trace.seconds for trace in traces), initial=0.0)
    return [trace for trace, spent_s in zip(traces, before, strict=False) if spent_s < enough_s]


def judge(mutant: Mutant, traces: list[Trace], commit: str, enough_s: float) -> Outcome:
    """Run the tests that concern a mutant until one fails."""
    begun = time.perf_counter()
    limits = tests_of(mutant, traces, enough_s)

    def work() -> tuple[int, Any]:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        finder = MutantFinder(mutant)
        sys.meta_path.insert(0, finder)
        os.chdir(ROOT)
        try:
            importlib.import_module(finder.module)
        except Exception:
            return 1, "import"
        ranked = list(limits.items())
        for stage in filter(None, (ranked[:FIRST_STAGE], ranked[FIRST_STAGE:])):
            plugin = Ordered(dict(stage))
            status = run_pytest(["-x", *plugin.files], plugin)
            if status not in (0, NO_TESTS):
                return status, plugin.failed
        return (0 if finder.loaded() else NOT_LOADED), ""

    status, failed = in_child(work) if limits else (0, "")
    if status == NOT_LOADED or (status > 0 and not failed):
        raise SystemExit(f"the tests did not run on the mutant {mutant.key}: status {status}")
    fate = "timeout" if status == -signal.SIGPROF else "killed" if status else "survived" if limits else "not run"
    seconds = round(time.perf_counter() - begun, 1)
    return Outcome(mutant.key, digest(mutant.file), fate, failed or "", len(limits), seconds, commit)


# --- the log -----------------------------------------------------------------------------------------------------


def in_turns(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """One mutant of each file after the other, in random order within a file."""
    by_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_file.setdefault(mutant.file, []).append(mutant)
    for file, members in by_file.items():
        random.Random(f"{seed}:{file}").shuffle(members)
    return [mutant for turn in zip_longest(*by_file.values()) for mutant in turn if mutant]


def read_log(path: Path, mutants: list[Mutant]) -> dict[str, Outcome]:
    """Latest outcome of each mutant of the files as they are now: of the log, else of the last report."""
    digests = {file: digest(file) for file in {mutant.file for mutant in mutants}}
    keys = {mutant.key: digests[mutant.file] for mutant in mutants}
    lines = path.read_text().splitlines() if path.exists() else []
    outcomes = [*map(Outcome.from_row, reported()), *(Outcome(**json.loads(line)) for line in lines)]
    return {o.key: o for o in outcomes if keys.get(o.key) == o.digest}


def main() -> None:
    """Judge mutants, or report on what was judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--chunk", type=int, help="judge at most so many mutants in this run")
    parser.add_argument("--jobs", type=int, default=1, help="judge so many mutants at a time")
    parser.add_argument("--enough", type=float, default=ENOUGH_S, help="seconds of tests that a survivor has passed")
    parser.add_argument("--again", action="store_true", help="judge the survivors anew")
    parser.add_argument("--report", action="store_true", help="write the results from the log")
    parser.add_argument("--stale", action="store_true", help="count outcomes of files that have changed since")
    parser.add_argument("--seed", type=int, default=0, help="order of the mutants")
    parser.add_argument("--log", type=Path, default=LOG)
    arguments = parser.parse_args()
    if arguments.stale:
        print(told_stale(json.loads(DATA.read_text())))
        return
    mutants = in_turns([m for file in arguments.files for m in mutants_of(file)], arguments.seed)
    judged = read_log(arguments.log, mutants)
    if arguments.report:
        write_report(mutants, judged, origin(), arguments.seed)
        return
    survived = [m for m in mutants if m.key in judged and judged[m.key].fate in ("survived", "not run")]
    pending = survived if arguments.again else [m for m in mutants if m.key not in judged]
    judge_all(pending[: arguments.chunk], arguments.log, arguments.jobs, arguments.enough)
    print(f"{len(mutants)} mutants, {len(read_log(arguments.log, mutants))} of them judged", flush=True)


def judge_all(pending: list[Mutant], log: Path, jobs: int, enough_s: float) -> None:
    """Judge mutants, so many at a time, and append the outcomes to the log."""
    if not pending:
        return
    preload()
    commit = current_commit()
    log.parent.mkdir(exist_ok=True)
    traces = remembered_traces(log.with_suffix(f".{commit}.traces.json"))

    def work(mutants: list[Mutant]) -> None:
        for mutant in mutants:
            outcome = judge(mutant, traces, commit, enough_s)
            with log.open("a") as file:
                file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
            print(f"{outcome.fate:9} {outcome.seconds:6.1f} s  {outcome.key}  {outcome.by}", flush=True)

    fork = multiprocessing.get_context("fork")  # with what is preloaded
    workers = [fork.Process(target=work, args=(pending[i::jobs],)) for i in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit(1)


def remembered_traces(path: Path) -> list[Trace]:
    """What the tests execute, measured once a commit."""
    if path.exists():
        return [Trace(**trace) for trace in json.loads(path.read_text())]
    traces = trace_tests(FILES)
    print(f"{len(traces)} tests, {sum(t.seconds for t in traces):.0f} s of processor time", flush=True)
    path.write_text(json.dumps([asdict(trace) for trace in traces]))
    return traces


def current_commit() -> str:
    """Commit of the checkout, as all measured files name it."""
    return origin()["commit"]


def origin() -> dict[str, Any]:
    """Provenance, as all measured files have it."""

    def work() -> tuple[int, Any]:
        import torch

        from refimpl.decoding.devices import provenance

        return 0, provenance(torch.device("cpu")) | {"command": "python tools/mutate.py"}

    return in_child(work)[1]


if __name__ == "__main__":
    main()
