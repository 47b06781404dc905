"""What mutation testing may change: every mutant of a source file is that file with one place altered."""

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

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
    """One changed place of a file.

    Attributes:
        file: relative to the root.
        lines: first and last line of the statement (of a compound one, its head) that was changed.
        line, change, number: what was changed, and the how many-eth change of that description on that line.
        source: the changed text.
        at_import: whether the statement runs when the module is imported.
    """

    file: str
    lines: tuple[int, int]
    line: int
    change: str
    number: int
    source: str
    at_import: bool

    @property
    def key(self) -> str:
        """Name that stays the same from run to run while the file does."""
        return f"{self.file}:{self.line} {self.change} #{self.number}"


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


@dataclass(frozen=True)
class Place:
    """A node that may change, the statement that holds it, and whether that runs at import."""

    node: ast.AST
    statement: ast.stmt | None = None
    at_import: bool = True


def places_below(place: Place) -> Iterator[Place]:
    """Everything below but annotations, decorators, what only words a message, and what only asserts."""
    node = place.node
    skipped = {id(getattr(node, name)) for name in ("annotation", "returns") if getattr(node, name, None) is not None}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        skipped |= {id(d) for d in node.decorator_list}
    for child in ast.iter_child_nodes(node):
        if id(child) in skipped or isinstance(child, ast.JoinedStr | ast.Raise) or _asserts(child):
            continue
        statement = child if isinstance(child, ast.stmt) else place.statement
        inside = isinstance(node, ast.FunctionDef | ast.Lambda) and (isinstance(child, ast.stmt) or node.body is child)
        below = Place(child, statement, place.at_import and not inside)
        yield below
        yield from places_below(below)


def _asserts(node: ast.AST) -> bool:
    """Whether it is the ``strict=True`` of a zip."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every mutant of a file, in order of its syntax tree."""
    text = (ROOT / file).read_text()
    seen: Counter[tuple[int, str]] = Counter()
    for number, place in enumerate(places_below(Place(ast.parse(text)))):
        for which, (description, _) in enumerate(changes_of(place.node)):
            tree = ast.parse(text)
            changed = next(p.node for i, p in enumerate(places_below(Place(tree))) if i == number)
            list(changes_of(changed))[which][1](changed)
            line = getattr(place.node, "lineno", 0)
            seen[line, description] += 1
            source = ast.unparse(ast.fix_missing_locations(tree))
            yield Mutant(
                file, head_lines(place.statement), line, description, seen[line, description], source, place.at_import
            )


def head_lines(statement: ast.stmt | None) -> tuple[int, int]:
    """Lines of a statement; of a compound one, those before its body."""
    assert statement is not None
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(last, statement.lineno)


def digest(file: str) -> str:
    """Short hash of a file's text."""
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:12]
