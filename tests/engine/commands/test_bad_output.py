"""Files that commands write, and what they say, when something goes wrong on the way."""

import errno
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

import raggedspec.cli
import refimpl.cli
import simulator.cli
from refimpl.cli import main
from refimpl.core.files import write_whole
from refimpl.core.invariants import InvariantViolation
from refimpl.core.option_groups import as_file, as_folder
from refimpl.judging.equivalence import verify
from tests.commands import run_cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompts", "p.txt", "--output", "p.txt"), "cannot write p.txt: another option reads or writes it"),
        (("--prompts", "p.txt", "--trace", "./p.txt"), "cannot write p.txt: another option reads or writes it"),
        (("--trace", "new", "--output", "new"), "cannot write new: another option reads or writes it"),
        (("--output", "-"), "cannot write -: standard output is /dev/stdout"),
        (("--limit", "1", "--max-new-tokens", "1", "--trace", "/dev/full"), "No space left on device"),
    ],
)
def test_no_file_is_lost_or_half_written(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("import os\n")
    code, output = run_cli(monkeypatch, capsys, "generate", *arguments)
    assert code == 2
    assert message in output.err.splitlines()[-1]
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("p.txt", "import os\n")]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("generate", "--output"),
        ("generate", "--prompts"),
        ("verify", "--output"),
        ("bench", "--output"),
        ("conformance --engine x:y", "--output"),
        ("sim trace", "--out"),
        ("sim compare example -s method=exspec --attribute tokens_per_s", "--plot"),
        ("sim validate trace.ndjson --calibration cpu/tiny", "--out"),
    ],
)
def test_an_empty_path_is_called_empty(monkeypatch, capsys, words, option):
    """To `Path` it is the folder that one is in."""
    monkeypatch.setattr("sys.argv", ["raggedspec", *words.split(), option, ""])
    with pytest.raises(SystemExit) as stopped:
        raggedspec.cli.main()
    assert (stopped.value.code, capsys.readouterr().err) == (2, f"error: {option}: must name a file, and is empty\n")


@pytest.mark.parametrize("application", [refimpl.cli.app, simulator.cli.app])
def test_every_option_of_a_path_says_whether_it_is_a_file(application):
    groups = [application, *(group.typer_instance for group in application.registered_groups)]
    commands = [command.callback for group in groups for command in group.registered_commands]
    hints = [hint for command in commands for hint in get_type_hints(command, include_extras=True).values()]
    declared = [get_args(hint)[:2] for hint in hints if get_origin(hint) is Annotated]
    parsers = [option.parser for kind, option in declared if of_path(kind)]
    assert len(parsers) > 10
    assert {*parsers} == {as_file, as_folder}


def of_path(kind):
    return Path in (kind, *get_args(kind))


def test_a_pipe_without_a_name_is_written_to():
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        with os.fdopen(write, "w"):
            write_whole(f"/dev/fd/{write}", ["a", "b"])
        assert reader.read() == "a\nb\n"


@pytest.mark.parametrize("name", ["/dev/stdout", "out.txt"])
def test_no_file_takes_the_place_of_standard_output(tmp_path, name):
    code = f"from refimpl.core.files import write_whole; write_whole({name!r}, ['lost'])"
    with open(tmp_path / "out.txt", "w") as out:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
    assert f"InputError: cannot write {name}: standard output goes to it" in done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.txt", "")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--acceptance", "forced:trace:p.txt"),
        ("anatomy", "--acceptance", "trace:p.txt"),
    ],
)
def test_no_benchmark_writes_over_what_it_reads(monkeypatch, capsys, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("import os\n")
    code, output = run_cli(monkeypatch, capsys, *arguments, "--output", "p.txt")
    assert (code, output.err) == (2, "error: cannot write p.txt: another option reads or writes it\n")


def test_violations_survive_a_process_boundary():
    violation = InvariantViolation("INV-3", row=2, expected=4, found=5)
    copy = pickle.loads(pickle.dumps(violation))
    assert (str(copy), vars(copy)) == (str(violation), vars(violation))


def test_help_in_a_locale_of_ascii_alone():
    ascii_ = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    for command in ("generate", "bench"):
        arguments = [sys.executable, "-m", "refimpl", command, "--help"]
        done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | ascii_)
        assert (done.returncode, done.stderr) == (0, "")
        assert "--help" in done.stdout


