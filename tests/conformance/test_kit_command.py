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

HERE = Path(__file__).parent


def run_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_command_fails_for_a_fault_and_shows_the_case() -> None:
    engine = "refimpl.faults.engine:faulty:bsp-as-shipped"
    code, text = run_command("--engine", engine, "--max-examples", "5", "--fail-fast")
    assert code == 1
    assert "INV-2" in text
    assert "smallest case found: prompts" in text
    assert "does not conform" in text


def test_the_command_wants_one_engine() -> None:
    assert run_command()[0] == 2
    assert "give either" in run_command()[1]


def test_the_command_tells_where_an_engine_raises_its_error(tmp_path: Path) -> None:
    chosen = ["--properties", "runs_repeat", "--max-examples", "1", "--output", str(tmp_path / "report.json")]
    _, text = run_command("--engine", "toy_engines:exiting", *chosen)
    (row,) = json.loads((tmp_path / "report.json").read_text())["properties"]
    assert row["place"].startswith("toy_engines.py:")
    assert f"runs_repeat: SystemExit: 0\n  at {row['place']}\n" in text


@pytest.mark.parametrize("when", ["asked", "made"])
def test_an_engine_that_exits_does_not_end_the_command(when: str) -> None:
    code, text = run_command("--engine", f"toy_engines:exiting:{when}", "--max-examples", "2")
    assert code == (1 if when == "asked" else 2)
    assert "SystemExit: 0" in text


def test_the_command_counts_answers_and_tells_what_is_missing() -> None:
    code, text = run_command("--engine", "toy_engines:refusing:batches", "--properties", "equals_reference")
    assert code == 1
    assert "no batch of several rows was answered" in text
    assert "does not conform: equals_reference must pass" in text


def test_the_seed_and_the_reference_stand_in_the_report(tmp_path: Path) -> None:
    chosen = ["--properties", "equals_reference, runs_repeat", "--max-examples", "2", "--seed", "5"]
    other = ["--reference", "toy_engines:make", "--output", str(tmp_path / "report.json")]
    code, text = run_command("--engine", "toy_engines:make", *chosen, *other)
    assert code == 0
    assert "seed 5; reference: another engine" in " ".join(text.split())
    assert "not measured" not in text
    assert f"passes in the 2 of {len(ALL_PROPERTIES)} properties that were checked" in " ".join(text.split())
    content = json.loads((tmp_path / "report.json").read_text())
    assert (content["seed"], content["reference"]) == (5, "another engine")
    assert content["not_looked_at"][0].startswith("15 of 17 properties: budget_is_exact, ")
    assert f"not looked at: {'; '.join(content['not_looked_at'])}" in " ".join(text.split())
    assert [row["property"] for row in content["properties"]] == ["equals_reference", "runs_repeat"]


def test_what_is_not_supported_and_the_own_reference_are_told_in_words() -> None:
    chosen = ["--properties", "equals_reference,samples_are_keyed", "--max-examples", "2"]
    code, text = run_command("--engine", "refimpl.conformance.adapters:method:inplace", *chosen)
    assert code == 0
    assert "reference: the engine's own reference()" in " ".join(text.split())
    _, text = run_command("--engine", "toy_engines:refusing", *chosen)
    assert "samples_are_keyed: not supported (keyed sampling)" in text


def test_a_case_that_was_not_shrunk_is_not_called_the_smallest() -> None:
    engine = ["--engine", "refimpl.faults.engine:faulty_unchecked:dsd-next-token-from-draft"]
    assert "failing case: prompts" in run_command(*engine, "--properties", "raggedness")[1]
    unshrunk = ["--properties", "equals_reference", "--no-shrink"]
    assert "failing case: prompts" in run_command(*engine, *unshrunk)[1]


def test_a_reference_has_the_vocabulary_of_the_engine() -> None:
    other = "refimpl.conformance.adapters:method"
    code, text = run_command("--engine", "toy_engines:make", "--reference", other)
    assert code == 2
    assert "has a vocabulary of 17, the engine 40" in text


SERVERS = f"{sys.executable} {HERE / 'bad_servers.py'}"  # of a kind that is none, a server is right
ONE = ["--properties", "equals_reference", "--max-examples", "5"]


@pytest.mark.parametrize(("kind", "code"), [("right", 0), ("wrong", 1)])
def test_a_server_can_be_the_reference(kind: str, code: int) -> None:
    found, text = run_command("--command", f"{SERVERS} {kind}", "--reference-command", f"{SERVERS} right", *ONE)
    assert found == code
    assert "reference: another engine" in " ".join(text.split())


