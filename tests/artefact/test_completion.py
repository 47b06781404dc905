"""Shells complete commands, options and values."""

import re

import pytest

from tests.commands import RUN, run


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("sim pl", {"plan"}),
        ("generate --checks ", {"off", "host", "device", "oracle"}),
        ("generate --method ex", {"exspec"}),
        ("verify --methods eqspec,in", {"eqspec,inplace"}),
    ],
)
def test_shells_complete(words, completions):
    environment = {
        "_RAGGEDSPEC_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": f"raggedspec {words}",
    }
    found = run(f"{RUN}; sys.argv[1:] = []; main()", **environment)
    assert completions <= set(re.findall(r'"([\w+,-]+)"', found.stdout.replace('":"', '" "'))), (
        found.stdout + found.stderr
    )


def test_bash_completes():
    words = "raggedspec generate --method in"
    environment = {"_RAGGEDSPEC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    found = run(f"{RUN}; sys.argv[1:] = []; main()", **environment)
    assert "inplace" in found.stdout.split(), found.stdout + found.stderr


def test_completion_can_be_shown():
    found = run(
        f"{RUN}; sys.argv[1:] = ['--show-completion', 'zsh']; main()",
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    assert found.returncode == 0, found.stderr
    assert "_RAGGEDSPEC_COMPLETE" in found.stdout
