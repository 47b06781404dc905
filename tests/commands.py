"""Calls of commands, within a test or as processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl.cli import main

ROOT = Path(__file__).parents[1]


def run_cli(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["refimpl", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


RUN = "import sys; from raggedspec.cli import main; sys.argv[0] = 'raggedspec'"


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
