"""Calls in several processes."""

import subprocess
import sys

GROWING = """
import time
import numpy
from refimpl.core.processes import run_in_processes

def grow(index):
    if index > 1:  # joblib replaces a worker whose memory has grown by 300 MB since its first call
        time.grown = numpy.ones(45_000_000)
        time.sleep(1.1)
    return index

print(*run_in_processes(grow, [(index,) for index in range(6)], 2))
"""


def test_a_replaced_worker_ends_no_run_where_warnings_are_errors() -> None:
    child = subprocess.run([sys.executable, "-W", "error", "-c", GROWING], capture_output=True, text=True, timeout=600)
    assert child.stdout == "0 1 2 3 4 5\n", child.stderr
