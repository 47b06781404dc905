"""Every script in tools says what it does when asked, and does nothing then."""

import importlib
import runpy
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from refimpl.bench.passes import PassBench
from refimpl.core.config import make_config
from refimpl.pairs.random_pairs import random_pair

ROOT = Path(__file__).parents[2]
START = 'if __name__ == "__main__":'
TOOLS = sorted(path for path in (ROOT / "tools").rglob("*.py") if START in path.read_text())
MADE = ("README.md", "docs", "notebooks", "tests/golden", "simulator/data")  # what the scripts write


@pytest.fixture
def budget_curve(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("budget_curve")


@pytest.fixture
def pass_widths(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("pass_widths")


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
    assert {"planted", "notebooks", "reference", "models_table", "ragged_picture"} <= {path.stem for path in TOOLS}


def test_an_error_that_is_not_there_is_not_planted(monkeypatch):
    message = run(monkeypatch, ROOT / "tools" / "planted.py", "no such error")
    assert str(message).startswith("no error is named no such error; there are: ")


def test_a_notebook_that_is_not_there_is_not_made(monkeypatch, capsys):
    assert run(monkeypatch, ROOT / "tools" / "notebooks.py", "nothing") == 2
    assert "no notebook nothing; there are: " in capsys.readouterr().err


def test_budgets_are_compared_turn_by_turn(budget_curve):
    """A machine that is twice as slow in one turn makes no interval wider."""
    fast = np.array([1.0, 2.0, 1.5])
    speeds = {(8, "fixed 0"): fast, (8, "fixed 3"): 2 * fast, (8, "by_load"): 2.2 * fast, (16, "fixed 0"): fast}
    found = budget_curve.compared(speeds)[8, "by_load"]
    assert found["best"] == "fixed 3"
    assert found["over_none"] == pytest.approx((2.2, 2.2, 2.2))
    assert found["over_best"] == pytest.approx((1.1, 1.1, 1.1))
    assert budget_curve.compared(speeds)[16, "fixed 0"]["best"] == "fixed 0"


def test_budgets_of_the_curve_are_settings_of_the_engine(budget_curve):
    rounds = [(rows, [1.0 + k * rows / 8 for k in range(6)]) for rows in (1, 8, 32)]
    speeds = [(1, [1.0, 1.5, 1.8, 1.8, 1.9, 1.7]), (8, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]), (32, [1.0] * 6)]
    budgets = budget_curve.find_budgets(rounds, speeds)
    assert budgets["by_load"]["drafts_by_load"] == [(1, 4), (8, 0)]
    assert budgets["row_rate"]["draft_cost"] == 1.0
    configs = {name: make_config(method="inplace", **settings) for name, settings in budgets.items()}
    assert {name: config.drafting.draft_budget for name, config in configs.items()} == {
        name: "fixed" if name.startswith("fixed") else name for name in budgets
    }


def test_passes_of_a_width_are_compared_turn_by_turn(pass_widths, monkeypatch):
    """Where a pass takes a second and one more for each token, and the machine is slower in every other turn."""
    rows, fed = 4, []

    def seconds(self, run):
        (counts,) = run.args
        fed.append(sum(counts) if run.func.__name__ == "packed" else max(counts) * len(counts))
        slowness = 1 + 2 * ((len(fed) - 1) // len(pass_widths.PASSES) % 2)
        return (1 + fed[-1]) * slowness

    monkeypatch.setattr(PassBench, "seconds", seconds)
    found = pass_widths.line(random_pair(), "paged", rows)
    in_order = [fed[i : i + 3] for i in range(0, len(fed), 3)][pass_widths.WARM_UPS :]
    turns = [turn[::-1] if i % 2 else turn for i, turn in enumerate(in_order)]
    assert len(turns) == pass_widths.REPEATS
    assert {(least, wide % rows) for _, wide, least in turns} == {(rows, 0)}
    assert (found["layout"], found["batch_size"]) == ("paged", rows)
    assert found["tokens_ratio"] == statistics.median(wide / packed for packed, wide, _ in turns)
    gains = [(1 + wide) / (1 + packed) for packed, wide, _ in turns]
    assert (found["gain"], found["gain_min"], found["gain_max"]) == (statistics.median(gains), min(gains), max(gains))
    assert found["share_of_one_token"] == statistics.median((1 + least) / (1 + wide) for _, wide, least in turns)
    assert found["one_token_ms"] < found["packed_ms"] < found["rectangle_ms"]


def test_a_random_target_has_its_width(pass_widths):
    pair = pass_widths.random_target(256, 2)
    assert pair.target.model.config.hidden_size == 256
    assert (pair.target.kv_shape.num_layers, pair.draft.kv_shape.num_layers) == (2, 1)
    assert (pair.target.kv_shape.num_kv_heads, pair.target.kv_shape.key_dim) == (2, 64)
