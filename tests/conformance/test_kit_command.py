"""The kit's command and its pytest plugin."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refimpl.conformance.command import app
from refimpl.conformance.kit import ALL_PROPERTIES
from refimpl.core.errors import InputError

HERE = Path(__file__).parent
SERVERS = f"{sys.executable} {HERE / 'bad_servers.py'}"  # of a kind that is none, a server is right
ONE = ["--properties", "equals_reference", "--max-examples", "5"]
DSD = "refimpl.faults.engine:faulty_unchecked:dsd-next-token-from-draft"


def run_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    refused = isinstance(result.exception, InputError)
    return (2, f"error: {result.exception}\n") if refused else (result.exit_code, result.output)


def words_of(*arguments: str) -> str:
    return " ".join(run_command(*arguments)[1].split())


def test_the_command_fails_for_a_fault_and_shows_the_case() -> None:
    engine = "refimpl.faults.engine:faulty:bsp-as-shipped"
    code, text = run_command("--engine", engine, "--max-examples", "5", "--fail-fast")
    assert code == 1
    assert "INV-2" in text
    assert "smallest case found: prompts" in text
    assert "does not conform" in text
    assert "failing case: prompts" in run_command("--engine", DSD, *ONE, "--no-shrink")[1]


def test_the_report_is_what_is_shown(tmp_path: Path) -> None:
    chosen = ["--properties", "equals_reference, runs_repeat", "--max-examples", "2", "--seed", "5"]
    other = ["--reference", "toy_engines:make", "--output", str(tmp_path / "report.json")]
    code, text = run_command("--engine", "toy_engines:make", *chosen, *other)
    words, content = " ".join(text.split()), json.loads((tmp_path / "report.json").read_text())
    assert code == 0
    assert "seed 5; reference: another engine" in words
    assert "not measured" not in text
    assert f"passes in the 2 of {len(ALL_PROPERTIES)} properties that were checked" in words
    assert (content["seed"], content["reference"]) == (5, "another engine")
    assert content["not_looked_at"][0].startswith("25 of 27 properties: budget_is_exact, ")
    assert f"not looked at: {'; '.join(content['not_looked_at'])}" in words
    assert [row["property"] for row in content["properties"]] == ["equals_reference", "runs_repeat"]


def test_an_engine_that_exits_does_not_end_the_command(tmp_path: Path) -> None:
    chosen = ["--properties", "runs_repeat", "--max-examples", "1", "--output", str(tmp_path / "report.json")]
    code, text = run_command("--engine", "toy_engines:exiting", *chosen)
    (row,) = json.loads((tmp_path / "report.json").read_text())["properties"]
    assert (code, row["place"].partition(":")[0]) == (1, "toy_engines.py")
    assert f"runs_repeat: SystemExit: 0\n  at {row['place']}\n" in text


def test_what_is_not_supported_and_the_own_reference_are_told_in_words() -> None:
    chosen = ["--properties", "equals_reference,samples_are_keyed", "--max-examples", "2"]
    own = words_of("--engine", "refimpl.conformance.adapters:method:inplace", *chosen)
    assert "reference: the engine's own reference()" in own
    code, text = run_command("--engine", "toy_engines:refusing:batches", *chosen)
    assert code == 1
    assert "samples_are_keyed: not supported (keyed sampling)" in text
    assert "no batch of several rows was answered" in text
    assert "does not conform: equals_reference must pass" in text


@pytest.mark.parametrize(("kind", "code"), [("right [/x] :key: [red]", 0), ("wrong", 1)])
def test_a_server_can_be_the_reference_and_is_shown_as_it_was_given(kind: str, code: int) -> None:
    found, text = run_command("--command", f"{SERVERS} {kind}", "--reference-command", f"{SERVERS} right", *ONE)
    assert found == code
    assert "reference: another engine" in " ".join(text.split())
    assert kind in " ".join(text.split())


def test_what_is_told_of_a_case_is_one_line_where_nobody_sees_a_terminal() -> None:
    _, text = run_command("--engine", "toy_engines:with_prompts", *ONE)
    assert "\nequals_reference: the reference (itself with k=0) gives 2 tokens, 1 were asked for, without stop " in text
    assert "max_new_tokens 1, batch_size 1, num_speculative_tokens 1\n" in text
    assert "does it round?" not in text, "no two outputs were compared"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--reference", "toy_engines:make", "--reference-command", SERVERS], "or as a command, not both"),
        (["--reference-command", f"{SERVERS} right"], "has a vocabulary of 61, the engine 40"),
        (["--reference-command", "no-such-engine-anywhere"], "cannot start 'no-such-engine-anywhere'"),
        (["--reference", ""], "an engine is named module:factory, as in an import, not ''"),  # as of an unset variable
        (["--reference-command", ""], "cannot start ''"),
        (["--command", ""], "give either --engine module:factory, --command"),
        (["--k", "3", "--max-k", "4"], "k and max_k exclude each other"),
        (["--properties", "magic"], "unknown property ['magic']"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(options: list[str], told: str) -> None:
    code, text = run_command("--engine", "toy_engines:make", *options)
    assert (code, text.count("\n")) == (2, 1)
    assert told in text


def test_it_is_said_once_why_properties_are_not_run(tmp_path: Path) -> None:
    server = f"{SERVERS} crash-for-good {tmp_path / 'mark'}"
    some = ["--properties", "budget_is_exact,runs_repeat,order_does_not_matter", "--max-examples", "5"]
    code, text = run_command("--command", server, *some)
    assert code == 1
    assert "runs_repeat: not run (the engine does not start again" in " ".join(text.split())
    assert "order_does_not_matter: not run" not in text


def test_an_engine_that_differs_from_its_own_run_may_round() -> None:
    assert "does it round?" not in words_of("--engine", DSD, *ONE)  # it has a reference of its own
    assert "does it round?" in words_of("--command", f"{SERVERS} wrong", *ONE)
    assert "does it round?" not in words_of("--command", f"{SERVERS} garbage", *ONE)


def run_beside(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a folder, with the engines of the tests."""
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    environment, whole = {**os.environ, "PYTHONPATH": path}, [sys.executable, "-B", *command]
    return subprocess.run(whole, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)


