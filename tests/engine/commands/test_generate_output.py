"""What `generate` prints: prompts with their continuations for people, JSON lines for programs."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from refimpl import InputError
from refimpl.cli import app
from refimpl.commands import decode
from refimpl.commands.options import PromptOptions

COMMAND = ["generate", "--max-new-tokens", "4", "--prompts"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("def main(\n[bold]x = [1\n")
    return str(path)


def test_people_see_the_prompt_and_what_follows_and_programs_json_lines(prompts, monkeypatch):
    """Where nothing can be dimmed, the text stands below its prompt."""
    plain = CliRunner().invoke(app, [*COMMAND, prompts, "--text"]).stdout
    assert plain.startswith("[0] 4 tokens, stopped: length\n--- prompt\ndef main(\n--- output\n")
    assert "\n\n[1] 4 tokens, stopped: length\n--- prompt\n[bold]x = [1\n--- output\n" in plain
    lines = [json.loads(line) for line in CliRunner().invoke(app, [*COMMAND, prompts]).stdout.splitlines()]
    assert [line["index"] for line in lines] == [0, 1]
    console = Console(force_terminal=True, width=80)
    monkeypatch.setattr(decode, "console_for_tables", lambda: console)
    with console.capture() as shown:
        CliRunner().invoke(app, [*COMMAND, prompts, "--text"])
    for prompt, line in zip(["def main(", "[bold]x = [1"], lines, strict=True):
        assert f"\x1b[2m{prompt}\x1b[0m{line['text']}\n" in shown.get(), "the prompt is dimmed, its brackets are text"
    assert "[0] 4 tokens, stopped: length" in shown.get()


def test_prompts_can_be_given_on_the_command_line_and_sampled():
    words = ["generate", "--max-new-tokens", "2", "--prompt", "import os", "--prompt", "def f(", "--limit", "1"]
    done = CliRunner().invoke(app, [*words, "-n", "2", "--temperature", "1", "--logprobs", "1"])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["prompt"], line["index"], line["sample"]) for line in lines] == [("import os", i, i) for i in (0, 1)]
    for line in lines:
        assert [entry["token_id"] for entry in line["logprobs"]] == line["token_ids"]
        assert all(len(entry["top"]) == 1 and entry["logprob"] <= 0 for entry in line["logprobs"])
    assert "2 sequences, 4 tokens in" in done.stderr


@pytest.mark.parametrize("command", ["generate", "verify"])
def test_filters_that_change_nothing_are_named(command):
    words = [command, "--limit=1", "--max-new-tokens=2", *["--methods=inplace"] * (command == "verify")]
    done = CliRunner().invoke(app, [*words, "--top-p", "0.5", "--top-k", "3", "--seed", "7"])
    assert done.exit_code == 0
    assert "greedy decoding at --temperature 0: no effect of --top-k, --top-p\n" in done.stderr
    drawn = CliRunner().invoke(app, [*words, "--top-p", "0.5", "--temperature", "0.7"])
    assert "no effect" not in drawn.stderr


def test_a_stop_token_can_be_given_and_one_is_told_as_one():
    words = ["generate", "--max-new-tokens", "4", "--prompt", "import os"]
    (line,) = CliRunner().invoke(app, words).stdout.splitlines()
    first = json.loads(line)["token_ids"][0]
    done = CliRunner().invoke(app, [*words, "--set", f"stop_token_ids=[{first}]"])
    assert json.loads(done.stdout)["token_ids"] == [first]
    assert json.loads(done.stdout)["stop_reason"] == "stop"
    assert "1 sequence, 1 token in" in done.stderr
    assert ", 1 round, " in done.stderr


def test_a_prompt_that_asks_for_samples_keeps_its_number(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "n": 3}\n{"prompt": "b"}\n')
    done = CliRunner().invoke(app, [*COMMAND, str(path), "--samples", "2"])
    assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == ["a"] * 3 + ["b"] * 2


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match="--prompt must not be empty"):
        PromptOptions(prompt=["a", " "]).read()
