"""The GPU script: its commands can be given, and each ends within its minutes or is stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from refimpl.cli import app

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def gpu(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import gpu

    return gpu


def script(*words, out):
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(out)}
    return subprocess.run(
        ["bash", str(ROOT / ".ci" / "gpu"), *words], capture_output=True, text=True, check=False, env=environment
    )


def test_a_dry_run_prints_what_is_asked_for_in_order_and_writes_nothing(gpu, tmp_path):
    found = script("--dry-run", "--only", "tests,first", out=tmp_path)
    assert found.returncode == 0, found.stderr
    assert [line.partition(",")[0] for line in found.stdout.splitlines()] == ["first", "tests"]
    assert f"{tmp_path}/first-gpu.json --pair qwen3" in found.stdout
    assert list(tmp_path.iterdir()) == []
    refused = script("--only", "first,nothing", out=tmp_path)
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (2, ".ci/gpu: error: no command is named nothing")


def test_the_engine_knows_every_command_and_its_options(gpu, tmp_path):
    known, names = typer.main.get_command(app), []
    for command in gpu.commands():
        interpreter, module, *words = command.argv(tmp_path)
        if (interpreter, module) == ("-m", "refimpl"):
            known.commands[words[0]].make_context(words[0], words[1:])
            names.append(command.name)
        else:
            assert (ROOT / (interpreter if interpreter != "-m" else command.argv(tmp_path)[-1])).exists()
    assert len(set(names)) == len(names) > 9


@pytest.mark.parametrize(("minutes", "code"), [(1, 3), (0.002, 124)])
def test_a_command_ends_or_is_stopped(gpu, monkeypatch, tmp_path, minutes, code):
    (tmp_path / "c.py").write_text(
        f"import time; print('begun'); time.sleep({0 if code == 3 else 60}); raise SystemExit(3)"
    )
    command = gpu.Command("c", minutes, "{out}/c.py")
    assert gpu.run(command, tmp_path) == code
    monkeypatch.setattr(gpu, "commands", lambda: [command])
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setenv("OUT", str(tmp_path))
    assert gpu.main() == 1


def test_a_report_made_without_git_names_the_commit(gpu, tmp_path):
    for commit in ("unknown", "abc"):
        (tmp_path / "r.json").write_text(json.dumps({"meta": {"commit": commit}}))
        gpu.name_commit(tmp_path / "r.json", "def")
        assert json.loads((tmp_path / "r.json").read_text())["meta"]["commit"] == {"unknown": "def"}.get(commit, commit)


def test_steps_can_be_timed_without_a_gpu(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import step_times

    few = {"ROWS": [2], "WIDTHS": [64], "LAYERS": ["transformers", "lean", "kernels"], "SMALL": 2, "REPLAYS": 1}
    for name, value in few.items():
        monkeypatch.setattr(step_times, name, value)
    monkeypatch.setattr(sys, "argv", ["step_times.py", str(tmp_path / "t.json")])
    assert step_times.main() == 0
    found = json.loads((tmp_path / "t.json").read_text())["sections"]
    assert [row["kernel"] for row in found["gap"]] == ["add_", "rms_norm", "index_copy_"]
    assert [row["queries"] for row in found["attention"]] == [1, 6]
    assert found["steps"].pop() == {"layers": "kernels", "refused": found["equal"][1]["models"][0]}
    cases = [(row["layers"], row["role"], row["queries"]) for row in found["steps"] if row["kernels"] and row["us"] > 0]
    passes = [("draft", 1), ("target", 1), ("target", 6)]
    assert cases == [(layers, *each) for layers in ("transformers", "lean") for each in passes]
    assert len(capsys.readouterr().out.splitlines()) == 3 + 2 + 2 + 7
