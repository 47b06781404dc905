"""What the commands of the simulator print for people: tables that fit, notes, counts, one line of what is wrong."""

import io
import json
import re
import subprocess
import sys

import pandas as pd
import pytest

from simulator.cli import main
from simulator.commands.output import show

FRAME = pd.DataFrame(
    {f"a long name of column {i}": [i + 0.123456, float("nan")] for i in range(6)}, index=["first", "second"]
)


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self):
        return True


def printed_to(stream, work):
    """What is printed to a stream, the terminals among which have 80 columns."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        patched.setenv("COLUMNS", "80")
        work()
    return stream.getvalue()


def test_a_table_that_a_terminal_is_too_narrow_for_goes_on_below():
    shown = printed_to(Terminal(), lambda: show(FRAME))
    parts = [part.splitlines() for part in shown.rstrip("\n").split("\n\n")]
    assert len(parts) == 3
    assert all(len(line) <= 80 for part in parts for line in part)
    assert [[line.split()[0] for line in part[1:]] for part in parts] == [["first", "second"]] * 3
    headings = [re.findall(r"a long name of column \d", part[0]) for part in parts]
    assert headings == [[*FRAME.columns[at : at + 2]] for at in (0, 2, 4)]
    assert [line.split()[1:] for line in parts[1][1:]] == [["2.123", "3.123"], ["–", "–"]]


def test_a_table_that_fits_or_is_piped_is_printed_as_one():
    assert len(printed_to(Terminal(), lambda: show(FRAME.iloc[:, :2])).splitlines()) == 3
    assert len(printed_to(io.StringIO(), lambda: show(FRAME)).splitlines()) == 3


def test_tables_of_a_comparison_fit_a_terminal_of_80_columns():
    shown = printed_to(Terminal(), lambda: main(["compare", "example", "-n", "2", "-s", "method=exspec"]))
    assert len(re.findall(r"^tokens_per_s .*", shown, re.M)) == 2
    assert max(map(len, shown.partition("means over")[0].splitlines())) <= 80
    assert re.search(r"\bverdict *$", shown, re.M)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "-n", "1", "--out", ""], "--out: must name a folder, and is empty"),
        (["validate", ""], "traces: must name a file, and is empty"),
        (["run", "-s", "=4"], "--set =4: must be PATH=VALUE"),
        (["run", "-n", "1e9"], "error: --replications"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(r"error: .*\n", printed.err)
    assert said in printed.err
    assert [*tmp_path.iterdir()] == []


def test_results_go_into_the_folder_that_one_is_in_where_a_dot_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "-n", "1", "--out", "."]) == 0
    assert (tmp_path / "metrics.csv").is_file()


def test_a_sweep_that_is_refused_in_the_middle_says_no_more_than_why(tmp_path):
    grid = "grid: {engine.num_blocks: [3], seed: [0, 1, 2, 3, 4, 5, 6, 7]}"
    (tmp_path / "s.yaml").write_text(f"base: {{engine: {{method: paged, num_blocks: 99}}}}\nreplications: 9\n{grid}\n")
    words = [sys.executable, "-m", "simulator", "sweep", "s.yaml", "--out", ".", "--workers", "2"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"error: at engine.num_blocks=3, seed=[0-7]: the pool holds 48 tokens; .*\n", done.stderr)


def test_the_points_of_a_grid_are_printed_under_their_settings(capsys, tmp_path):
    (tmp_path / "sweep.yaml").write_text(
        "base: {study: {num_requests: 8}}\nreplications: 2\ngrid: {service.replicas: [1, 2], engine.batch_size: [1, 2]}"
    )
    arguments = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), "--metric", "makespan_s"]
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert "service.replicas engine.batch_size" in printed.err
    data = json.loads(printed.out)
    assert (data["scenarios"], data["replications"]) == (4, 8)
    frame = pd.read_parquet(tmp_path / "out" / "results.parquet")
    expected = frame.groupby(["service.replicas", "engine.batch_size"])["makespan_s"].mean()
    found = {(line["service.replicas"], line["engine.batch_size"]): line["makespan_s"] for line in data["means"]}
    assert found == pytest.approx(expected.to_dict())
    assert all(line["low"] < line["makespan_s"] < line["high"] for line in data["means"])
