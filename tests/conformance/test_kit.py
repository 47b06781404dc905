"""The conformance kit: right engines pass, every fault fails, and bad servers give a report instead of a hang."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refimpl.config import NAMED_METHODS
from refimpl.conformance import adapters
from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.engine_cases import (
    ENGINE_PROPERTIES,
    EngineCase,
    Limits,
    Subject,
    equals_reference,
    law_p_value,
)
from refimpl.conformance.kit import Raggedness, Report, Verdict, check_engine
from refimpl.conformance.protocol import EngineFailure, EngineSettings, EngineUnderTest, NotSupported, load_engine
from refimpl.conformance.report import conclusion
from refimpl.errors import InputError, InvariantViolation
from refimpl.faults import FAULTS
from refimpl.faults.engine import faulty, faulty_unchecked

HERE = Path(__file__).parent
EXAMPLE = f"{sys.executable} -m refimpl.conformance.example_server"
CAUGHT_BY = {  # every other fault: equals_reference
    "stop-found-in-prompt": "stop_is_exact",
    "stop-does-not-cut": "stop_is_exact",
    "stop-only-at-block-end": "stop_is_exact",
    "shared-random-stream": "samples_are_keyed",
    "noise-keyed-by-batch-row": "samples_are_keyed",
    "draft-drawn-from-another-q": "samples_follow_the_law",
    "ratio-upside-down": "samples_follow_the_law",
}
NEED_GROUPS = ["padded-length-as-group-key", "cache-state-not-in-group-key"]
NIGHTLY = ["residual-forgotten", "rollback-draws-again"]  # as ratio-upside-down, and the matrix has them too
BRIEF = ["equals_reference", "stop_is_exact", "samples_are_keyed"]


@pytest.mark.parametrize("method", NAMED_METHODS)
def test_our_methods_conform(method: str) -> None:
    assert check_engine(adapters.method(method), max_examples=3, properties=BRIEF, raggedness=False).passed


@pytest.mark.parametrize("size", [3, 50, 5000, 10**9])
def test_the_law_of_any_vocabulary_is_compared(size: int) -> None:
    """Two samples of one law, of shifted ids, and of a law that differs in the last token alone."""
    rng = random.Random(size)
    first, second = ([tuple(rng.randrange(size) for _ in range(3)) for _ in range(1024)] for _ in range(2))
    assert law_p_value(first, second) > 1e-3
    assert law_p_value(first, [(a + size, b, c) for a, b, c in second]) < 1e-9
    assert law_p_value(first, [(a, b, c // 2) for a, b, c in second]) < 1e-9


def test_answers_of_one_token_or_none_have_a_law() -> None:
    assert law_p_value([(1,)] * 1024, [(1,)] * 1024) == 1
    assert law_p_value([(1,)] * 1024, [()] * 1024) < 1e-9
    assert law_p_value([(1, 2)] * 1024, [(1,)] * 1024) < 1e-9


class WrongFrom:
    """The right tokens up to a place."""

    def __init__(self, token: int):
        self.right, self.token = adapters.method("inplace"), token
        self.vocab_size, self.supports = self.right.vocab_size, frozenset[str]()
        self.reference = self.right.reference

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        outputs = self.right(prompts, settings)
        return [[(t + (i >= self.token)) % self.vocab_size for i, t in enumerate(output)] for output in outputs]


@pytest.mark.parametrize(
    ("token", "limits", "passes"), [(47, Limits(), False), (48, Limits(), True), (48, Limits(8, 60), False)]
)
def test_errors_far_on_are_seen_as_far_as_the_long_case_goes(token: int, limits: Limits, passes: bool) -> None:
    wanted = ["equals_reference"]
    report = check_engine(WrongFrom(token), max_examples=3, properties=wanted, raggedness=False, limits=limits)
    assert report.passed == passes
    assert report.limits == limits


def test_the_rejection_rule_conforms_in_law() -> None:
    wanted = ["samples_follow_the_law"]
    report = check_engine(adapters.rejection("rollback"), max_examples=1, properties=wanted, raggedness=False)
    assert report.verdicts[0].status == "pass"


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in NEED_GROUPS + NIGHTLY])
def test_every_fault_fails_through_the_same_interface(name: str) -> None:
    wanted = [CAUGHT_BY.get(name, "equals_reference")]
    report = check_engine(faulty(name), max_examples=25, properties=wanted, fail_fast=True, shrink=False)
    assert not report.passed
    invariant = FAULTS[name].invariant
    if invariant in ("INV-1", "INV-2", "INV-5", "INV-9", "INV-10", "INV-12"):
        assert invariant in report.verdicts[0].reason


@pytest.mark.parametrize("name", NEED_GROUPS)
def test_grouping_faults_fail_once_groups_form(name: str) -> None:
    engine = faulty(name)
    rng = random.Random(0)
    batches = [[[rng.randrange(engine.vocab_size) for _ in range(3)] for _ in range(7)] for _ in range(40)]
    with pytest.raises(InvariantViolation, match="INV-11"):
        decode_all(engine, batches)


def decode_all(engine: EngineUnderTest, batches: list[list[list[int]]]) -> None:
    for prompts in batches:
        engine(prompts, EngineSettings(max_new_tokens=12, batch_size=2, num_speculative_tokens=2))


def test_a_failure_is_shrunk_and_names_the_first_different_token() -> None:
    engine = faulty_unchecked("dsd-next-token-from-draft")
    verdict = check_engine(engine, properties=["equals_reference"], max_examples=10, fail_fast=True).verdicts[0]
    assert (verdict.status, verdict.row) == ("fail", 0)
    assert verdict.case is not None
    assert f"row 0 differs from token {verdict.token} on" in verdict.reason
    assert len(verdict.case.prompts) == 1
    prompt, subject = verdict.case.prompts[0], Subject(engine)
    for length in range(1, len(prompt)):
        equals_reference(subject, replace(verdict.case, prompts=(prompt[:length],)))


@pytest.mark.parametrize(
    ("wrong_rows", "grows"), [((1, 2, 1, 3), False), ((8, 7, 7, 9), False), ((4, 5, 7, 6), False), ((0, 3, 6, 9), True)]
)
def test_growth_is_told_from_chance(wrong_rows: tuple[int, ...], grows: bool) -> None:
    found = Raggedness((0, 2, 6, 12), wrong_rows, (12,) * 4)
    assert (found.verdict == "grows with raggedness") == grows


def test_errors_that_grow_with_raggedness_are_told_from_those_that_do_not() -> None:
    ragged = check_engine(faulty_unchecked("pads-visible"), properties=[]).raggedness
    constant = check_engine(faulty_unchecked("positions-off-by-one"), properties=[]).raggedness
    healthy = check_engine(adapters.method("eqspec"), properties=[]).raggedness
    assert ragged.verdict == "grows with raggedness"
    assert constant.verdict == "does not grow with raggedness"
    assert healthy.verdict == "no wrong rows at any spread"
    assert Raggedness().verdict == "not measured"


def test_transformers_generate_conforms_where_it_can() -> None:
    wanted = ["equals_reference", "stop_is_exact", "rows_are_independent", "samples_are_keyed"]
    plain = check_engine(adapters.hf_generate("llama"), max_examples=2, properties=wanted)
    assert plain.passed
    status = {v.property: v.status for v in plain.verdicts}
    assert status["equals_reference"] == "pass"
    assert status["samples_are_keyed"] == "not supported"


def test_assisted_generate_takes_one_prompt_at_a_time() -> None:
    engine = adapters.hf_assisted("llama")
    with pytest.raises(NotSupported):
        engine([[1], [2]], EngineSettings(batch_size=2))
    settings = EngineSettings(max_new_tokens=9, batch_size=1)
    plain = adapters.hf_generate("llama")
    assert engine([[5, 6], [9]], settings) == plain([[5, 6], [9]], settings)


REFUSING = """
from refimpl.conformance.protocol import NotSupported

