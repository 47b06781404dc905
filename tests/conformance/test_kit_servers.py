"""Servers under test: the example conforms, bad ones give a report with what they said instead of a hang."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from refimpl.conformance import adapters
from refimpl.conformance.command_engine import LEAVE_S, LOADING, CommandEngine
from refimpl.conformance.kit import ALL_PROPERTIES, MAX_LOSSES, check_engine
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import Call, EngineFailure, EngineGone, EngineSettings
from refimpl.conformance.subject import Subject
from refimpl.conformance.wire import request_of
from refimpl.core.errors import InputError

BAD = f"{sys.executable} {Path(__file__).with_name('bad_servers.py')}"
SERVER = Path(adapters.__file__).with_name("example_server.py")
EXAMPLE = f"{sys.executable} -I -S {SERVER}"  # the standard library alone
TWO = ["budget_is_exact", "runs_repeat"]
Start = Callable[..., CommandEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[CommandEngine] = []

    def bad_server(kind: str, timeout_s: float = 20.0) -> CommandEngine:
        engines.append(CommandEngine(f"{BAD} {kind}", timeout_s))
        return engines[-1]

    yield bad_server
    for engine in engines:
        engine.close()


def has_ended(number: int) -> bool:
    """Whether a process runs no longer, soon."""
    for _ in range(100):
        try:
            os.kill(number, 0)
            if Path(f"/proc/{number}/stat").read_text().split()[2] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


# --- the example ---------------------------------------------------------------------------------------------------


def test_the_example_server_conforms_through_the_command(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "refimpl", "conformance", "--command", EXAMPLE, "--max-examples", "2"]
    done = subprocess.run([*command, "--output", str(report)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    content = json.loads(report.read_text())
    assert content["passed"] is True
    assert {row["property"] for row in content["properties"]} == set(ALL_PROPERTIES)
    assert len(SERVER.read_text().splitlines()) <= 40


def test_what_the_example_server_prints_beside_its_answers_goes_to_stderr(tmp_path: Path) -> None:
    noisy = "print('loading')\n    os.system('echo compiled')\n    tokens = list(prompt)"
    (tmp_path / "server.py").write_text(SERVER.read_text().replace("tokens = list(prompt)", noisy))
    engine = CommandEngine(f"{sys.executable} {tmp_path / 'server.py'}", 20.0)
    assert len(engine([[1, 2]], EngineSettings(5))["outputs"][0]) == 5
    engine.close()


def test_a_timetable_is_in_a_request_only_where_there_is_one() -> None:
    timetable = EngineSettings(8, 2, 2, submit_at=(0, 3), cancel_at=(None, 2))
    plain, busy = (request_of(Call(((1, 2), (3,)), settings), 7) for settings in (EngineSettings(), timetable))
    assert (busy["submit_at"], busy["cancel_at"], busy["id"]) == ((0, 3), (None, 2), 7)
    assert not {"submit_at", "cancel_at"} & plain.keys()


# --- bad servers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("crash", "closed its output with status 1: out of memory"),
        ("half", """the engine printed '{"id": 1, "outp' on stdout; print logs to stderr"""),
        ("garbage", "the engine printed 'Loading checkpoint shards: 100%' on stdout; print logs to stderr"),
        ("another-id", """expected a JSON object with id 1, got the line '{"id": 7}'"""),
        ("endless", "the engine printed '[[[["),
        ("long-error", "a frame a frame ValueError: no memory"),
        ("wrong-form", "not a list of token ids: ['a']"),
    ],
)
def test_a_bad_server_is_told_clearly(start: Start, kind: str, told: str) -> None:
    with pytest.raises(EngineFailure) as failure:
        Subject(start(kind)).run([[1, 2]], EngineSettings())
    assert told in str(failure.value)
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 600


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no-abilities", "supports must be a list of abilities, not None"),
        ("refuses-to-tell", "does not describe itself: describe"),
        ("log-first", "does not describe itself: the engine printed 'INFO loading' on stdout; print logs to stderr"),
    ],
)
def test_a_server_that_does_not_describe_itself_is_an_input_error(start: Start, kind: str, told: str) -> None:
    with pytest.raises(InputError, match=r"bad_servers\.py") as refused:
        start(kind)
    assert told in str(refused.value)


@pytest.mark.parametrize("kind", ["hang", "deaf"])
def test_a_server_that_does_not_answer_or_read_ends_the_run(start: Start, kind: str) -> None:
    """A request that is larger than a pipe does not fit in before it is read."""
    engine = start(kind)
    engine.timeout_s, engine.supports = 1.0, frozenset({"sampling"})
    process = engine._process
    wanted, limits = ["samples_follow_the_law", "runs_repeat"], Limits(law_samples=16384)
    report = check_engine(engine, max_examples=1, properties=wanted, limits=limits)
    assert [v.status for v in report.verdicts] == ["fail", "not run"]
    assert "no answer within 1 s (timeout_s)" in report.verdicts[0].reason
    assert process is not None
    assert process.returncode is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_server_ends_with_the_command(tmp_path: Path, number: int, code: int) -> None:
    """What it has not asked yet is in the report."""
    mark, report = tmp_path / "pid", tmp_path / "report.json"
    command = [sys.executable, "-m", "refimpl", "conformance", "--command", f"{BAD} hang {mark}", "--timeout-s", "100"]
    command += ["--output", str(report)]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # a test run in the background ignores SIGINT
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    assert has_ended(int(mark.read_text()))
    found = json.loads(report.read_text())
    assert found["unfinished"] == list(ALL_PROPERTIES)
    assert {row["reason"] for row in found["properties"]} == {"interrupted after 0 cases"}


def test_what_a_server_has_started_ends_with_it(start: Start, tmp_path: Path) -> None:
    start(f"helper {tmp_path / 'pid'}").close()
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_a_server_may_take_its_leave_when_its_stdin_closes_and_is_killed_if_it_stays(
    start: Start, tmp_path: Path
) -> None:
    engine = start(f"farewell {tmp_path / 'ended'}")
    assert engine([[1]], EngineSettings(max_new_tokens=2))
    engine.close()
    assert (tmp_path / "ended").exists()
    stays = start("stays")
    process = stays._process
    stays.close()
    assert process is not None
    assert process.returncode == -signal.SIGKILL


# --- crashes -------------------------------------------------------------------------------------------------------


def test_crashes_keep_their_text_and_case_and_the_other_properties_run(start: Start) -> None:
    engine, starts = start("late-crash"), []
    begin = engine._start
    engine._start = lambda: (starts.append(1), begin())[1]  # type: ignore[method-assign]
    report = check_engine(engine, max_examples=10, properties=["budget_is_exact", "stop_is_exact", "runs_repeat"])
    for verdict in report.verdicts:
        assert verdict.status == "fail"
        assert "closed its output with status 1: out of memory" in verdict.reason
        assert len(verdict.calls[-1].prompts) > 1
    assert len(starts) <= 3 * MAX_LOSSES


def test_a_crash_that_does_not_come_back_keeps_its_text_and_case(start: Start) -> None:
    (verdict,) = check_engine(start("crash-once"), max_examples=10, properties=["budget_is_exact"]).verdicts
    assert verdict.status == "fail"
    assert "fails once and passes once" in verdict.reason
    assert "status 1: out of memory" in verdict.reason
    assert verdict.calls


@pytest.mark.parametrize(
    ("kind", "told"), [("crash-for-good", "does not start again"), ("another-again", "after a crash, not as")]
)
def test_a_server_that_does_not_start_again_as_what_it_was_ends_the_run(
    start: Start, tmp_path: Path, kind: str, told: str
) -> None:
    engine = start(f"{kind} {tmp_path / 'mark'}")
    first, second = check_engine(engine, max_examples=10, properties=TWO).verdicts
    assert (first.status, second.status) == ("fail", "not run")
    assert "status 1: out of memory" in first.reason
    assert told in second.reason
    assert engine._process is None
    with pytest.raises(EngineGone):
        engine([[1]], EngineSettings())


def test_a_server_loads_again_under_the_long_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, limits, wait_for = start("late-crash"), list[float](), asyncio.wait_for
    monkeypatch.setattr(asyncio, "wait_for", lambda work, limit: (limits.append(limit), wait_for(work, limit))[1])
    with pytest.raises(EngineFailure, match="out of memory"):
        engine([[1], [2]], EngineSettings())
    assert engine([[1]], EngineSettings(max_new_tokens=2))
    assert [limit for limit in limits if limit != LEAVE_S] == [20.0, LOADING * 20.0, 20.0]
