"""README and docs tell the truth: tables are fresh, commands and code run, every path of the file map exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
FENCES = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line
    for language, body in FENCES
    if language != "python"
    for line in body.splitlines()
    if line.startswith("python ")
]
SNIPPETS = [body for language, body in FENCES if language == "python"]


def test_tables_are_fresh():
    check = subprocess.run(
        [sys.executable, "tools/readme.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command):
    run = subprocess.run([sys.executable, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_run(snippet):
    exec(compile(snippet, "README", "exec"), {})


def test_make_targets_exist():
    targets = set(re.findall(r"make (\w+)", README))
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(f"\n{target}:" in makefile for target in targets)


def test_file_map_and_links_point_to_something():
    paths = re.findall(r"`((?:refimpl|simulator|notebooks|proofs|docs|tools)/[\w/.]*)`", README)
    paths += re.findall(r"\]\((?!http)([\w/.]+)\)", README)
    assert len(paths) > 15
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing
