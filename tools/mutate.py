"""Mutation testing of the engine's core: change one operator, constant or call at a time, and see which test notices.

    python tools/mutate.py FILE …      judge the mutants of these files, or of all; run again to go on
    python tools/mutate.py --jobs 2    two at a time
    python tools/mutate.py --again     judge the survivors anew, after tests were added
    python tools/mutate.py --report    write docs/results/mutation.json and docs/mutation.md

Outcomes are appended to a log as they come, so a run that was killed goes on where it was. Files that have not changed
since the last report are not judged again.

Every test runs once on the code as it is, to see which lines it executes and how long it takes. A mutant is then judged
by the tests that execute the changed statement until one fails or they have taken so long on the healthy code
(`ENOUGH_S`): half of the time the quickest, then each test once before any comes again with other parameters. More
tests would kill more mutants, so the share of the killed is a lower bound. Each mutant gets a forked child that loads
the mutated text instead of the file; nothing on disk changes.
"""

import argparse
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any

from mutant_runs import AlteredFile, LineTracer, Ordered, Trace, in_child, preload, run_pytest
from mutants import ROOT, Mutant, digest, mutants_of
from mutation_report import read_report, survivors, write_report

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
    "engine/core",
    "engine/decoding",
    "engine/models",
    "engine/placement",
    "engine/bench/test_forced.py",
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


def tests_of(mutant: Mutant, traces: list[Trace]) -> dict[str, float]:
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
    quickest = in_time(near, ENOUGH_S / 2)
    chosen = quickest + in_time(far, ENOUGH_S / 2) + in_time(in_variety(near[len(quickest) :]), ENOUGH_S / 2)
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


def judge(mutant: Mutant, traces: list[Trace]) -> Outcome:
    """Run the tests that concern a mutant until one fails."""
    begun = time.perf_counter()
    limits = tests_of(mutant, traces)
    altered = AlteredFile(mutant.file, mutant.source)

    def work() -> tuple[int, Any]:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        os.chdir(ROOT)
        try:
            altered.plant()
        except Exception:
            return 1, "import"
        ranked = list(limits.items())
        for stage in filter(None, (ranked[:FIRST_STAGE], ranked[FIRST_STAGE:])):
            plugin = Ordered(dict(stage))
            status = run_pytest(["-x", *plugin.files], plugin)
            if status not in (0, NO_TESTS):
                return status, plugin.failed
        return (0 if altered.loaded() else NOT_LOADED), ""

    status, failed = in_child(work) if limits else (0, "")
    if status == NOT_LOADED or (status > 0 and not failed):
        raise SystemExit(f"the tests did not run on the mutant {mutant.key}: status {status}")
    fate = "timeout" if status == -signal.SIGPROF else "killed" if status else "survived" if limits else "not run"
    seconds = round(time.perf_counter() - begun, 1)
    return Outcome(mutant.key, digest(mutant.file), fate, failed or "", len(limits), seconds)


# --- the log -----------------------------------------------------------------------------------------------------


def fates(mutants: list[Mutant]) -> dict[str, str]:
    """Latest fate of each mutant of the files as they are now: of the log, else of the last report."""
    report, digests = read_report(), {file: digest(file) for file in {mutant.file for mutant in mutants}}
    told = {file for file, entry in report["files"].items() if entry["digest"] == digests.get(file)}
    left = survivors(report)
    found = {m.key: "survived" if m.key in left else "killed" for m in mutants if m.file in told}
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    logged = [Outcome(**json.loads(line)) for line in lines]
    return found | {o.key: o.fate for o in logged if digests.get(o.key.partition(":")[0]) == o.digest}


def main() -> None:
    """Judge mutants, or report on what was judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--jobs", type=int, default=1, help="judge so many mutants at a time")
    parser.add_argument("--again", action="store_true", help="judge the survivors anew")
    parser.add_argument("--report", action="store_true", help="write the results of files that are judged")
    arguments = parser.parse_args()
    mutants = [mutant for file in arguments.files for mutant in mutants_of(file)]
    judged = fates(mutants)
    if arguments.report:
        write_report(FILES, mutants, judged, origin())
        return
    survived = [m for m in mutants if judged.get(m.key) in ("survived", "not run")]
    judge_all(survived if arguments.again else [m for m in mutants if m.key not in judged], arguments.jobs)
    print(f"{len(mutants)} mutants, {len(fates(mutants))} of them judged", flush=True)


def judge_all(pending: list[Mutant], jobs: int) -> None:
    """Judge mutants, so many at a time, and append the outcomes to the log."""
    if not pending:
        return
    preload()
    LOG.parent.mkdir(exist_ok=True)
    traces = remembered_traces()

    def work(mutants: list[Mutant]) -> None:
        for mutant in mutants:
            outcome = judge(mutant, traces)
            with LOG.open("a") as file:
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


def remembered_traces() -> list[Trace]:
    """What the tests execute, measured once a commit."""
    path = LOG.with_suffix(f".{origin()['commit']}.traces.json")
    if path.exists():
        return [Trace(**trace) for trace in json.loads(path.read_text())]
    traces = trace_tests(FILES)
    print(f"{len(traces)} tests, {sum(t.seconds for t in traces):.0f} s of processor time", flush=True)
    path.write_text(json.dumps([asdict(trace) for trace in traces]))
    return traces


def origin() -> dict[str, Any]:
    """Provenance, as all measured files have it."""

    def work() -> tuple[int, Any]:
        import torch

        from refimpl.decoding.devices import provenance

        return 0, provenance(torch.device("cpu")) | {"command": "python tools/mutate.py"}

    return in_child(work)[1]


if __name__ == "__main__":
    main()
