"""The code stays short: functions of the packages fit on a screen, and each folder has a budget of lines."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("raggedspec", "refimpl", "simulator")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MEDIAN_LINES, NINE_OF_TEN_LINES, LONGEST_FUNCTION_LINES = 6, 17, 50
SPEC = importlib.util.spec_from_file_location("size", ROOT / "tools" / "size.py")
size = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(size)


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


@pytest.mark.parametrize("folder", size.LINES)
def test_folders_keep_their_budgets(folder):
    """Whoever needs more lines says in the commit what they are for."""
    _, most, _ = size.LINES[folder]
    assert most / 2 < size.lines_of(folder) <= most


def test_pages_commands_flags_and_settings_stay_few():
    assert size.words() <= size.WORDS[1]
    assert len(size.commands()) <= 22
    assert size.flags() <= 35
    assert size.settings() <= 28
    assert size.files_that_name(size.SETTING) <= 14


@pytest.mark.parametrize(
    ("bodies", "seen"),
    [([1] * 8 + [50], {"f.py:17 f8"}), ([6] * 9, {"median"}), ([1] * 4 + [17] * 2, {"90 %"}), ([5] * 8 + [16], set())],
)
def test_a_long_function_is_seen(tmp_path, bodies, seen):
    path = tmp_path / "f.py"
    path.write_text("".join(f"def f{i}():\n" + "    pass\n" * lines for i, lines in enumerate(bodies)))
    assert set(too_long([path])) == seen


def test_no_test_module_imports_another():
    modules = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert [node.module for node in imports if (node.module or "").split(".")[-1] in modules] == [], path
