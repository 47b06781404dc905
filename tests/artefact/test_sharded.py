"""Parts of a `verify` run, each in a process of its own: one result, as if it had been one run."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
PROMPTS = ["def area(", "import os", "x = [", "for i in", "class A"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS) + "\n")
    return path


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import sharded

    return sharded


def test_parts_give_what_one_run_gives(tool, prompts, tmp_path, monkeypatch):
    output = tmp_path / "all.json"
    options = ["--methods", "inplace,paged", "--batch-sizes", "2", "--max-new-tokens", "4", "--bitwise"]
    words = ["--parts", "2", "--prompts", str(prompts), "--output", str(output), "--", *options]
    monkeypatch.setattr(sys, "argv", ["sharded.py", *words])
    assert tool.main() == 0
    found = json.loads(output.read_text())
    assert [row["method"] for row in found["results"]] == ["inplace", "paged"]
    assert all(row["exact"] == row["bitwise"] == found["prompts"] == len(PROMPTS) for row in found["results"])
    assert found["meta"]["parts"] == 2
    assert "--parts 2" in found["meta"]["command"]


def test_rows_are_merged(tool):
    row = {"method": "inplace", "batch_size": 2, "exact": 1, "partial": 0.5, "num_rounds": 10, "kv_peak_bytes": 5}
    row |= {"mean_acceptance_length": 1.0, "violations": [], "divergences": [{"index": 1, "at": 3}]}
    other = row | {"exact": 1, "partial": 1.0, "num_rounds": 30, "kv_peak_bytes": 9, "mean_acceptance_length": 2.0}
    other |= {"violations": ["INV-1"], "divergences": [{"index": 0, "at": 7}]}
    reports = [{"prompts": 2, "results": [row], "meta": {"a": 1}}, {"prompts": 1, "results": [other], "meta": {"a": 2}}]
    found = tool.merged(reports, command="typed")
    assert found["prompts"] == 3
    assert found["meta"] == {"a": 1, "parts": 2, "command": "typed"}
    assert found["results"] == [
        {
            "method": "inplace", "batch_size": 2, "exact": 2, "partial": pytest.approx(2 / 3), "num_rounds": 40,
            "kv_peak_bytes": 9, "mean_acceptance_length": 1.75, "violations": ["INV-1"],
            "divergences": [{"index": 1, "at": 7}, {"index": 2, "at": 3}],
        }
    ]  # fmt: skip


def test_what_cannot_be_done_is_one_line_and_writes_nothing(tool, prompts, tmp_path, monkeypatch, capfd):
    output = tmp_path / "out.json"
    for words, options, message in (
        (("--parts", 0, "--prompts", prompts), (), "--parts must be from 1 to the number of prompts, 5, not 0"),
        (("--parts", 6, "--prompts", prompts), (), "--parts must be from 1 to the number of prompts, 5, not 6"),
        (("--parts", 1, "--prompts", tmp_path / "none"), (), "No such file"),
        (("--parts", 2, "--prompts", prompts), ("--methods", "nope"), "unknown method 'nope'"),
    ):
        argv = ["sharded.py", *words, "--output", output, "--", "--batch-sizes", 2, *options]
        monkeypatch.setattr(sys, "argv", [str(word) for word in argv])
        with pytest.raises(SystemExit) as ended:
            tool.main()
        assert (ended.value.code, output.exists()) == (2, False)
        error = capfd.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert "error: part 0 wrote nothing" in error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_parts_end_with_the_command(prompts, tmp_path, number):
    """Else a command that was stopped leaves processes at work on the device."""
    words = ["--parts", "2", "--prompts", prompts, "--output", tmp_path / "out.json", "--", "--max-new-tokens", "200"]
    argv = [sys.executable, "tools/sharded.py", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test run in the background ignores it
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    run, parts = subprocess.Popen(argv, cwd=ROOT, env=environment, preexec_fn=heard, **streams), []
    try:
        while run.poll() is None and len(parts := psutil.Process(run.pid).children()) < 2:
            time.sleep(0.05)
        run.send_signal(number)
        run.communicate(timeout=60)
        assert psutil.wait_procs(parts, timeout=60)[1] == []
    finally:
        for process in (run, *parts):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert run.returncode not in (0, None)
    assert not (tmp_path / "out.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"prompts.txt"}, "its folder is gone, too"
