"""Servers that are several processes: they end, and what became of them is told."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.protocol import EngineLost, EngineSettings

SERVERS = f"{sys.executable} {Path(__file__).with_name('bad_servers.py')}"


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Path]:
    """A file with the number of a server's helper, which is ended after the test."""
    mark = tmp_path / "pid"
    yield mark
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(mark.read_text()), signal.SIGKILL)


def test_a_process_that_outlives_its_server_holds_nothing_up(helper: Path) -> None:
    engine = CommandEngine(f"{SERVERS} far-helper {helper}", 20.0)
    assert engine([[1]], EngineSettings(max_new_tokens=2))
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(timeout=20)
    assert not closing.is_alive()


def test_a_crash_is_told_while_a_helper_holds_the_output_open(helper: Path) -> None:
    engine = CommandEngine(f"{SERVERS} helper-and-crash {helper}", 30.0)
    with pytest.raises(EngineLost, match="with status 1: out of memory"):
        engine([[1]], EngineSettings())
    engine.close()


def test_a_server_may_end_what_it_has_started_when_its_stdin_closes(tmp_path: Path) -> None:
    engine = CommandEngine(f"{SERVERS} farewell {tmp_path / 'ended'}", 20.0)
    assert engine([[1]], EngineSettings(max_new_tokens=2))
    engine.close()
    assert (tmp_path / "ended").exists()


def test_a_server_that_does_not_end_is_killed() -> None:
    engine = CommandEngine(f"{SERVERS} stays", 20.0)
    process = engine._process
    engine.close()
    assert process is not None
    assert process.returncode == -signal.SIGKILL
