"""Calls in several processes, `refimpl/core/processes.py`."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from refimpl.core.interrupts import ENDING
from refimpl.core.processes import HAS_MASKS, run_in_processes

holds_signals = pytest.mark.skipif(not HAS_MASKS, reason="no signals to hold back")

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


@holds_signals
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


START = """
import os, signal, sys, time
from joblib.externals.loky.backend.process import LokyProcess
from refimpl.core.console import one_line_errors
from refimpl.core.processes import run_in_processes

start, started = LokyProcess.start, []

def start_and_signal(process):
    start(process)
    time.sleep(2)  # by then it waits for its first call
    started.append(process)
    if len(started) == int(sys.argv[1]):
        os.kill(os.getpid(), int(sys.argv[2]))

LokyProcess.start = start_and_signal
with one_line_errors():
    print(*run_in_processes(time.sleep, [(60,), (60,)], 2))
"""


@holds_signals
@pytest.mark.parametrize(("number_started", "number"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (1, signal.SIGHUP)])
def test_a_command_that_is_ended_while_workers_start_waits_for_none_of_them(tmp_path, number_started, number):
    """A worker that joblib had not noted was waited for until it had been idle for five minutes."""
    (tmp_path / "start.py").write_text(START)
    command = [sys.executable, tmp_path / "start.py", str(number_started), str(int(number))]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # SIGHUP is ignored under nohup
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, preexec_fn=heard)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


@holds_signals
def test_workers_hold_back_ctrl_c_alone():
    held = list(run_in_processes(signal.pthread_sigmask, [(signal.SIG_BLOCK, ()), (signal.SIG_BLOCK, ())], 2))
    assert held == [{signal.SIGINT}, {signal.SIGINT}]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, *ENDING}