def test_what_is_told_of_a_case_is_one_line_where_nobody_sees_a_terminal() -> None:
    _, text = run_command("--engine", "toy_engines:with_prompts", *ONE)
    assert "\nequals_reference: the reference (itself with k=0) gives 2 tokens, 1 were asked for, without stop " in text
    assert "max_new_tokens 1, batch_size 1, num_speculative_tokens 1\n" in text


def test_a_command_is_shown_as_it_was_given() -> None:
    server = f"{SERVERS} right [/x] :key: [red]"
    code, text = run_command("--command", server, "--properties", "runs_repeat", "--max-examples", "1")
    assert code == 0
    assert "right [/x] :key: [red]" in " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--reference", "toy_engines:make", "--reference-command", SERVERS], "as a command, not both"),
        (["--reference-command", f"{SERVERS} right"], "has a vocabulary of 61, the engine 40"),
        (["--reference-command", "no-such-engine-anywhere"], "cannot start 'no-such-engine-anywhere'"),
        (["--reference", ""], "an engine is named module:factory, as in an import, not ''"),  # as of an unset variable
        (["--reference-command", ""], "cannot start '': it is empty"),
        (["--command", ""], "give either --engine module:factory or --command"),
        (["--k", "3", "--max-k", "4"], "k and max_k exclude each other"),
        (["--timeout-s", "inf"], "timeout_s must be from 0.01 to 1e+08 seconds, not inf"),
        (["--timeout-s", "1e12"], "timeout_s must be from 0.01 to 1e+08 seconds"),
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


def said_to_round(*arguments: str) -> bool:
    return "does it round?" in " ".join(run_command(*arguments)[1].split())


def test_an_engine_that_differs_from_its_own_run_may_round() -> None:
    engine = ["--engine", "refimpl.faults.engine:faulty_unchecked:dsd-next-token-from-draft", *ONE]
    assert not said_to_round(*engine)  # it has a reference of its own
    assert said_to_round("--command", f"{SERVERS} wrong", *ONE)
    assert not said_to_round("--command", f"{SERVERS} garbage", *ONE)
    assert not said_to_round("--command", f"{SERVERS} right", *ONE)


def test_an_engine_that_returns_its_prompts_too_is_not_said_to_round() -> None:
    """Its reference gives more tokens than were asked for: no two outputs were compared."""
    code, text = run_command("--engine", "toy_engines:with_prompts", *ONE)
    assert code == 1
    assert "gives 2 tokens, 1 were asked for" in " ".join(text.split())
    assert "does it round?" not in text


