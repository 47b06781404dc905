"""docs/scenarios.md against the code: methods, metrics, commands and examples; its settings are rendered."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from refimpl.core.config import NAMED_METHODS
from simulator.cli import app, main
from simulator.service.metrics import metric_names
from simulator.settings.folders import EXAMPLES
from simulator.settings.parts import MAX_BUDGET
from simulator.settings.scenario import load_scenario
from simulator.studies.comparison import BETTER
from simulator.studies.designs import build_sweep, load_sweep

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "scenarios.md").read_text(encoding="utf-8")
APP = typer.main.get_command(app)
COMMANDS = re.findall(r"^raggedspec sim (.*?)(?:  +#.*)?$", PAGE.replace("\\\n", ""), re.MULTILINE)


def rows(text):
    """First cells of a page's tables → the other cells."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in lines}


def test_methods_commands_and_bounds_stand_there():
    assert all(f"`{name}`" in PAGE for name in NAMED_METHODS)
    assert all(f"`{name}`" in PAGE for name in APP.commands)
    assert f"at most {MAX_BUDGET}" in PAGE


def test_the_directions_that_the_page_tells_are_those_of_the_verdicts():
    told = re.search(r"good\s+direction: up for (.*?), down for (.*?)\. It\s", PAGE, re.DOTALL)
    for way, names in zip(("higher", "lower"), told.groups(), strict=True):
        assert {name.removesuffix("*") for name in re.findall("`(.*?)`", names)} == set(BETTER[way])
    assert all(any(name.startswith(start) for name in metric_names()) for starts in BETTER.values() for start in starts)


def test_every_metric_is_defined():
    table = PAGE[PAGE.index("| `tokens_per_s` |") :]
    patterns = [part for name in rows(table) for part in name.split(", ")]
    known = [re.sub(r"\\\*|\\\{stage\\\}", "[a-z0-9]+", re.escape(pattern)) for pattern in patterns]
    assert not [name for name in metric_names() if not any(re.fullmatch(pattern, name) for pattern in known)]


def test_the_examples_of_the_page_are_those_of_the_package():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks == [(EXAMPLES / name).read_text(encoding="utf-8") for name in ("scenario.yaml", "sweep.yaml")]
    assert len(load_sweep("example").tasks) == 9
    others = re.findall(r"(?:latin|sobol): \{.*\}$", blocks[1], re.MULTILINE)
    assert len(others) == 2
    for other in others:
        assert build_sweep(load_scenario("example"), **yaml.safe_load(other)).tasks


def examples():
    """Command lines of the page and of every --help.

    But those that measure for minutes, that read a run of one's own, or that run with a page to write as well.
    """
    found = [
        line
        for command in APP.commands.values()
        for line in re.findall(r"\[bold\]raggedspec sim (.*?)\[/bold\]", command.epilog)
    ]
    left_out = re.compile(r"panel|validate (?!--roofline)|trace --engine")
    lines = [line for line in dict.fromkeys([*COMMANDS, *found]) if not left_out.match(line)]
    return [line for line in lines if not any(other.startswith(f"{line} --html ") for other in lines)]


@pytest.mark.parametrize("line", examples())
def test_every_example_runs(capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(line)
    replications = ["-n", "2"] if arguments[0] in ("run", "compare", "fit", "plan") else []
    assert main(arguments + replications) == 0
    assert capsys.readouterr().out
