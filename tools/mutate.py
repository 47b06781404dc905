"""Mutation testing of the engine's core: change one operator, constant or call at a time, and see which test notices.

    python tools/mutate.py --chunk 50                judge the next 50 mutants; run again to go on
    python tools/mutate.py --again                   judge the survivors anew, after tests were added
    python tools/mutate.py --report                  write docs/results/mutation.json and docs/mutation.md

Outcomes are appended to a log as they come, so a run that was killed goes on where it was. Files take turns, each in a
random order of fixed seed, so any number of judged mutants is a sample of all.

Every test runs once on the code as it is, to see which lines it executes and how long it takes. A mutant is then
judged by the tests that execute the changed statement, the quickest first, until one fails. Third-party packages are
imported once; each mutant runs in a forked child that loads the mutated text instead of the file, so nothing on disk
changes. A mutant is *killed* when a test fails, or takes far more processor time than it should.
"""

import argparse
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

from mutants import ROOT, Mutant, digest, mutants_of

sys.path.insert(0, str(ROOT))  # the code of this very checkout, wherever the package is installed from

FILES = [
    "refimpl/core/kernels.py",
    "refimpl/decoding/sampling.py",
    *(
        str(path.relative_to(ROOT))
        for room in ("decoding/acceptance", "scheduling", "placement", "layouts")
        for path in sorted((ROOT / "refimpl" / room).glob("[!_]*.py"))
    ),
]
TESTS = [
    "unit/test_kernels.py",
    "unit/test_forced.py",
    "unit/test_memory.py",
    "unit/test_shape_stable.py",
    "stateful",
    "property",
    "statistical",
    "sampling",
]  # below tests/
LOG = ROOT / ".work" / "mutation.jsonl"
NOT_LOADED = 99  # status of a child that tested the file on disk
NO_TESTS = 5  # pytest's status when it finds none
FIRST_STAGE = 15  # the quickest tests of a mutant, which are loaded alone
TEST_LIMIT_S, SLOWER_THAN_HEALTHY = 30.0, 5.0  # processor time of a test that counts as endless
MEMORY_BYTES = 8 << 30
PYTEST = ["-q", "--assert=plain", "-o", "addopts="]  # quick to start; without other import hooks
PYTEST += [
    word for name in ("cacheprovider", "unraisableexception", "threadexception") for word in ("-p", f"no:{name}")
]
PRELOADED = ("torch", "transformers", "numpy", "scipy.stats", "hypothesis", "hypothesis.stateful", "pytest")


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


@dataclass(frozen=True)
class Trace:
    """What one test does on the healthy code: seconds, and the lines that it executes by file."""

    test: str
    seconds: float
    lines: dict[str, list[int]]


# --- which test executes which line ------------------------------------------------------------------------------


