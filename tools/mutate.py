"""Mutation testing of the engine's core: change one operator, constant or call at a time, and see which test notices.

    python tools/mutate.py --sample 100                  a random hundred of all mutants
    python tools/mutate.py refimpl/kernels.py            all mutants of one file

Third-party packages are imported once; every mutant runs in a forked child that loads the mutated source instead of
the file, so nothing on disk changes. A mutant is *killed* when the tests fail, or do not end in time. On demand: a
survivor costs a whole run of the tests.
"""

import argparse
import ast
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [
    "refimpl/kernels.py",
    "refimpl/acceptance.py",
    "refimpl/sampling.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "refimpl/scheduling").glob("[!_]*.py")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "refimpl/layouts").glob("[!_]*.py")),
]
ENGINE, SCHEDULERS, CHANCE = "tests/property", "tests/stateful", "tests/statistical"
TESTS = {  # by the beginning of the file's name, the most telling tests first
    "refimpl/scheduling": [SCHEDULERS, ENGINE],
    "refimpl/layouts": [ENGINE],
    "refimpl/kernels": ["tests/unit/test_kernels.py", ENGINE, CHANCE],
    "refimpl": [CHANCE, ENGINE],
}
NOT_LOADED = 99  # status of a child that tested the file on disk
SLOWER_THAN_HEALTHY = 5  # a run that takes so many times the healthy run's time counts as endless
PRELOADED = ("torch", "transformers", "numpy", "scipy.stats", "hypothesis", "hypothesis.stateful", "pytest")

OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One changed place of a file."""

    file: str
    line: int
    change: str
    source: str


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: ``killed``, ``timeout`` or ``survived``."""

    file: str
    line: int
    change: str
    fate: str
    seconds: float


def changes_of(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Ways to change a node in place, each with a description."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        new = OPERATORS[type(node.ops[0])]
        yield f"{_name(node.ops[0])} → {new.__name__}", lambda n: n.ops.__setitem__(0, new())
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
        swapped = OPERATORS[type(node.op)]
        yield f"{_name(node.op)} → {swapped.__name__}", lambda n: setattr(n, "op", swapped())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield f"{_name(node.op)} dropped", _double
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"{node.value} → {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"{node.value} → {not node.value}", lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield f"{node.func.id} → {CALLS[node.func.id]}", lambda n: setattr(n.func, "id", CALLS[n.func.id])
    if isinstance(node, ast.If | ast.IfExp):
        yield "condition negated", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call dropped", lambda n: setattr(n, "value", ast.Constant(None))


def _name(node: ast.AST) -> str:
    return type(node).__name__


def _double(node: ast.AST) -> None:
    """Turn `not x` and `~x` into `x`, as a double negation."""
    assert isinstance(node, ast.UnaryOp)
    node.operand = ast.UnaryOp(node.op, node.operand)


def places_below(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may change: everything below but annotations, decorators, and what only words a message."""
    skipped = {id(getattr(node, name)) for name in ("annotation", "returns") if getattr(node, name, None) is not None}
    if isinstance(node, ast.FunctionDef):
        skipped |= {id(d) for d in node.decorator_list}
    for child in ast.iter_child_nodes(node):
        if id(child) not in skipped and not isinstance(child, ast.JoinedStr | ast.Raise):
            yield child
            yield from places_below(child)


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every mutant of a file, in order of its lines."""
    text = (ROOT / file).read_text()
    for number, node in enumerate(places_below(ast.parse(text))):
        for which, (description, _) in enumerate(changes_of(node)):
            tree = ast.parse(text)
            changed = next(n for i, n in enumerate(places_below(tree)) if i == number)
            list(changes_of(changed))[which][1](changed)
            source = ast.unparse(ast.fix_missing_locations(tree))
            yield Mutant(file, getattr(node, "lineno", 0), description, source)


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


def tests_for(file: str) -> list[str]:
    """Tests that a mutant of the file has to pass to survive."""
    return next(tests for beginning, tests in TESTS.items() if file.startswith(beginning))


def run_tests(mutant: Mutant, tests: list[str]) -> int:
    """Run in a child: exit status 0 when all tests pass."""
    import pytest

    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(ROOT)
    finder = MutantFinder(mutant)
    sys.meta_path.insert(0, finder)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]  # no other import hook
    status = int(pytest.main([*options, *tests]))
    loaded = sys.modules.get(finder.module)
    return status if loaded is not None and loaded.__loader__ is finder else NOT_LOADED


def judge(mutant: Mutant, timeout_s: float) -> Outcome:
    """Fork, run the tests on the mutant, and wait for the outcome."""
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setsid()
        status = 1
        try:
            status = run_tests(mutant, tests_for(mutant.file))
        finally:
            os._exit(status)
    fate = _wait(child, timeout_s)
    return Outcome(mutant.file, mutant.line, mutant.change, fate, round(time.perf_counter() - begun, 1))


def _wait(child: int, timeout_s: float) -> str:
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished and os.waitstatus_to_exitcode(status) == NOT_LOADED:
            raise SystemExit("the tests did not load the mutant")
        if finished:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def healthy_seconds(file: str) -> float:
    """Seconds that the tests take on the file as it is; they must pass.

    Raises:
        SystemExit: they fail.
    """
    healthy = judge(Mutant(file, 0, "nothing", (ROOT / file).read_text()), 1800)
    print(f"healthy   {healthy.seconds:6.1f} s  {file}", flush=True)
    if healthy.fate != "survived":
        raise SystemExit(f"the tests fail without any mutation: {' '.join(tests_for(file))}")
    return healthy.seconds


def preload() -> None:
    """Import what every child needs, but nothing of ours."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, OPTForCausalLM  # noqa: F401 (loads the code)


def main() -> None:
    """Judge the mutants and list the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--sample", type=int, help="judge so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the outcomes as JSON")
    arguments = parser.parse_args()
    mutants = [mutant for file in arguments.files for mutant in mutants_of(file)]
    chosen = mutants
    if arguments.sample and arguments.sample < len(mutants):
        chosen = random.Random(arguments.seed).sample(mutants, arguments.sample)
    print(f"{len(mutants)} mutants, {len(chosen)} of them judged", flush=True)
    preload()
    timeouts = {file: SLOWER_THAN_HEALTHY * healthy_seconds(file) for file in sorted({m.file for m in chosen})}
    outcomes = []
    for mutant in chosen:
        outcomes.append(judge(mutant, timeouts[mutant.file]))
        done = outcomes[-1]
        print(f"{done.fate:9} {done.seconds:6.1f} s  {done.file}:{done.line}  {done.change}", flush=True)
    report(outcomes, arguments.output)


def report(outcomes: list[Outcome], output: Path | None) -> None:
    """Print the share of killed mutants and the survivors."""
    survivors = [o for o in outcomes if o.fate == "survived"]
    killed = len(outcomes) - len(survivors)
    print(f"killed {killed} of {len(outcomes)} ({100 * killed / max(1, len(outcomes)):.1f} %)")
    for survivor in survivors:
        print(f"  {survivor.file}:{survivor.line}  {survivor.change}")
    if output:
        output.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")


if __name__ == "__main__":
    main()
