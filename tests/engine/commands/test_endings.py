"""How commands end: readers that leave, Ctrl-C, SIGTERM, full disks and no memory; and the bound of files."""

import errno
import gzip
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial

import matplotlib.pyplot as plt
import psutil
import pytest
import torch
import typer

from refimpl import InputError
from refimpl.cli import main
from refimpl.core import reading
from refimpl.core.invariants import InvariantViolation
from refimpl.core.reading import read_lines, read_mapping, read_text
from simulator import plots
from simulator.settings.scenario import Scenario, Study
from simulator.studies.designs import build_sweep
from simulator.studies.sweeps import sweep

PYTHON = [sys.executable, "-m"]
PATHS = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("command", ["simulator run -n 1 --all", "refimpl generate --help", "refimpl"])
def test_a_reader_that_leaves_ends_a_command_quietly(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(PYTHON + command.split(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("program", ["raggedspec", "refimpl", "simulator"])
def test_an_interrupt_while_commands_are_loaded_is_one_word(tmp_path, program):
    """A module that every command imports sends the signal; in the background it may have been ignored before."""
    (tmp_path / "typer.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nsignal.raise_signal(signal.SIGINT)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([*PYTHON, program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "interrupted\n")


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, ""), (signal.SIGINT, "interrupted\n")])
def test_signals_end_the_worker_processes_too(tmp_path, number, word):
    """A terminal sends Ctrl-C to all of them. No process of the group is left, and no file."""
    (tmp_path / "s.yaml").write_text("base: {study: {num_requests: 20000}}\nreplications: 99\ngrid: {seed: [0, 1]}")
    command = [*PYTHON, "simulator", "sweep", "s.yaml", "--out", "out", "--workers", "2"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test run in the background ignores it
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "preexec_fn": heard}
    run = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, env=PATHS, **streams)
    try:
        wait_until(lambda: sum(each.cpu_times().user > 1 for each in processes_of(run.pid)) >= 2)  # both have begun
        os.killpg(run.pid, number) if number == signal.SIGINT else run.send_signal(number)
        assert (run.communicate(timeout=60)[1], run.returncode) == (word, 128 + number)
        wait_until(lambda: not processes_of(run.pid))
    finally:
        for process in processes_of(run.pid):
            process.kill()
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def processes_of(session):
    """Processes of a session that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return found


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", ["plot", "sweep"])
def test_a_full_disk_leaves_nothing_and_names_the_file(tmp_path, monkeypatch, write):
    design = build_sweep(Scenario(study=Study(num_requests=1)), replications=1, grid={"seed": [0]})
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full_disk)
    monkeypatch.setattr("pyarrow.parquet.write_table", full_disk)
    with pytest.raises(InputError, match=r"cannot write .*(png|parquet): No space left on device"):
        plots.save(plt.figure().subplots(), tmp_path / "x.png") if write == "plot" else sweep(design, tmp_path)
    plt.close("all")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def end_of(monkeypatch, error):
    def fail():
        if error is None:
            torch.empty(2**50)
        raise error

    monkeypatch.setattr("sys.argv", ["raggedspec"])
    command = typer.Typer()
    command.command()(fail)
    with pytest.raises(SystemExit) as end:
        main(command)
    return end.value.code


@pytest.mark.parametrize("error", [
    None,
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
])  # fmt: skip
def test_memory_that_is_not_there_is_one_line(capsys, monkeypatch, error):
    assert end_of(monkeypatch, error) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: out of memory: ")
    assert "kv_memory_gib" in line


def test_a_broken_invariant_has_an_exit_code_and_other_errors_keep_their_traceback(capsys, monkeypatch):
    violation = InvariantViolation("INV-3", row=2, expected=4, found=5)
    assert end_of(monkeypatch, violation) == 3
    assert capsys.readouterr().err.startswith("invariant violated: INV-3")
    copy = pickle.loads(pickle.dumps(violation))  # from a worker
    assert (str(copy), copy.row, copy.expected) == (str(violation), 2, 4)
    with pytest.raises(RuntimeError, match="shapes differ"):
        end_of(monkeypatch, RuntimeError("shapes differ"))


@pytest.mark.parametrize(
    ("bound", "content", "message"),
    [
        ("MAX_BYTES", b"0" * 5000, "unpacks to more than 1000 bytes"),
        ("MAX_LINE", b"a\n" + b"0" * 1000, ":2: has more than 1000 characters"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_long_files_are_refused_by_their_bound(tmp_path, monkeypatch, name, bound, content, message):
    monkeypatch.setattr(reading, bound, 1000)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(InputError, match=message):
        list(read_lines(tmp_path / name))


def test_documents_are_bounded(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_mapping(tmp_path / "a.json") == {"a": 1}
    with pytest.raises(InputError, match="has more than 7 bytes"):
        read_text(tmp_path / "a.json", limit=7)
