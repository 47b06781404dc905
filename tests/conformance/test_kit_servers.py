"""Servers under test: the example conforms, bad ones give a report with what they said instead of a hang."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from refimpl.conformance import adapters
from refimpl.conformance.cases import Limits
from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import ALL_PROPERTIES, MAX_LOSSES, check_engine
from refimpl.conformance.protocol import EngineFailure, EngineGone, EngineSettings
from refimpl.core.errors import InputError

HERE = Path(__file__).parent
SERVER = Path(adapters.__file__).with_name("example_server.py")
EXAMPLE = f"{sys.executable} -I -S {SERVER}"  # the standard library alone


def test_the_example_server_conforms_through_the_command(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "refimpl.conformance", "--command", EXAMPLE, "--max-examples", "2"]
    done = subprocess.run([*command, "--output", str(report)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "conforms" in done.stdout
    content = json.loads(report.read_text())
    assert content["passed"] is True
    assert {row["property"] for row in content["properties"]} == set(ALL_PROPERTIES)


def test_the_example_server_is_short() -> None:
    assert len(SERVER.read_text().splitlines()) <= 40


def test_what_the_example_server_prints_beside_its_answers_goes_to_stderr(tmp_path: Path) -> None:
    noisy = "print('loading')\n    os.system('echo compiled')\n    tokens = list(prompt)"
    (tmp_path / "server.py").write_text(SERVER.read_text().replace("tokens = list(prompt)", noisy))
    engine = CommandEngine(f"{sys.executable} {tmp_path / 'server.py'}", 20.0)
    assert len(engine([[1, 2]], EngineSettings(5))[0]) == 5
    engine.close()


def bad_server(kind: str, timeout_s: float = 20.0) -> CommandEngine:
    return CommandEngine(f"{sys.executable} {HERE / 'bad_servers.py'} {kind}", timeout_s)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("crash", "closed its output with status 1: out of memory"),
        ("half", """closed its output within the line '{"id": 1, "outp' with status 1: out of memory"""),
        ("garbage", "the engine printed 'Loading checkpoint shards: 100%' on stdout; print logs to stderr"),
        ("endless", "the engine printed '[[[["),
        ("empty-error", "the engine reports an error: an empty text"),
        ("long-error", "a frame a frame ValueError: no memory"),
        ("wrong-form", "not a list of token ids: ['a']"),
    ],
)
def test_a_bad_server_is_told_clearly(kind: str, told: str) -> None:
    engine = bad_server(kind)
    with pytest.raises(EngineFailure, match=r".*") as failure:
        engine([[1, 2]], EngineSettings())
    engine.close()
    assert told in str(failure.value)
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 600


def test_a_hanging_server_ends_the_run() -> None:
    engine = bad_server("hang")
    engine.timeout_s = 1.0
    process = engine._process
    report = check_engine(engine, max_examples=2, properties=["budget_is_exact", "runs_repeat"])
    assert [v.status for v in report.verdicts] == ["fail", "not run"]
    assert "no answer within 1 s (timeout_s)" in report.verdicts[0].reason
    assert process is not None
    assert process.poll() is not None


def test_a_server_that_does_not_read_ends_the_run() -> None:
    """A request that is larger than a pipe does not fit in before it is read."""
    engine = bad_server("deaf")
    engine.timeout_s, engine.supports = 1.0, frozenset({"sampling"})
    process = engine._process
    limits = Limits(law_samples=16384)
    wanted = ["samples_follow_the_law", "runs_repeat"]
    report = check_engine(engine, max_examples=1, properties=wanted, limits=limits)
    assert [v.status for v in report.verdicts] == ["fail", "not run"]
    assert "no answer within 1 s" in report.verdicts[0].reason
    assert process is not None
    assert process.poll() is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_server_ends_with_the_command(tmp_path: Path, number: int, code: int) -> None:
    mark = tmp_path / "pid"
    server = f"{sys.executable} {HERE / 'bad_servers.py'} hang {mark}"
    command = [sys.executable, "-m", "refimpl.conformance", "--command", server, "--timeout-s", "100"]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # a test run in the background ignores SIGINT
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_server_with_wrong_rows_fails_with_its_smallest_case() -> None:
    engine = bad_server("wrong")
    report = check_engine(engine, max_examples=10, properties=["equals_reference"])
    engine.close()
    verdict = report.verdicts[0]
    assert verdict.status == "fail"
    assert len(verdict.calls[0].prompts) == 2


def test_a_command_that_does_not_exist_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cannot start"):
        CommandEngine("no-such-engine-anywhere", 1.0)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("late-crash", "closed its output with status 1: out of memory"),
        ("late-log", "the engine printed 'WARNING: a batch of"),
    ],
)
def test_crashes_keep_their_text_and_case_and_the_other_properties_run(kind: str, told: str) -> None:
    engine, starts = bad_server(kind), []
    start = engine._start
    engine._start = lambda: (starts.append(1), start())  # type: ignore[method-assign]
    report = check_engine(engine, max_examples=10, properties=["budget_is_exact", "stop_is_exact", "runs_repeat"])
    engine.close()
    for verdict in report.verdicts:
        assert verdict.status == "fail"
        assert told in verdict.reason
        assert len(verdict.calls[-1].prompts) > 1
    assert len(starts) <= 3 * MAX_LOSSES


def test_a_crash_that_does_not_come_back_keeps_its_text_and_case() -> None:
    engine = bad_server("crash-once")
    verdict = check_engine(engine, max_examples=10, properties=["budget_is_exact"]).verdicts[0]
    engine.close()
    assert verdict.status == "fail"
    assert "fails once and passes once" in verdict.reason
    assert "status 1: out of memory" in verdict.reason
    assert verdict.calls


def test_a_server_that_does_not_start_again_ends_the_run(tmp_path: Path) -> None:
    engine = CommandEngine(f"{sys.executable} {HERE / 'bad_servers.py'} crash-for-good {tmp_path / 'mark'}", 20.0)
    report = check_engine(engine, max_examples=10, properties=["budget_is_exact", "runs_repeat"])
    engine.close()
    first, second = report.verdicts
    assert (first.status, second.status) == ("fail", "not run")
    assert "status 1: out of memory" in first.reason
    assert len(first.calls[-1].prompts) > 1
    assert "does not start again" in second.reason


def test_a_server_that_starts_again_as_another_one_ends_the_run(tmp_path: Path) -> None:
    engine = CommandEngine(f"{sys.executable} {HERE / 'bad_servers.py'} another-again {tmp_path / 'mark'}", 20.0)
    first, second = check_engine(engine, max_examples=10, properties=["budget_is_exact", "runs_repeat"]).verdicts
    engine.close()
    assert (first.status, second.status) == ("fail", "not run")
    assert "after a crash" in second.reason


def test_a_server_that_refuses_to_describe_itself_again_is_ended(tmp_path: Path) -> None:
    engine = bad_server(f"refuses-again {tmp_path / 'asked'}")
    with pytest.raises(EngineFailure, match="out of memory"):
        engine([[1]], EngineSettings())
    with pytest.raises(EngineGone, match=r"does not start again: .* does not describe itself: no GPU is left"):
        engine([[1]], EngineSettings())
    assert engine._process is None, "else the next call would ask what has not described itself"
    assert engine._errors.closed


def test_a_server_loads_again_under_the_long_limit() -> None:
    engine, limits = bad_server("late-crash", timeout_s=20.0), []
    receive = engine._receive
    engine._receive = lambda timeout_s: (limits.append(timeout_s), receive(timeout_s))[1]  # type: ignore[method-assign]
    with pytest.raises(EngineFailure, match="out of memory"):
        engine([[1], [2]], EngineSettings())
    assert engine([[1]], EngineSettings(max_new_tokens=2))
    engine.close()
    assert limits == [20.0, 200.0, 20.0]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no-abilities", "supports must be a list of abilities, not None"),
        ("table-of-abilities", "supports must be a list of abilities, not {'keyed_sampling': False}"),
        ("fraction", "vocab_size must be an integer of at least 2, not 61.0"),
        ("too-many-tokens", "vocab_size must be at most 2147483648, not 1000000"),
        ("refuses-to-tell", "does not describe itself: describe"),
        ("log-first", "does not describe itself: the engine printed 'INFO loading' on stdout; print logs to stderr"),
    ],
)
def test_a_server_that_does_not_describe_itself_is_an_input_error(kind: str, told: str) -> None:
    with pytest.raises(InputError, match=r"bad_servers\.py") as refused:
        bad_server(kind)
    assert told in str(refused.value)


def test_the_place_of_an_error_that_ends_a_server_in_python_is_told(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("rows = []\nif True:\n    print(1 + rows[3] + 1)\n")
    with pytest.raises(
        InputError, match=r"server.py\", line 3, in <module> \| .* \| .*IndexError: list index out of range"
    ):
        CommandEngine(f"{sys.executable} {tmp_path}/server.py")
