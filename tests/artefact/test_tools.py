"""Every script in tools says what it does when asked, and does nothing then."""

import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from refimpl.core.config import make_config

ROOT = Path(__file__).parents[2]
START = 'if __name__ == "__main__":'
TOOLS = sorted(path for path in (ROOT / "tools").rglob("*.py") if START in path.read_text())
MADE = ("README.md", "docs", "notebooks", "tests/golden", "simulator/data")  # what the scripts write


@pytest.fixture
def tool(monkeypatch):
    """A script by its name, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module


def made():
    """Files that scripts make → when each was written."""
    roots = [ROOT / name for name in MADE]
    files = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    return {path: path.stat().st_mtime_ns for path in files}


def run(monkeypatch, path, *arguments):
    """Run a script in this process; its exit code, or message."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(path), run_name="__main__")
    return stopped.value.code


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: str(path.relative_to(ROOT / "tools")))
def test_help_helps_and_does_nothing_else(path, monkeypatch, capsys):
    before = made()
    assert run(monkeypatch, path, "--help") == 0
    assert capsys.readouterr().out.startswith("usage: ")
    assert made() == before


def test_scripts_are_found():
    assert {"planted", "notebooks", "reference", "models_table"} <= {path.stem for path in TOOLS}


def test_an_error_that_is_not_there_is_not_planted(monkeypatch):
    message = run(monkeypatch, ROOT / "tools" / "planted.py", "no such error")
    assert str(message).startswith("no error is named no such error; there are: ")


def test_a_notebook_that_is_not_there_is_not_made(monkeypatch, capsys):
    assert run(monkeypatch, ROOT / "tools" / "notebooks.py", "nothing") == 2
    assert "no notebook nothing; there are: " in capsys.readouterr().err


def test_budgets_are_compared_turn_by_turn(tool):
    """A machine that is twice as slow in one turn makes no interval wider."""
    fast = np.array([1.0, 2.0, 1.5])
    speeds = {(8, "fixed 0"): fast, (8, "fixed 3"): 2 * fast, (8, "by_load"): 2.2 * fast, (16, "fixed 0"): fast}
    *_, found, alone = tool("studies").compared(speeds)
    assert (found["best"], alone["best"]) == ("fixed 3", "fixed 0")
    assert found["over_none"] == pytest.approx((2.2, 2.2, 2.2))
    assert found["over_best"] == pytest.approx((1.1, 1.1, 1.1))


def test_budgets_of_the_study_are_settings_of_the_engine(tool):
    rounds = [(rows, [1.0 + k * rows / 8 for k in range(6)]) for rows in (1, 8, 32)]
    speeds = [(1, [1.0, 1.5, 1.8, 1.8, 1.9, 1.7]), (8, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]), (32, [1.0] * 6)]
    budgets = tool("studies").find_budgets(rounds, speeds)
    assert budgets["by_load"]["draft_budget"] == "by_load:1=4,8=0"
    configs = {name: make_config(method="inplace", **settings) for name, settings in budgets.items()}
    assert {name: config.drafting.budget_name for name, config in configs.items()} == {
        name: "fixed" if name.startswith("fixed") else name for name in budgets
    }


def test_the_papers_code_is_compared_repeat_by_repeat(tool):
    """Tokens behind a stop count for nobody, a wrong token costs its row, and ratios are those of one repeat."""
    paper_code = tool("paper_code")
    seconds = iter(np.arange(1.0, 100.0))

    def decoder(*outputs):
        return lambda prompts, batch_size: (outputs, next(seconds))

    engines = {"paper eqspec": decoder([5, 0, 7], [6, 6]), "eqspec": decoder([5, 0], [6, 1])}
    rows = paper_code.with_ratios(paper_code.measure(engines, ["a", "b"], [[5, 0], [6, 6]], stop=0))
    theirs, ours = rows[:2]
    assert (theirs["exact"], ours["exact"]) == (2, 1)
    assert np.allclose(theirs["tokens_per_cpu_s"], 4 / np.array([1, 16, 17]))
    assert np.allclose(ours["ratios"], np.array([1, 16, 17]) / [2, 15, 18])
