"""Traces with numbers that no run has, or with rounds that are numbered otherwise, and what reads them."""

import gzip
import json
from shutil import copy

import pytest

from refimpl.core.reading import read_mappings
from simulator.cli import main
from simulator.engine_runs.validation import validate
from simulator.settings.folders import VALIDATION

SHIPPED = VALIDATION / "cpu" / "tiny"
RUN = SHIPPED / "inplace-b6-k2-0.ndjson.gz"


def write_trace(path, header=None, **changes):
    """The shipped run with other fields of its header and of its rows; a function is called with the value there."""
    first, *rows = (line for _, line in read_mappings(RUN))
    for row in rows:
        row |= {name: new(row[name]) if callable(new) else new for name, new in changes.items()}
    path.write_text("\n".join(map(json.dumps, [first | (header or {}), *rows])) + "\n")
    return path


def held_out(folder, meta=None):
    """A folder of held-out runs that has none so far."""
    (folder / "fit").mkdir(parents=True)
    copy(SHIPPED / "fit" / "acceptance.ndjson.gz", folder / "fit")
    (folder / "meta.json").write_text(json.dumps(json.loads((SHIPPED / "meta.json").read_text()) | (meta or {})))
    return folder


def add_run(folder, **changes):
    """A held-out run in a folder of them."""
    path = write_trace(folder / "x-0.ndjson", **changes)
    (folder / "x-0.ndjson.gz").write_bytes(gzip.compress(path.read_bytes()))


SECONDS = ("prefill_s", "draft_s", "verify_s", "realign_s", "host_s", "record_s", "round_s")


@pytest.mark.parametrize(
    ("meta", "changes", "said"),
    [
        ({}, {"header": {"reference_s": "x"}}, "x-0.ndjson.gz:1: reference_s must be a number > 0, not 'x'"),
        ({}, {"header": {"reference_s": 0}}, "x-0.ndjson.gz:1: reference_s must be a number > 0, not 0"),
        ({}, dict.fromkeys(SECONDS, 0.0), "x-0.ndjson.gz: its rounds take no seconds"),
        ({"reference_s": 0}, {}, "meta.json: reference_s must be a number > 0, not 0"),
        ({"drift_cv": "x"}, {}, "meta.json: drift_cv must be a number in [0, 10], not 'x'"),
    ],
)
def test_impossible_numbers_of_held_out_runs_are_refused(tmp_path, capsys, meta, changes, said):
    add_run(held_out(tmp_path / "runs", meta), **changes)
    assert main(["validate", "--runs", str(tmp_path / "runs"), "-n", "1"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert said in line


def test_rounds_may_be_numbered_otherwise(tmp_path):
    """They are as many, in the same order: pictures and errors are the same."""
    made = [
        write_trace(tmp_path / f"{name}.ndjson", round=new) for name, new in (("a", int), ("b", lambda n: 2 * n + 7))
    ]
    for path in made:
        assert main(["trace", "--engine", str(path), "--out", str(path.with_suffix(".json"))]) == 0
    assert made[0].with_suffix(".json").read_text() == made[1].with_suffix(".json").read_text()
    runs = [held_out(tmp_path / name) for name in "ab"]
    for folder, new in zip(runs, (int, lambda n: 2 * n + 7), strict=True):
        add_run(folder, round=new)
    waits = [validate("cpu/tiny", folder, replications=1).table.filter(like="_token_p") for folder in runs]
    assert waits[0].equals(waits[1])


def test_a_row_that_is_there_twice_is_refused(tmp_path, capsys):
    path = write_trace(tmp_path / "x.ndjson", row=0)
    assert main(["parity", str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}:3: a row is given twice in a round\n"
