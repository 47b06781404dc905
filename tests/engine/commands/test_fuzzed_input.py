"""Careless and hostile input: one line, exit code 2, nothing written, and nothing that goes on without end."""

import json
import re
import shutil
from pathlib import Path

import pytest

from refimpl import InputError, load_pair
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from simulator.cli import main as simulator_main
from simulator.settings.calibration import load_calibration
from simulator.settings.traces import read_engine_trace, read_service_trace
from tests.engine.wild_input import KINDS
from tests.synthetic_inputs import HEADER, LINES, SYNTHETIC_META, write_calibration, write_engine_trace


def called(function, *arguments):
    """What InputError said."""
    with pytest.raises(InputError) as error:
        function(*arguments)
    return f"error: {error.value}\n"


class Cases:
    """How each kind of input is given; a method returns what stderr holds."""

    def __init__(self, folder, capsys, monkeypatch, pair):
        self.folder, self.capsys, self.monkeypatch, self.pair = folder, capsys, monkeypatch, pair

    def write(self, name, text):
        content = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        (self.folder / name).write_bytes(content)
        self.before = sorted(self.folder.rglob("*"))
        return self.folder / name

    def command(self, program, arguments):
        self.monkeypatch.setattr("sys.argv", ["program", *arguments])
        try:
            code = program()
        except SystemExit as end:
            code = end.code
        printed = self.capsys.readouterr()
        assert (code, printed.out) == (2, "")
        return printed.err

    def commands(self, program, line):
        return self.command(program, line.split(" "))

    def yaml(self, text):
        self.write("s.yaml", text)
        return self.command(simulator_main, ["run", "s.yaml", "-n", "1"])

    def settings(self, setting):
        self.write("empty.csv", "a\n")
        return self.command(simulator_main, ["run", "-n", "1", "-s", setting])

    def sweeps(self, text):
        self.write("other.txt", "a secret text")
        self.write("sweep.yaml", text)
        error = self.command(simulator_main, ["sweep", "sweep.yaml", "--out", "out"])
        assert "secret" not in error
        return error

    def json_lines(self, line):
        path = self.write("p.jsonl", '{"prompt": "a"}\n' + line)
        return called(read_prompts, path).replace(f"{path}, ", "")

    def traces(self, header, line):
        write_engine_trace(self.folder / "t.ndjson", HEADER | header, [LINES[0] | line, *LINES[1:]])
        return called(read_engine_trace, self.folder / "t.ndjson")

    def models(self, file, content):
        shutil.copytree(TINY / "target", self.folder / "model", copy_function=lambda a, b: Path(b).symlink_to(a))
        if isinstance(content, dict):
            content = json.dumps(json.loads((TINY / "target" / file).read_text()) | content)
        (self.folder / "model" / file).unlink(missing_ok=True)
        self.write(f"model/{file}", content)
        error = called(load_pair, self.folder / "model", TINY / "draft")
        assert error.startswith(f"error: cannot load the target {self.folder / 'model'}: ")
        return error

    def calls(self, function):
        return called(function, self.pair)

    def meta(self, change):
        folder = write_calibration(self.folder / "c", SYNTHETIC_META | change)
        return called(load_calibration, str(folder))

    def tables(self, name, text):
        return called(read_service_trace, self.write(name, text))


CASES = [
    pytest.param(kind, case[:-1], case[-1], id=f"{kind}{i}")
    for kind, cases in KINDS.items()
    for i, case in enumerate(cases)
]


@pytest.mark.parametrize(("kind", "given", "message"), CASES)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, capsys, monkeypatch, llama, kind, given, message):
    monkeypatch.chdir(tmp_path)
    cases = Cases(tmp_path, capsys, monkeypatch, llama)
    error = getattr(cases, kind)(*given)
    assert error.startswith("error: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1
    assert re.search(message, error.rstrip("\n"))
    assert sorted(tmp_path.rglob("*")) == getattr(cases, "before", sorted(tmp_path.rglob("*")))


def test_a_bad_row_behind_chunks_is_named_by_its_line(tmp_path):
    chunk = LINES[0] | {"chunk": 3}
    write_engine_trace(tmp_path / "t.ndjson", HEADER, [chunk, chunk, LINES[0] | {"k": "x"}, *LINES[1:]])
    with pytest.raises(InputError, match=r"t\.ndjson:4: k must be a whole number"):
        read_engine_trace(tmp_path / "t.ndjson")