def test_the_command_leaves_its_report_and_nothing_else(tmp_path: Path) -> None:
    """An engine may change the folder; the report is where it was asked for."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moving.py").write_text(
        "import os, toy_engines\ndef make():\n    os.chdir('elsewhere')\n    return toy_engines.make()\n"
    )
    done = run_beside(
        tmp_path, "-m", "refimpl", "conformance", "--engine", "moving:make", *ONE, "--output", "report.json"
    )
    assert done.returncode == 0, done.stderr
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"elsewhere", "moving.py", "report.json"}


# --- plugin ------------------------------------------------------------------------------------------------------


def run_plugin(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """With options of the command under the prefix of the plugin."""
    given = [option.replace("--", "--conformance-", 1) if option.startswith("--") else option for option in options]
    plugin = ["-p", "refimpl.conformance.pytest_plugin", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return run_beside(folder, "-m", "pytest", "-q", *plugin, *given, str(folder))


def test_the_pytest_plugin_reports_one_item_a_property(tmp_path: Path) -> None:
    chosen = ["--properties", "equals_reference,runs_repeat,samples_are_keyed", "--max-examples", "5", "--seed", "3"]
    done = run_plugin(tmp_path, "--command", f"{SERVERS} wrong", *chosen)
    assert done.returncode == 1
    assert "equals_reference: not the autoregressive output: row 1 differs from token" in done.stdout
    assert "smallest case found: prompts" in done.stdout
    assert "does it round?" in done.stdout
    assert "1 failed, 1 passed, 1 skipped" in done.stdout


def test_the_pytest_plugin_has_the_limits_and_the_reference_of_the_command(tmp_path: Path) -> None:
    chosen = ["--properties", "equals_reference,draft_length_does_not_matter", "--k", "3", "--long-prompt", "20"]
    done = run_plugin(tmp_path, "--engine", "toy_engines:make", *chosen, "--reference", "toy_engines:make")
    assert "conformance: reference: another engine" in done.stdout
    assert re.search(r"conformance: not looked at: \d+ of 27 properties: .*prompts over 20 tokens", done.stdout)
    assert "1 passed, 1 skipped" in done.stdout


def test_the_pytest_plugin_fails_where_nothing_is_answered(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(): pass")
    engine = ["--engine", "toy_engines:refusing", "--properties"]
    done = run_plugin(tmp_path, *engine, "runs_repeat,budget_is_exact")
    assert done.returncode == 1, "a test of another kind answers for nothing"
    assert "1 passed, 2 skipped" in done.stdout
    assert "conformance: nothing that was asked is supported" in done.stdout
    assert "1 failed" in run_plugin(tmp_path, *engine, "equals_reference").stdout
    assert run_plugin(tmp_path).returncode == 0, "without an engine nothing is asked"


def test_the_pytest_plugin_asks_an_engine_that_hangs_once(tmp_path: Path) -> None:
    chosen = ["--properties", "equals_reference,budget_is_exact,runs_repeat", "--timeout-s", "0.5"]
    done = run_plugin(tmp_path, "--command", f"{SERVERS} hang", *chosen)
    assert "3 failed" in done.stdout
    assert "equals_reference: no answer within 0.5 s (timeout_s)" in done.stdout
    assert "runs_repeat: not run: no answer within 0.5 s (timeout_s)" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--reference", "toy_engines:make"], "give either --engine"),
    ],
)
def test_the_pytest_plugin_refuses_wrong_options_in_one_line(tmp_path: Path, options: list[str], told: str) -> None:
    done = run_plugin(tmp_path, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert told in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