class NoReader(io.TextIOWrapper):
    """Standard output whose reader has left."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8")

    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(
    ("command", "name"), [("generate", "--trace"), ("verify", "--output"), ("tie-or-bug", "--output")]
)
def test_files_are_written_though_nobody_reads_the_output(monkeypatch, tmp_path, command, name):
    some = ("--limit", "1", "--max-new-tokens", "1", name, str(tmp_path / "file"))
    methods = () if command == "generate" else ("--methods", "inplace")
    monkeypatch.setattr("sys.argv", ["refimpl", command, *some, *methods])
    monkeypatch.setattr("sys.stdout", NoReader())
    with pytest.raises(SystemExit):
        main()
    monkeypatch.undo()
    assert (tmp_path / "file").read_text().startswith("{")


def test_with_json_stdout_holds_nothing_else(monkeypatch, capsys):
    arguments = (
        "verify",
        "--limit",
        "1",
        "--max-new-tokens",
        "1",
        "--methods",
        "inplace",
        "--batch-sizes",
        "1",
        "--json",
    )
    code, output = run_cli(monkeypatch, capsys, *arguments)
    assert not code
    report = json.loads(output.out)
    assert report["prompts"] == 1
    assert report["meta"]["device"]
    assert "one-at-a-time" in output.err


def test_processes_share_the_work(llama):
    report = verify(llama, [[1, 2, 3], [4]], methods="inplace,eqspec", batch_sizes=[2], max_new_tokens=4, jobs=8)
    assert [row.method for row in report.results] == ["inplace", "eqspec"]
    assert report.exact


@pytest.mark.filterwarnings("ignore:[0-9]+ tasks which were:UserWarning", "ignore:[0-9]+ tasks have been:UserWarning")
def test_processes_are_let_go_at_an_error(llama):
    def fail(task, *_):
        assert task != "methods", "told too early"

    with pytest.raises(AssertionError, match="told too early") as error:
        verify(llama, [[1, 2, 3]], methods="inplace,eqspec", batch_sizes=[2], max_new_tokens=4, jobs=2, progress=fail)
    (pending,) = [frame.frame.f_locals["pending"] for frame in error.traceback if "pending" in frame.frame.f_locals]
    assert pending.gi_frame is None


def test_generate_command(monkeypatch, capsys, tmp_path):
    prompts, output, trace = tmp_path / "p.txt", tmp_path / "out.jsonl", tmp_path / "trace.ndjson"
    prompts.write_text("import os\ndef main(\nclass A:\n")
    code, _ = run_cli(
        monkeypatch,
        capsys,
        *("generate", "--prompts", str(prompts), "--method", "exspec", "--batch-size", "2"),
        *("--max-new-tokens", "6", "--output", str(output), "--trace", str(trace)),
    )
    assert not code
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    header, *rows = (json.loads(line) for line in trace.read_text().splitlines())
    assert (header["schema"], header["scheduler"]) == ("raggedspec.trace/1", "grouped")
    assert sum(row["kept"] for row in rows) == sum(header["output_lens"])


def test_verify_command(monkeypatch, capsys):
    code, output = run_cli(
        monkeypatch,
        capsys,
        *("verify", "--limit", "3", "--methods", "eqspec,inplace", "--batch-sizes", "2"),
        *("--max-new-tokens", "8", "--json"),
    )
    assert not code
    last = json.loads(output.out.splitlines()[-1])
    assert last["prompts"] == 3
    assert [(r["method"], r["exact"], r["violations"]) for r in last["results"]] == [
        ("eqspec", 3, []),
        ("inplace", 3, []),
    ]
