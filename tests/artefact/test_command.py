"""The command `raggedspec`: quick to answer, everything in one place, options that group and complete."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

import refimpl
import refimpl.cli
import simulator.cli
from raggedspec.cli import app, main

ROOT = Path(__file__).parent.parent.parent
HEAVY = ("torch", "transformers", "pandas", "numpy", "scipy", "matplotlib")
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


@pytest.mark.parametrize("words", ["--help", "sim --help", "generate --help", "sim run --help", "--version"])
def test_help_loads_nothing_heavy(words):
    code = f"{RUN}; sys.argv[1:] = {words.split()}\ntry: main()\nfinally: print(set({HEAVY}) & set(sys.modules))"
    found = run(code)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "set()"


def test_it_is_installed_as_a_script():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert EntryPoint("raggedspec", scripts["raggedspec"], "console_scripts").load() is main


def names(application):
    """Commands of a typer application and of those that it takes in without a name."""
    own = {command.name or command.callback.__name__.replace("_", "-") for command in application.registered_commands}
    return own.union(*(names(group.typer_instance) for group in application.registered_groups if not group.name))


def test_it_has_every_command_of_engine_and_simulator():
    assert names(app) == names(refimpl.cli.app) >= {"generate", "verify", "tie-or-bug", "conformance"}
    groups = {group.name: group.typer_instance for group in app.registered_groups if group.name}
    assert groups == {"sim": simulator.cli.app}
    assert names(simulator.cli.app) >= {"run", "compare", "sweep", "capacity"}


def test_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"raggedspec {refimpl.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sim run no-such.yaml", "no-such.yaml"),
        ("generate --prompts no-such.txt", "no-such.txt"),
        ("sim run -s engine.batch_size=0", "engine.batch_size must be an integer"),
    ],
)
def test_bad_input_is_one_line_and_code_2(words, said):
    found = run(f"{RUN}; sys.argv[1:] = {words.split()}; main()")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: ")
    assert said in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "code"), [("sim run -s method=exspec", 2), ("--help", 0), ("generate --help", 0)])
def test_without_the_simulators_libraries_the_engine_still_runs(words, code):
    found = run(f"import sys; sys.modules['yaml'] = None; {RUN}; sys.argv[1:] = {words.split()}; main()")
    assert found.returncode == code, found.stderr
    assert found.stderr == ("error: yaml is not installed: pip install 'raggedspec[simulator]'\n" if code else "")


def test_options_stand_in_panels():
    shown = CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "160", "TERM": "dumb"}).stdout
    panels = re.findall(r"^╭─ (\w+) ─", shown, re.M)
    assert panels == ["Options", "Models", "Prompts", "Engine", "Sampling", "Output"]
    assert "off|host|device|oracle" in shown
    options = shown.partition("╭─ Models")[0]
    assert re.findall(r"--[a-z-]+", options) == ["--help"], "every option has a panel"


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("sim cap", {"capacity"}),
        ("generate --checks ", {"off", "host", "device", "oracle"}),
        ("generate --method ex", {"exspec"}),
        ("verify --methods masked", {"masked", "masked+static", "masked+fifo", "masked+grouped"}),
        ("generate --pair q", {"qwen3"}),
    ],
)
def test_shells_complete(words, completions):
    environment = {
        "_RAGGEDSPEC_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": f"raggedspec {words}",
    }
    found = run(f"{RUN}; sys.argv[1:] = []; main()", **environment)
    assert completions <= set(re.findall(r'"([\w+-]+)"', found.stdout.replace('":"', '" "'))), (
        found.stdout + found.stderr
    )


def test_a_wrong_choice_is_refused_before_anything_is_loaded():
    found = CliRunner().invoke(app, ["generate", "--checks", "some"])
    assert found.exit_code == 2
    assert "'some' is not one of 'off'" in found.output
