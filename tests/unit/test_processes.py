"""Calls in several processes, `refimpl/core/processes.py`."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

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


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signals to hold back")
def test_ctrl_c_while_workers_start_is_one_word(tmp_path):
    """A terminal sends it to all processes of the command, those among them that are just importing."""
    command = [sys.executable, "-m", "simulator", "run", "example", "--replications", "80", "--workers", "2"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test run in the background ignores it
    session = {"start_new_session": True, "preexec_fn": heard}
    with subprocess.Popen(command, **streams, text=True, **session, cwd=tmp_path) as run:
        # two workers, and two trackers of what processes share
        while run.poll() is None and len(psutil.Process(run.pid).children()) < 4:
            time.sleep(0.01)
        time.sleep(0.15)  # they import
        os.killpg(run.pid, signal.SIGINT)
        told = run.communicate(timeout=300)[1]
    assert (run.returncode, told) == (128 + signal.SIGINT, "interrupted\n")