class LineTracer:
    """Pytest plugin: notes the lines of some files that each test executes."""

    def __init__(self, files: list[str]):
        self.names = {str(ROOT / file): file for file in files}
        self.traces: list[Trace] = []

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Trace set-up, call and tear-down."""
        hit: dict[str, set[int]] = {}

        def local(frame: FrameType, event: str, argument: object) -> Any:
            hit[self.names[frame.f_code.co_filename]].add(frame.f_lineno)
            return local

        def call(frame: FrameType, event: str, argument: object) -> Any:
            name = self.names.get(frame.f_code.co_filename)
            if name is None:
                return None
            hit.setdefault(name, set()).add(frame.f_lineno)
            return local

        begun = time.process_time()
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(None)
        lines = {name: sorted(found) for name, found in hit.items()}
        self.traces.append(Trace(item.nodeid, round(time.process_time() - begun, 3), lines))


class Ordered:
    """Pytest plugin: runs the tests in the order given, each within its processor time; tells the first to fail."""

    def __init__(self, limits: dict[str, float]):
        self.limits, self.failed = limits, ""
        self.rank = {test: i for i, test in enumerate(limits)}

    @property
    def files(self) -> list[str]:
        """Files that hold the tests."""
        return list(dict.fromkeys(test.partition("::")[0] for test in self.limits))

    def pytest_collection_modifyitems(self, items: list) -> None:
        """Select and sort; a mutant may have taken away the parameters of some."""
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Start the alarm, which ends the process."""
        signal.setitimer(signal.ITIMER_PROF, self.limits[item.nodeid])
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember the first failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport  # a test file that cannot be loaded


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Loads one module from a text instead of its file."""

    def __init__(self, mutant: Mutant):
        self.mutant = mutant
        self.module = mutant.file.removesuffix(".py").replace("/", ".")

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        """Answer for the mutated module only."""
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, ROOT / self.mutant.file, loader=self)

    def get_source(self, name: str) -> str:
        """Give the mutated text."""
        return self.mutant.source

    def loaded(self) -> bool:
        """Whether the tests got the mutant."""
        module = sys.modules.get(self.module)
        return module is not None and module.__loader__ is self


# --- children ----------------------------------------------------------------------------------------------------


def preload() -> None:
    """Import what every child needs, but nothing of ours."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, OPTForCausalLM  # noqa: F401 (loads the code)

    os.environ |= {"HYPOTHESIS_PROFILE": "mutation", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    settings, phase = sys.modules["hypothesis"].settings, sys.modules["hypothesis"].Phase
    settings.register_profile(
        "mutation",
        max_examples=25,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[phase.explicit, phase.generate],  # a failure need not be made small
        suppress_health_check=list(sys.modules["hypothesis"].HealthCheck),
    )
    gc.freeze()  # children need not look through what was imported


def in_child(work: Callable[[], tuple[int, Any]]) -> tuple[int, Any]:
    """Fork; return the child's exit status (negative: the signal that ended it) and what it hands back as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            status, answer = work()
            with os.fdopen(writer, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(text) if text else None


def run_pytest(arguments: list[str], plugin: object) -> int:
    """Run pytest silently from the root, without plugins that hook into imports."""
    import pytest

    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(ROOT)
    wrapper = pytest.hookimpl(hookwrapper=True)
    wrapper(type(plugin).pytest_runtest_protocol)
    return int(pytest.main([*PYTEST, *arguments], plugins=[plugin]))


def trace_tests(files: list[str]) -> list[Trace]:
    """Run all tests on the healthy code.

    Raises:
        SystemExit: one fails.
    """

    def work() -> tuple[int, Any]:
        tracer = LineTracer(files)
        status = run_pytest([f"tests/{name}" for name in TESTS], tracer)
        return status, [asdict(trace) for trace in tracer.traces]

    status, found = in_child(work)
    if status != 0:
        raise SystemExit("the tests fail without any mutation")
    return [Trace(**trace) for trace in found]


def tests_of(mutant: Mutant, traces: list[Trace]) -> dict[str, float]:
    """Tests that execute the changed statement, the quickest first, with their limits in seconds.

    What runs at import concerns every test: a constant may be read where no line of its file is executed.
    """
    first, last = mutant.lines

    def concerned(trace: Trace) -> bool:
        return mutant.at_import or any(first <= line <= last for line in trace.lines.get(mutant.file, []))

    chosen = sorted(filter(concerned, traces), key=lambda trace: trace.seconds)
    return {trace.test: TEST_LIMIT_S + SLOWER_THAN_HEALTHY * trace.seconds for trace in chosen}


def judge(mutant: Mutant, traces: list[Trace], commit: str) -> Outcome:
    """Run the tests that concern a mutant until one fails."""
    begun = time.perf_counter()
    limits = tests_of(mutant, traces)

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
    """Latest outcome of each mutant of the files as they are now."""
    current = {mutant.key: digest(mutant.file) for mutant in mutants}
    lines = path.read_text().splitlines() if path.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {o.key: o for o in outcomes if current.get(o.key) == o.digest}


def main() -> None:
    """Judge mutants, or report on what was judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--chunk", type=int, help="judge at most so many mutants in this run")
    parser.add_argument("--again", action="store_true", help="judge the survivors anew")
    parser.add_argument("--report", action="store_true", help="write the results from the log")
    parser.add_argument("--seed", type=int, default=0, help="order of the mutants")
    parser.add_argument("--log", type=Path, default=LOG)
    arguments = parser.parse_args()
    mutants = in_turns([m for file in arguments.files for m in mutants_of(file)], arguments.seed)
    judged = read_log(arguments.log, mutants)
    if arguments.report:
        from mutation_report import write_report

        write_report(mutants, judged, origin(), arguments.seed)
        return
    survived = [m for m in mutants if m.key in judged and judged[m.key].fate in ("survived", "not run")]
    pending = survived if arguments.again else [m for m in mutants if m.key not in judged]
    judge_all(pending[: arguments.chunk], arguments.log)
    print(f"{len(mutants)} mutants, {len(read_log(arguments.log, mutants))} of them judged", flush=True)


def judge_all(pending: list[Mutant], log: Path) -> None:
    """Judge one mutant after the other and append the outcomes to the log."""
    if not pending:
        return
    preload()
    commit = current_commit()
    log.parent.mkdir(exist_ok=True)
    traces = remembered_traces(log.with_suffix(f".{commit}.traces.json"))
    for mutant in pending:
        outcome = judge(mutant, traces, commit)
        with log.open("a") as file:
            file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
        print(f"{outcome.fate:9} {outcome.seconds:6.1f} s  {outcome.key}  {outcome.by}", flush=True)


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
