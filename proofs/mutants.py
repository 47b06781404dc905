"""``python -m proofs.mutants [kernels|scheduling|MODULE …]``: change the code a little; do the proofs notice?

On demand, not part of `check.sh`. Each mutant changes one operator, constant, condition or statement of a kernel or of
the schedulers; a module of theirs may be named alone, as in ``room blocks``. It is killed when a claim fails, or when
the code breaks; the survivors are printed, with the share killed at the end.
"""

import ast
import contextlib
import copy
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from proofs.conformance import schedulers
from proofs.z3 import claims
from proofs.z3.obligation import prove
from refimpl import scheduling
from refimpl.core import kernels
from refimpl.scheduling import base, blocks, fifo, grouped, groups, pool, room, static

LIMIT_S = 120  # a mutant that runs longer does not end: killed
REQUIRED_SHARE = 0.9
SWAPS: dict[type, type] = {
    ast.LtE: ast.Lt,
    ast.Lt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Helpers of other value kinds, error texts, and options that no named scheduler uses.
SKIPPED = {
    "where",
    "check",
    "check_conservation",
    "_require",
    "default_aging_bound",
    "_check_waiting",
    "_cheaper",
    "group_key",
    "_best_key",
    "make_scheduler",
    "__init__",
}


@dataclass(frozen=True)
class Mutant:
    where: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every single change, as source text."""
    tree = ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name not in SKIPPED]
    for function in functions:
        for i, node in enumerate(ast.walk(function)):
            for change in changes(node):
                changed = copy.deepcopy(tree)
                twin = next(
                    n
                    for n in ast.walk(changed)
                    if getattr(n, "lineno", 0) == function.lineno and isinstance(n, ast.FunctionDef)
                )
                target = list(ast.walk(twin))[i]
                before = ast.unparse(target)
                change(target)
                yield Mutant(
                    f"{function.name}: {before}  →  {ast.unparse(target)}".replace("\n", " "), ast.unparse(changed)
                )


def changes(node: ast.AST) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield lambda n: n.ops.__setitem__(0, SWAPS[type(n.ops[0])]())
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        yield lambda n: setattr(n, "op", SWAPS[type(n.op)]())
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        yield lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.Call) and len(node.args) == 3 and getattr(node.func, "id", "") == "where":
        yield lambda n: n.args.__setitem__(slice(1, 3), [n.args[2], n.args[1]])
    if isinstance(node, ast.If | ast.IfExp):
        yield negate
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield drop


def drop(statement: ast.AST) -> None:
    statement.__class__ = ast.Pass


def negate(branch: ast.AST) -> None:
    branch.test = ast.UnaryOp(ast.Not(), branch.test)


def load(name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def kernels_survive(mutant: Mutant) -> bool:
    module = load("mutant_kernels", mutant.source)
    return all(prove(claim, second_opinion=False).ok for claim in claims.obligations(module))


class Planted(Loader):
    """Import the scheduling package with one of its modules replaced."""

    def __init__(self, name: str, source: str):
        self.name, self.source = name, source

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, self.name, "exec"), module.__dict__)


@contextlib.contextmanager
def scheduling_with(name: str, source: str) -> Iterator[ModuleType]:
    mine = {key: sys.modules.pop(key) for key in list(sys.modules) if key.startswith(scheduling.__name__)}
    finder = Planted(name, source)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module(scheduling.__name__)
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(mine)


def scheduling_survives(name: str, mutant: Mutant) -> bool:
    with (
        scheduling_with(name, mutant.source) as package,
        patch.object(schedulers, "scheduling", package),
    ):
        return all(v.ok for v in schedulers.all_verdicts())


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)


def survives(mutant: Mutant, judge: Callable[[Mutant], bool]) -> bool:
    try:
        with time_limit():
            return judge(mutant)
    except Exception:
        return False


MODULES = {m.__name__.rpartition(".")[2]: m for m in (base, blocks, fifo, grouped, groups, pool, room, static)}
Judge = Callable[[Mutant], bool]
SUBJECTS: dict[str, list[tuple[ModuleType, Judge]]] = {
    "kernels": [(kernels, kernels_survive)],
    **{name: [(module, partial(scheduling_survives, module.__name__))] for name, module in MODULES.items()},
}
SUBJECTS["scheduling"] = [pair for name in MODULES for pair in SUBJECTS[name]]


def main(subject: str) -> int:
    total = killed = 0
    for module, judge in SUBJECTS[subject]:
        source = Path(module.__file__).read_text()
        if survives(Mutant("unchanged", source), judge) is False:
            print(f"{subject}: the unchanged code fails")
            return 1
        for mutant in mutants(source):
            total += 1
            if survives(mutant, judge):
                print(f"  survives  {mutant.where}", flush=True)
            else:
                killed += 1
    print(f"{subject}: {killed} of {total} mutants killed ({killed / total:.0%})")
    return 0 if killed >= REQUIRED_SHARE * total else 1


if __name__ == "__main__":
    sys.exit(max([main(subject) for subject in sys.argv[1:] or ("kernels", "scheduling")]))
