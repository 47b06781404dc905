"""Golden runs are as they were; see tools/golden.py for how to record them anew when behaviour changes on purpose."""

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl.core.config import LAYOUTS, SCHEDULERS

ROOT = Path(__file__).parent.parent.parent
ENGINE = json.loads((ROOT / "tests/golden/engine.json").read_text())
SIMULATOR = json.loads((ROOT / "tests/golden/simulator.json").read_text())


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module


@pytest.mark.parametrize("name", ["engine", "simulator"])
def test_runs_are_as_they_were(name):
    command = [sys.executable, "tools/golden.py", "--check", name]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_files_say_of_themselves_what_is_lossless():
    """Exact rules give the tokens of one-at-a-time decoding, by any layout and schedule."""
    for rule in ("greedy", "coupled"):
        cases = [name for name in ENGINE if name.endswith(rule) and "bundled" not in name]
        methods = len(LAYOUTS) * len(SCHEDULERS)
        assert len(cases) == 1 + methods + 2, "the oracle, layouts × schedulers, recorded rounds"
        assert {ENGINE[name]["tokens"] for name in cases} == {ENGINE[f"autoregressive {rule}"]["tokens"]}


def test_the_runs_do_what_they_are_there_for():
    moved = {name: case["moves"] for name, case in ENGINE.items() if "+" in name}
    assert all((moves == 0) == ("inplace" in name or "paged" in name) for name, moves in moved.items())
    assert all(case["grouped"] > 5 for name, case in ENGINE.items() if name.startswith("groups"))
    assert ENGINE["lazy compaction"]["moves"] < ENGINE["masked+fifo greedy"]["moves"]
    assert len(SIMULATOR) == 10


def test_a_changed_token_or_number_is_seen(tool):
    golden = tool("golden")
    changed = copy.deepcopy(ENGINE)
    changed["aging"]["tokens"] = "0" * 16
    changed["one row"]["moves"] += 1
    del changed["cancelled"]
    found = golden.differences(ENGINE, changed)
    assert [line.partition(":")[0] for line in found] == ["aging", "cancelled", "one row"]
    assert f"moves {ENGINE['one row']['moves']} -> {changed['one row']['moves']}" in found[2]
    assert json.loads(golden.as_text(ENGINE)) == ENGINE


def test_digests_see_tokens_and_ten_digits(tool):
    digest = tool("golden_digest").digest
    assert digest([1, 2]) != digest([2, 1])
    assert digest([0.1 + 0.2]) == digest([0.3])
    assert digest([0.3]) != digest([0.3 + 1e-9])
