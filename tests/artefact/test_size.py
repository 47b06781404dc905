"""The code stays short: functions of the packages fit on a screen, and each folder has a budget of lines."""

import ast
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("raggedspec", "refimpl", "simulator")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MEDIAN_LINES, NINE_OF_TEN_LINES, LONGEST_FUNCTION_LINES = 6, 17, 50
# Whoever needs more lines of Python says in the commit what they are for.
LINES = {"refimpl": 27_200, "simulator": 12_600, "tests": 30_200, "tools": 6_300, "proofs": 5_950}


def lengths(files):
    """Lines of every function from its `def` to its end, docstring included, by place."""
    return {
        f"{path.name}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def too_long(files):
    """Functions above the limit of one, and quantiles above the limit of all."""
    found = lengths(files)
    shares = dict(zip(("median", "90 %"), np.quantile([*found.values()], [0.5, 0.9], method="lower"), strict=True))
    bounds = {"median": MEDIAN_LINES, "90 %": NINE_OF_TEN_LINES} | dict.fromkeys(found, LONGEST_FUNCTION_LINES)
    return {name: int(lines) for name, lines in (found | shares).items() if lines > bounds[name]}


def test_functions_are_short():
    assert len(lengths(FILES)) > 1000
    assert too_long(FILES) == {}


def lines(folder):
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", LINES)
def test_folders_keep_their_budgets(folder):
    assert LINES[folder] / 2 < lines(folder) <= LINES[folder]


@pytest.mark.parametrize(
    ("bodies", "seen"),
    [([1] * 8 + [50], {"f.py:17 f8"}), ([6] * 9, {"median"}), ([1] * 4 + [17] * 2, {"90 %"}), ([5] * 8 + [16], set())],
)
def test_a_long_function_is_seen(tmp_path, bodies, seen):
    path = tmp_path / "f.py"
    path.write_text("".join(f"def f{i}():\n" + "    pass\n" * lines for i, lines in enumerate(bodies)))
    assert set(too_long([path])) == seen
