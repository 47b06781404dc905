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
from refimpl.conformance.watch import Watch
from refimpl.core import progress

TWO = ["budget_is_exact", "equals_reference"]


class Clock:
    """A second passes whenever an engine is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def ticking(self, change: Any = None) -> Toy:
        def answer(prompts: Any, settings: Any, outputs: Any) -> Any:
            self.now += 1
            return change(outputs) if change else outputs

        return Toy(answer)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["--engine", "toy_engines:make", "--max-examples", "3", *arguments])


# --- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ALL_PROPERTIES)
def test_without_time_nothing_is_asked(rule: str) -> None:
    report = check_engine(Toy(lambda *_: pytest.fail("asked")), properties=[rule], watch=Watch(total_time_s=0))
    (verdict,) = report.verdicts
    assert (verdict.status, verdict.asked, report.exit_code) == ("not finished", 0, 3)


def test_a_run_ends_when_its_time_is_up() -> None:
    clock = Clock()
    report = check_engine(clock.ticking(), properties=TWO, watch=Watch(None, 5, clock))
    assert clock.now == 5
    first, second = report.verdicts
    assert (first.status, first.reason, first.asked) == ("not finished", "the time was up after 5 cases", 5)
    assert (second.status, second.asked) == ("not finished", 0)
    assert not report.passed
    told = "not finished: the time was up before all was checked of budget_is_exact, equals_reference"
    assert conclusion(report) == told


def test_a_case_that_was_cut_short_does_not_count() -> None:
    clock = Clock()
    report = check_engine(clock.ticking(), properties=["raggedness"], watch=Watch(None, 5, clock))
    assert clock.now == 5
    assert (report.verdicts[0].asked, report.verdicts[0].answered) == (0, 0)


def test_what_was_finished_keeps_its_verdict() -> None:
    clock = Clock()
    report = check_engine(clock.ticking(), properties=TWO, max_examples=3, watch=Watch(None, 4, clock))
    assert [verdict.status for verdict in report.verdicts] == ["pass", "not finished"]
    assert report.unfinished == report.as_dict()["unfinished"] == ["equals_reference"]


def test_a_failure_stays_one_when_the_time_is_up_while_it_shrinks() -> None:
    clock = Clock()
    engine = clock.ticking(lambda outputs: [tokens[:5] for tokens in outputs])
    report = check_engine(engine, properties=TWO, watch=Watch(None, 6, clock))
    first, second = report.verdicts
    assert (first.status, second.status, report.exit_code) == ("fail", "not finished", 1)
    assert first.reason.startswith("the time was up before the smallest case was found; it fails with: row 0 has")
    assert first.calls
    assert conclusion(report) == "does not conform"


def test_the_command_ends_with_three_and_names_what_was_not_checked(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    result = run("--total-time", "0", "--properties", ",".join(TWO), "--output", str(output))
    assert result.exit_code == 3
    assert "all was checked of budget_is_exact, equals_reference" in " ".join(result.stdout.split())
    assert json.loads(output.read_text())["unfinished"] == TWO
    assert run("--total-time", "-1").exit_code == 2


# --- progress ----------------------------------------------------------------------------------------------------


def test_progress_names_the_property_and_counts_its_cases() -> None:
    told: list[tuple[str, int, int]] = []
    properties = ["runs_repeat", "temperature_matters"]
    report = check_engine(Toy(), properties=properties, max_examples=3, watch=Watch(lambda *told_: told.append(told_)))
    assert [verdict.asked for verdict in report.verdicts] == [4, 1]
    assert told[:5] == [("runs_repeat", done, 4) for done in range(5)]
    assert told[5:] == [("temperature_matters", 0, 1), ("temperature_matters", 1, 1)]


def test_shrinking_adds_to_the_cases() -> None:
    told: list[tuple[str, int, int]] = []
    wrong = Toy(lambda prompts, settings, outputs: [tokens[:-1] for tokens in outputs])
    check_engine(wrong, properties=TWO[:1], max_examples=1, watch=Watch(lambda *told_: told.append(told_)))
    assert told[-1][1] > 2
    assert all(done <= planned for _, done, planned in told)


def test_progress_stays_off_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = run("--properties", "runs_repeat")
    assert quiet.stderr == ""
    monkeypatch.setattr(progress, "SECONDS_A_LINE", -1)
    told = run("--properties", "runs_repeat")
    assert "runs_repeat: 3 of 4\n" in told.stderr
    assert told.stdout == quiet.stdout


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    real = progress.Console
    monkeypatch.setattr(progress, "Console", lambda **options: real(**options, force_terminal=True, width=80))
    monkeypatch.setattr(progress, "_is_terminal", lambda: True)
    told = run("--properties", "runs_repeat")
    assert "runs_repeat" in told.stderr
    assert "4/4" in told.stderr
    assert "4/4" in told.stdout
    assert "\x1b[2K" not in told.stdout
