"""What `generate` prints: prompts with their continuations for people, JSON lines for programs."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from refimpl.cli import app
from refimpl.commands import decode

COMMAND = ["generate", "--max-new-tokens", "4", "--prompts"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("def main(\n[bold]x = [1\n")
    return str(path)


def test_people_see_the_prompt_and_what_follows(prompts, monkeypatch):
    console = Console(force_terminal=True, width=80)
    monkeypatch.setattr(decode, "console_for_tables", lambda: console)
    lines = [json.loads(line) for line in CliRunner().invoke(app, [*COMMAND, prompts, "--json"]).stdout.splitlines()]
    with console.capture() as shown:
        CliRunner().invoke(app, [*COMMAND, prompts, "--text"])
    for prompt, line in zip(["def main(", "[bold]x = [1"], lines, strict=True):
        assert f"\x1b[2m{prompt}\x1b[0m{line['text']}\n" in shown.get(), "the prompt is dimmed, its brackets are text"
    assert "4 tokens, length" in shown.get()


def test_programs_get_json_lines_unless_text_is_asked_for(prompts):
    piped = CliRunner().invoke(app, [*COMMAND, prompts]).stdout
    assert [json.loads(line)["index"] for line in piped.splitlines()] == [0, 1]
    assert CliRunner().invoke(app, [*COMMAND, prompts, "--text"]).stdout.startswith("0  4 tokens, length\ndef main(")