def test_the_command_leaves_its_report_and_nothing_else(tmp_path: Path) -> None:
    """An engine may change the folder; the report is where it was asked for."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moving.py").write_text(
        "import os, toy_engines\ndef make():\n    os.chdir('elsewhere')\n    return toy_engines.make()\n"
    )
    command = [sys.executable, "-B", "-m", "refimpl.conformance", "--engine", "moving:make", *ONE]
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([*command, "--output", "report.json"], cwd=tmp_path, env=environment, check=True, timeout=120)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"elsewhere", "moving.py", "report.json"}


# --- plugin ------------------------------------------------------------------------------------------------------


def run_plugin(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    plugin = ["-p", "refimpl.conformance.pytest_plugin", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--conformance-examples", "9", *options, str(folder)]
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=folder, env={**os.environ, "PYTHONPATH": path}
    )


def test_the_pytest_plugin_fails_where_nothing_is_answered(tmp_path: Path) -> None:
    chosen = ["--conformance-properties", "equals_reference, runs_repeat"]
    done = run_plugin(tmp_path, "--conformance-engine", "toy_engines:refusing", *chosen)
    assert done.returncode == 1
    assert "1 failed, 1 skipped" in done.stdout
    assert "equals_reference: batches" in done.stdout


def test_the_pytest_plugin_fails_where_all_is_skipped(tmp_path: Path) -> None:
    engine = ["--conformance-engine", "toy_engines:refusing", "--conformance-properties"]
    done = run_plugin(tmp_path, *engine, "runs_repeat,budget_is_exact")
    assert done.returncode == 1
    assert "2 skipped" in done.stdout
    assert "conformance: nothing that was asked is supported" in done.stdout
    (tmp_path / "test_own.py").write_text("def test_own(): pass")
    assert run_plugin(tmp_path, *engine, "runs_repeat").returncode == 1, "a test of another kind answers for nothing"
    assert run_plugin(tmp_path, *engine, "runs_repeat", "--collect-only").returncode == 0
    assert run_plugin(tmp_path).returncode == 0, "without an engine nothing is asked"


def test_the_pytest_plugin_reports_one_item_a_property(tmp_path: Path) -> None:
    engine = "refimpl.faults.engine:faulty_unchecked:dsd-next-token-from-draft"
    chosen = ["--conformance-properties", "equals_reference,runs_repeat,budget_is_exact", "--conformance-seed", "3"]
    done = run_plugin(tmp_path, "--conformance-engine", engine, *chosen)
    assert done.returncode == 1
    assert "equals_reference: not the autoregressive output: row 0 differs from token" in done.stdout
    assert "smallest case found: prompts" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


def test_the_pytest_plugin_has_the_limits_and_the_reference_of_the_command(tmp_path: Path) -> None:
    chosen = ["--conformance-properties", "equals_reference,draft_length_does_not_matter", "--conformance-k", "3"]
    engine = ["--conformance-engine", "toy_engines:make", *chosen]
    done = run_plugin(tmp_path, *engine, "--conformance-reference", "toy_engines:make")
    assert "conformance: reference: another engine" in done.stdout
    assert re.search(r"conformance: not looked at: \d+ of 17 properties: .*prompts over \d+ tokens", done.stdout)
    assert "1 passed, 1 skipped" in done.stdout
    assert "conformance: reference: itself with k=0" in run_plugin(tmp_path, *engine).stdout
    wrong = run_plugin(tmp_path, "--conformance-command", f"{SERVERS} wrong", *chosen)
    assert "does it round?" in wrong.stdout


def test_the_pytest_plugin_asks_an_engine_that_hangs_once(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    chosen = [
        "--conformance-properties",
        "equals_reference,budget_is_exact,runs_repeat",
        "--conformance-timeout",
        "0.5",
    ]
    done = run_plugin(tmp_path, "--conformance-command", f"{SERVERS} hang {mark}", *chosen)
    assert done.returncode == 1
    assert "3 failed" in done.stdout
    assert "equals_reference: no answer within 0.5 s (timeout_s)" in done.stdout
    assert "runs_repeat: not run: no answer within 0.5 s (timeout_s)" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--conformance-engine", "toy_engines:make", "--conformance-properties", "magic"], "unknown property 'magic'"),
        (["--conformance-engine", "nowhere:make"], "cannot load the engine 'nowhere:make'"),
        (["--conformance-engine", ""], "an engine is named module:factory, as in an import, not ''"),
        (["--conformance-command", ""], "cannot start '': it is empty"),
        (["--conformance-engine", "toy_engines:make", "--conformance-reference", ""], "not ''"),
        (["--conformance-command", "no-such-engine-anywhere"], "cannot start 'no-such-engine-anywhere'"),
        (["--conformance-engine", "toy_engines:make", "--conformance-command", "x"], "not both"),
        (["--conformance-reference", "toy_engines:make"], "give --conformance-engine or --conformance-command, too"),
        (["--conformance-reference-command", "x"], "--conformance-reference-command names what an engine is compared"),
        (
            ["--conformance-engine", "toy_engines:make", "--conformance-law-samples", "99"],
            "law_samples must be an integer in",
        ),
        (["--conformance-engine", "toy_engines:make", "--conformance-reference", "nowhere:make"], "cannot load"),
        (["--conformance-engine", "toy_engines:make", "--conformance-examples", "0"], "max_examples must be an"),
        (["--conformance-engine", "toy_engines:make", "--conformance-timeout", "0"], "timeout_s must be from 0.01"),
        (["--conformance-engine", "toy_engines:make", "--conformance-max-examples", "0"], "max_examples must be an"),
        (["--conformance-engine", "toy_engines:make", "--conformance-timeout-s", "0"], "timeout_s must be from 0.01"),
        (["--conformance-engine", "toy_engines:make", "--conformance-timeout", "nan"], "timeout_s must be from 0.01"),
    ],
)
def test_the_pytest_plugin_refuses_wrong_options_in_one_line(tmp_path: Path, options: list[str], told: str) -> None:
    done = run_plugin(tmp_path, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert told in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
