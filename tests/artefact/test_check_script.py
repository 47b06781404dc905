"""`proofs/check.sh`: what it counts, and that it ends with all that it has started."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "proofs" / "check.sh"


def script(tmp_path, body, *options):
    """The script, begun from another folder, with a program of this text for Python; it may be interrupted."""
    python = tmp_path / "any python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "TMPDIR": str(tmp_path), "ALSO_LEFT_OUT": "dreams"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    try:
        return subprocess.Popen([SCRIPT, *options], cwd=tmp_path, env=environment, start_new_session=True, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ('echo "x: 2 claims checked, 0 failed"', 0, "14 claims checked, 0 failed"),
        ('echo "x: 2 claims checked, 1 failed"; exit 1', 1, "14 claims checked, 7 failed"),
        ('echo "x: 2 claims checked, 0 failed"; exit 1', 1, "14 claims checked, 7 failed"),
        ('echo "x: 0 claims checked, 0 failed"', 1, "0 claims checked, 7 failed"),
        ("true", 1, "0 claims checked, 7 failed"),
    ],
)
def test_a_stage_that_fails_dies_or_claims_nothing_is_a_failure(body, status, told, tmp_path):
    process = script(tmp_path, body, "--pip-only")
    said, _ = process.communicate(timeout=60)
    assert f"s; {told}; left out: " in said.splitlines()[-1]
    assert said.endswith(" claims that need Coq and Spin (make proof-tools), dreams\n")
    assert process.returncode == status


def test_an_option_that_does_not_exist_is_told(tmp_path):
    process = script(tmp_path, 'echo "x: 2 claims checked, 0 failed"', "--pip")
    assert process.communicate(timeout=60)[0] == "usage: proofs/check.sh [--pip-only], not --pip\n"
    assert process.returncode == 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_goes_on_when_it_is_asked_to_end(number, status, tmp_path):
    process = script(tmp_path, f"echo $$ > '{tmp_path}/begun'; exec sleep 600", "--pip-only")
    begun = tmp_path / "begun"
    while not begun.exists() or not begun.read_text().strip():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == status
    left = subprocess.run(
        ["ps", "-o", "stat=", "-p", begun.read_text().strip()], capture_output=True, text=True, check=False
    )
    assert not left.stdout.strip() or left.stdout.startswith("Z")  # of which only the entry is left
    assert {path.name for path in tmp_path.iterdir()} == {"any python", "begun"}
