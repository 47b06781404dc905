"""Progress of the kit, and runs whose time is up."""

import json
from pathlib import Path
from typing import Any

import pytest
from toy_engines import Toy
from typer.testing import CliRunner

from refimpl.conformance.command import app
from refimpl.conformance.kit import ALL_PROPERTIES, check_engine
from refimpl.conformance.report import conclusion
from refimpl.conformance.verdicts import Report
from refimpl.conformance.watch import Watch
from refimpl.core import progress

TWO = ["budget_is_exact", "equals_reference"]


def timed(seconds: float, change: Any = lambda outputs: outputs, **options: Any) -> tuple[Report, float]:
    """A run of two properties, in which a second passes whenever the engine is asked; and the seconds that passed."""
    now = [0.0]

    def answer(prompts: Any, settings: Any, outputs: Any) -> Any:
        now[0] += 1
        return change(outputs)

    watch = Watch(None, seconds, lambda: now[0])
    return check_engine(Toy(answer), **{"properties": TWO, "watch": watch} | options), now[0]


@pytest.mark.parametrize("rule", ALL_PROPERTIES)
def test_without_time_nothing_is_asked(rule: str) -> None:
    report = check_engine(Toy(lambda *_: pytest.fail("asked")), properties=[rule], watch=Watch(total_time_s=0))
    (verdict,) = report.verdicts
    assert (verdict.status, verdict.asked, report.exit_code) == ("not finished", 0, 3)


def test_a_run_ends_when_its_time_is_up() -> None:
    report, seconds = timed(5)
    first, second = report.verdicts
    assert seconds == 5
    assert (first.status, first.reason, first.asked) == ("not finished", "the time was up after 5 cases", 5)
    assert (second.status, second.asked, report.passed) == ("not finished", 0, False)
    told = "not finished: the run ended before all was checked of budget_is_exact, equals_reference"
    assert conclusion(report) == told


def test_a_case_that_was_cut_short_does_not_count_and_what_was_finished_does() -> None:
    report, seconds = timed(5, properties=["raggedness"])
    assert (seconds, report.verdicts[0].asked, report.verdicts[0].answered) == (5, 0, 0)
    finished, _ = timed(4, max_examples=3)
    assert [verdict.status for verdict in finished.verdicts] == ["pass", "not finished"]
    assert finished.unfinished == finished.as_dict()["unfinished"] == ["equals_reference"]


def test_a_failure_stays_one_when_the_time_is_up_while_it_shrinks() -> None:
    report, _ = timed(6, lambda outputs: [tokens[:5] for tokens in outputs])
    first, second = report.verdicts
    assert (first.status, second.status, report.exit_code) == ("fail", "not finished", 1)
    assert first.reason.startswith("the time was up before the smallest case was found; it fails with: row 0 has")
    assert first.calls
    assert conclusion(report) == "does not conform"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["--engine", "toy_engines:make", "--max-examples", "3", *arguments])


def test_the_command_ends_with_three_and_names_what_was_not_checked(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    result = run("--total-time", "0", "--properties", ",".join(TWO), "--output", str(output))
    assert result.exit_code == 3
    assert "all was checked of budget_is_exact, equals_reference" in " ".join(result.stdout.split())
    assert json.loads(output.read_text())["unfinished"] == TWO
    assert run("--total-time", "-1").exit_code == 2


@pytest.mark.parametrize("change", [None, lambda prompts, settings, outputs: [tokens[:-1] for tokens in outputs]])
def test_progress_names_the_property_and_counts_its_cases(change: Any) -> None:
    """Shrinking adds to both."""
    told: list[tuple[str, int, int]] = []
    report = check_engine(
        Toy(change), properties=TWO[:1], max_examples=1, watch=Watch(lambda *given: told.append(given))
    )
    asked = report.verdicts[0].asked
    assert [done for _, done, _ in told] == list(range(asked + 1))
    assert asked > 2 if change else {planned for _, _, planned in told} == {2}
    assert all(name == TWO[0] and done <= planned for name, done, planned in told)


def test_progress_stays_off_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = run("--properties", "runs_repeat")
    assert quiet.stderr == ""
    monkeypatch.setattr(progress, "SECONDS_A_LINE", -1)
    told = run("--properties", "runs_repeat")
    assert "runs_repeat: 3 of 4\n" in told.stderr
    assert told.stdout == quiet.stdout
    real = progress.Console
    monkeypatch.setattr(progress, "Console", lambda **options: real(**options, force_terminal=True, width=80))
    monkeypatch.setattr(progress, "_is_terminal", lambda: True)
    barred = run("--properties", "runs_repeat")
    assert "4/4" in barred.stderr, "a terminal gets bars"
    assert "\x1b[2K" not in barred.stdout
