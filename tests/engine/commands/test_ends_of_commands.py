"""How commands end: readers that leave, full disks, SIGTERM; and bounds of files that would be long to make."""

import errno
import gzip
import os
import re
import signal
import subprocess
import sys
import time

import matplotlib.pyplot as plt
import pytest

from refimpl import InputError
from refimpl.core import reading
from refimpl.core.console import ended_by_signals
from refimpl.core.reading import read_lines, read_mapping, read_text
from refimpl.judging.tie_or_bug import plot_regrets
from simulator import plots
from simulator.settings.scenario import Scenario, Study
from simulator.studies.designs import build_sweep
from simulator.studies.sweeps import sweep

PYTHON = [sys.executable, "-m"]


@pytest.mark.parametrize(
    "command", ["simulator run -n 1 --all", "simulator run -n 1 --json", "refimpl generate --help"]
)
def test_a_reader_that_leaves_ends_a_command_quietly(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(PYTHON + command.split(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr
    assert "error" not in done.stderr


@pytest.mark.parametrize("command", ["raggedspec sim run", "refimpl generate", "simulator run"])
def test_an_interrupt_while_commands_are_loaded_is_quiet(tmp_path, command):
    """A module that every command imports sends the signal; in the background it may have been ignored before."""
    (tmp_path / "typer.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nsignal.raise_signal(signal.SIGINT)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([*PYTHON, *command.split()], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "interrupted\n")


LAZY = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    signal.raise_signal(signal.SIGINT)
finally:
    raise ModuleNotFoundError("Could not import module 'PreTrainedModel'")
"""


@pytest.mark.parametrize(
    "source", [LAZY, LAZY.replace("finally:", "except BaseException as e:").rstrip() + " from e\n"]
)
def test_an_interrupt_that_a_library_makes_another_error_is_quiet(tmp_path, source):
    """As transformers does, which loads its modules when they are asked for."""
    (tmp_path / "typer.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([*PYTHON, "refimpl"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "interrupted\n")


def test_an_error_that_no_interrupt_caused_is_shown(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('Could not import')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([*PYTHON, "refimpl"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: Could not import\n")


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", ["plot", "regrets", "sweep"])
def test_a_full_disk_leaves_nothing_and_names_the_file(tmp_path, monkeypatch, write):
    path = tmp_path / "x.png"
    writes = {
        "plot": lambda: plots.save(plt.figure().subplots(), path),
        "regrets": lambda: plot_regrets({}, path),
        "sweep": lambda: sweep(build_sweep(Scenario(study=Study(num_requests=1)), replications=1, grid={"seed": [0]}),
                               tmp_path),
    }  # fmt: skip
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full_disk)
    monkeypatch.setattr("refimpl.judging.tie_or_bug.regret_histogram", lambda _: plt.figure())
    monkeypatch.setattr("pyarrow.parquet.write_table", full_disk)
    with pytest.raises(InputError, match=r"cannot write .*(png|parquet): No space left on device"):
        writes[write]()
    plt.close("all")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_sigterm_ends_the_worker_processes_too(tmp_path):
    """No process of the group is left, and no file."""
    (tmp_path / "s.yaml").write_text("base: {study: {num_requests: 20000}}\nreplications: 99\ngrid: {seed: [0, 1]}")
    command = [*PYTHON, "simulator", "sweep", "s.yaml", "--out", "out", "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, env=environment)
    try:
        wait_until(lambda: len(processes_of(run.pid)) >= 3)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
        wait_until(lambda: not processes_of(run.pid))
    finally:
        for process in processes_of(run.pid):
            os.kill(process, signal.SIGKILL)
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


def test_a_signal_that_is_ignored_stays_so():
    """As SIGHUP is under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals(SystemExit):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def processes_of(session):
    """Processes of a session that still run."""
    found = subprocess.run(["ps", "-s", str(session), "-o", "pid=,stat="], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if not line.split()[1].startswith("Z")]


@pytest.mark.parametrize(
    ("bound", "content", "message"),
    [
        ("MAX_BYTES", b"0" * 5000, "unpacks to more than 1000 bytes"),
        ("MAX_LINES", b"\n" * 1001, "has more than 1000 lines"),
        ("MAX_LINE", b"a\n" + b"0" * 1000, ":2: has more than 1000 characters"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_long_files_are_refused_by_their_bound(tmp_path, monkeypatch, name, bound, content, message):
    monkeypatch.setattr(reading, bound, 1000)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(InputError, match=re.escape(message)):
        list(read_lines(tmp_path / name))


def test_documents_are_bounded(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_mapping(tmp_path / "a.json") == {"a": 1}
    with pytest.raises(InputError, match="has more than 7 bytes"):
        read_text(tmp_path / "a.json", limit=7)