class Refusing:
    vocab_size, supports = 61, frozenset()

    def __call__(self, prompts, settings):
        raise NotSupported("batches")
"""


class Refusing:
    """Refuses everything, or all but batches of one prompt."""

    vocab_size, supports = 61, frozenset()

    def __init__(self, what: str = "all"):
        self.inner = None if what == "all" else adapters.hf_generate("llama")

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        if self.inner is None or len(prompts) > 1:
            raise NotSupported("batches")
        return self.inner(prompts, settings)


def test_an_engine_that_refuses_everything_does_not_conform() -> None:
    report = check_engine(Refusing(), max_examples=3)
    assert {v.status for v in report.verdicts} == {"not supported"}
    assert all(v.asked and not v.answered for v in report.verdicts)
    assert not report.passed
    assert not report.conforms
    code, text = run_command("--engine", f"{__name__}:Refusing", "--max-examples", "2")
    assert code == 1
    assert "does not conform: equals_reference must pass" in text


def test_the_report_counts_the_cases_that_were_answered() -> None:
    report = check_engine(Refusing("batches"), max_examples=20, properties=["equals_reference"], raggedness=False)
    verdict = report.verdicts[0]
    assert verdict.status == "pass"
    assert 0 < verdict.answered < verdict.asked <= 21
    row = report.as_dict()["properties"][0]
    assert (row["asked"], row["answered"]) == (verdict.asked, verdict.answered)
    code, text = run_command("--engine", f"{__name__}:Refusing:batches", "--properties", "equals_reference")
    assert code == 0
    assert f"{verdict.answered}/{verdict.asked}" in text


@pytest.mark.parametrize(
    ("statuses", "passed", "told"),
    [
        ({"equals_reference": "pass", "runs_repeat": "not supported"}, True, "conforms"),
        ({"equals_reference": "not supported", "runs_repeat": "pass"}, False, "does not conform: equals_reference"),
        ({"equals_reference": "pass", "runs_repeat": "fail"}, False, "does not conform"),
        ({"equals_reference": "pass", "runs_repeat": "not run"}, False, "does not conform"),
        ({"runs_repeat": "pass"}, True, "passes what was asked; whether it conforms only equals_reference can tell"),
        ({"runs_repeat": "not supported"}, False, "does not conform"),
        ({}, False, "does not conform"),
    ],
)
def test_only_equality_with_the_reference_makes_an_engine_conform(
    statuses: dict[str, Any], passed: bool, told: str
) -> None:
    report = Report("engine", tuple(Verdict(name, status) for name, status in statuses.items()))
    assert report.passed == passed
    assert conclusion(report).startswith(told)
    assert report.as_dict()["conforms"] == report.conforms == (conclusion(report) == "conforms")


# --- other processes ---------------------------------------------------------------------------------------------


def test_the_example_server_conforms_through_the_command(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "refimpl.conformance", "--command", EXAMPLE, "--max-examples", "2"]
    done = subprocess.run([*command, "--output", str(report)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "conforms" in done.stdout
    content = json.loads(report.read_text())
    assert content["passed"] is True
    assert {row["property"] for row in content["properties"]} == set(ENGINE_PROPERTIES)


def test_the_example_server_is_short() -> None:
    source = Path(adapters.__file__).with_name("example_server.py").read_text()
    assert len(source.splitlines()) <= 40


def bad_server(kind: str, timeout_s: float = 20.0) -> CommandEngine:
    return CommandEngine(f"{sys.executable} {HERE / 'bad_servers.py'} {kind}", timeout_s)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("crash", "closed its output with status 1: out of memory"),
        ("garbage", "got the line 'Loading checkpoint shards: 100%'"),
        ("wrong-form", "not a list of token ids: ['a']"),
    ],
)
def test_a_bad_server_is_told_clearly(kind: str, told: str) -> None:
    engine = bad_server(kind)
    with pytest.raises(EngineFailure, match=r".*") as failure:
        engine([[1, 2]], EngineSettings())
    engine.close()
    assert told in str(failure.value)


def test_a_hanging_server_ends_the_run() -> None:
    engine = bad_server("hang")
    engine.timeout_s = 1.0
    process = engine._process
    report = check_engine(engine, max_examples=2, properties=["budget_is_exact", "runs_repeat"])
    assert [v.status for v in report.verdicts] == ["fail", "not run"]
    assert "no answer within 1 s" in report.verdicts[0].reason
    assert process is not None
    assert process.poll() is not None


def test_a_server_with_wrong_rows_fails_with_its_smallest_case() -> None:
    engine = bad_server("wrong")
    report = check_engine(engine, max_examples=10, properties=["equals_reference"])
    engine.close()
    verdict = report.verdicts[0]
    assert verdict.status == "fail"
    assert verdict.case is not None
    assert len(verdict.case.prompts) == 2


def test_a_command_that_does_not_exist_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cannot start"):
        CommandEngine("no-such-engine-anywhere", 1.0)


@pytest.mark.parametrize(
    ("name", "told"),
    [("nonsense", "module:factory"), ("refimpl.nowhere:make", "cannot load"), ("refimpl.faults.engine:faulty:x", "x")],
)
def test_a_wrong_engine_name_is_an_input_error(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_engine(name)


# --- command and plugin ------------------------------------------------------------------------------------------


def run_command(*arguments: str) -> tuple[int, str]:
    import typer

    from refimpl.conformance.command import conformance

    app = typer.Typer()
    app.command()(conformance)
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


def run_plugin(folder: Path, engine: str, properties: str) -> "subprocess.CompletedProcess[str]":
    options = ["-p", "refimpl.conformance.pytest_plugin", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    chosen = ["--conformance-engine", engine, "--conformance-properties", properties, "--conformance-examples", "9"]
    command = [sys.executable, "-m", "pytest", "-q", *options, *chosen, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


def test_the_pytest_plugin_fails_where_nothing_is_answered(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    done = run_plugin(tmp_path, "refusing:Refusing", "equals_reference,runs_repeat")
    assert done.returncode == 1
    assert "1 failed, 1 skipped" in done.stdout
    assert "equals_reference: batches" in done.stdout


def test_the_pytest_plugin_reports_one_item_a_property(tmp_path: Path) -> None:
    engine = "refimpl.faults.engine:faulty_unchecked:dsd-next-token-from-draft"
    done = run_plugin(tmp_path, engine, "equals_reference,runs_repeat,budget_is_exact")
    assert done.returncode == 1
    assert "equals_reference: not the autoregressive output: row 0 differs from token" in done.stdout
    assert "smallest case found: prompts" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


def test_a_case_is_small_by_default() -> None:
    assert EngineCase(((1,),)).settings == EngineSettings(8, 4, 3)
