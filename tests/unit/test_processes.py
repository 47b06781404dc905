"""Calls in several processes, `refimpl/core/processes.py`."""

import subprocess
import sys

GROW = """
import time

held = []

def grow(index):
    held.append(b"x" * (400_000_000 if held else 1))  # what a worker holds after its first call is its measure
    time.sleep(1.1)  # and is looked at once a second
    return index
"""
CALL = """
from grow import grow
from refimpl.core.processes import run_in_processes

print(*run_in_processes(grow, [(index,) for index in range(6)], 2))
"""


def test_workers_that_grow_are_replaced_also_where_warnings_are_errors(tmp_path):
    (tmp_path / "grow.py").write_text(GROW)
    (tmp_path / "call.py").write_text(CALL)
    command = [sys.executable, "-W", "error", tmp_path / "call.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 1 2 3 4 5\n"), done.stderr
