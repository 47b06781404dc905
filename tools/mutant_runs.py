"""Tests in forked children: on the code as it is, noting what each executes, or on a text in place of a file.

Third-party packages are imported once, before the forks; nothing on disk changes.
"""

import gc
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mutants import ROOT

sys.path.insert(0, str(ROOT))  # the code of this very checkout, wherever the package is installed from

PYTEST = ["-q", "--assert=plain", "-o", "addopts=", "-m", "not nightly"]  # quick to start
PYTEST += [
    word for name in ("cacheprovider", "unraisableexception", "threadexception") for word in ("-p", f"no:{name}")
]
PRELOADED = ("torch", "transformers", "numpy", "scipy.stats", "hypothesis", "hypothesis.stateful", "pytest")


@dataclass(frozen=True)
class Trace:
    """What one test does on the healthy code: seconds, and the lines that it executes by file."""

    test: str
    seconds: float
    lines: dict[str, list[int]]


class LineTracer:
    """Pytest plugin: notes the lines of some files that each test executes, and which tests fail."""

    def __init__(self, files: list[str]):
        self.names = {str(ROOT / file): file for file in files}
        self.traces: list[Trace] = []
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember failures."""
        if report.failed:
            self.failed.add(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport  # a test file that cannot be loaded

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


class FirstFailure:
    """Pytest plugin: remembers the first test that fails."""

    failed = ""

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Run the test as usual."""
        yield

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure of set-up, call or tear-down."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport  # a test file that cannot be loaded


class Ordered(FirstFailure):
    """Runs the tests in the order given, each within its processor time."""

    def __init__(self, limits: dict[str, float]):
        self.limits = limits
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


class AlteredFile(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Loads one module from a text instead of its file."""

    def __init__(self, file: str, source: str):
        self.file, self.source = file, source
        self.module = file.removesuffix(".py").replace("/", ".")

    def plant(self) -> None:
        """From now on this process imports the text; at once, so that an error of the import is told from a test's."""
        sys.meta_path.insert(0, self)
        importlib.import_module(self.module)

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        """Answer for the altered module only."""
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, ROOT / self.file, loader=self)

    def get_source(self, name: str) -> str:
        """Give the altered text."""
        return self.source

    def loaded(self) -> bool:
        """Whether the tests got it."""
        module = sys.modules.get(self.module)
        return module is not None and module.__loader__ is self


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
        except Exception:
            traceback.print_exc()
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
