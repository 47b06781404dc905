"""What fails is told: engines that refuse, exit, hang, stop early or misdescribe themselves, and what reports say."""

import json
import re
import sys
import threading
import time
from asyncio import CancelledError
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from toy_engines import Prompts, Toy, next_id, refusing

from refimpl.conformance.cases import Limits
from refimpl.conformance.kit import ALL_PROPERTIES, check_engine
from refimpl.conformance.properties import OF_BATCHES
from refimpl.conformance.protocol import EngineGone, EngineSettings, NotSupported
from refimpl.conformance.python_engine import PythonEngine, load_engine, time_limit
from refimpl.conformance.report import conclusion, tell_calls
from refimpl.conformance.verdicts import Report, Verdict
from refimpl.core.errors import InputError


def verdict_of(engine: Any, rule: str, **options: Any) -> Verdict:
    return check_engine(engine, properties=[rule], **options).verdicts[0]


def test_one_of_a_thing_is_told_as_one() -> None:
    one = Toy(lambda prompts, settings, outputs: [tokens[:1] for tokens in outputs], reference=Toy())
    verdict = verdict_of(one, "budget_is_exact", max_examples=3)
    assert verdict.reason.startswith("row 0 has 1 token, the budget is ")
    verdict = verdict_of(Toy(), "equals_reference", max_examples=3, reference=one)
    assert verdict.reason.startswith("the reference (another engine) gives 1 token, ")


# --- refusals ----------------------------------------------------------------------------------------------------


def test_an_engine_that_refuses_everything_does_not_conform() -> None:
    report = check_engine(refusing(), max_examples=3)
    assert {v.status for v in report.verdicts} == {"not supported"}
    assert all(v.asked and not v.answered for v in report.verdicts)
    assert not report.passed
    assert not report.conforms


def test_an_engine_that_answers_no_batch_does_not_conform() -> None:
    report = check_engine(refusing("batches"), max_examples=20, properties=["equals_reference", "runs_repeat"])
    verdict = report.verdicts[0]
    assert (verdict.status, verdict.reason) == ("not supported", "no batch of several rows was answered: batches")
    assert 0 < verdict.answered < verdict.asked <= 20 + 5, "those that are searched, and five fixed ones"
    row = report.as_dict()["properties"][0]
    assert (row["asked"], row["answered"]) == (verdict.asked, verdict.answered)
    assert conclusion(report) == "does not conform: equals_reference must pass"


@pytest.mark.parametrize("rule", sorted(OF_BATCHES))
def test_single_prompts_say_nothing_of_batches(rule: str) -> None:
    engine = refusing("batches")
    engine.supports = frozenset({"serving"})
    verdict = verdict_of(engine, rule)
    assert 0 < verdict.answered < verdict.asked
    assert (verdict.status, verdict.reason) == ("not supported", "no batch of several rows was answered: batches")


@pytest.mark.parametrize(
    ("statuses", "passed", "told"),
    [
        ({"equals_reference": "pass", "runs_repeat": "not supported"}, True, "passes in the 2 of"),
        (dict.fromkeys(ALL_PROPERTIES, "pass"), True, "conforms"),
        ({"equals_reference": "pass", "runs_repeat": "not finished"}, False, "not finished"),
        ({"equals_reference": "not supported", "runs_repeat": "pass"}, False, "does not conform: equals_reference"),
        ({"equals_reference": "pass", "runs_repeat": "fail"}, False, "does not conform"),
        ({"equals_reference": "pass", "runs_repeat": "not run"}, False, "does not conform"),
        ({"equals_reference": "pass", "raggedness": "fail"}, False, "does not conform"),
        ({"runs_repeat": "pass"}, True, "passes what was asked; whether it conforms only equals_reference can tell"),
        ({"runs_repeat": "not supported"}, False, "does not conform: nothing that was asked is supported"),
        ({}, False, "does not conform"),
    ],
)
def test_only_equality_with_the_reference_makes_an_engine_conform(
    statuses: dict[str, Any], passed: bool, told: str
) -> None:
    report = Report("engine", tuple(Verdict(name, status) for name, status in statuses.items()))
    assert report.passed == passed
    assert conclusion(report).startswith(told)
    words = {"conforms": True, "does": False, "passes": None, "not": None}
    assert report.as_dict()["conforms"] is report.conforms is words[told.partition(" ")[0]]
    found = report.as_dict()
    run = sum(status in ("pass", "fail") for status in statuses.values())
    assert (found["properties_run"], found["properties_total"]) == (run, len(ALL_PROPERTIES))


def test_it_is_said_how_many_properties_were_checked() -> None:
    def concluded(names: Iterable[str], **limits: int) -> str:
        return conclusion(Report("x", tuple(Verdict(name, "pass") for name in names), limits=Limits(**limits)))

    assert concluded(ALL_PROPERTIES) == "conforms"
    assert concluded(ALL_PROPERTIES, max_batch=1) == "conforms, one row at a time"
    some = f"passes in the 2 of {len(ALL_PROPERTIES)} properties that were checked"
    assert concluded(["equals_reference", "runs_repeat"]) == some
    assert concluded(["equals_reference", "runs_repeat"], max_batch=1) == f"{some}, one row at a time"


# --- crashes, exits, hangs, short answers --------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(0),
        RuntimeError("out of memory\ntried 2 GiB"),
        AssertionError("too large"),
        CancelledError("loop closed"),
    ],
)
def test_whatever_an_engine_raises_is_a_failure_of_its_smallest_case(error: BaseException, timed: bool) -> None:
    def fail(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if len(prompts) > 2:
            raise error
        return outputs

    verdict = verdict_of(PythonEngine(Toy(fail)) if timed else Toy(fail), "equals_reference")
    assert (verdict.status, len(verdict.calls[0].prompts)) == ("fail", 3)
    assert verdict.reason == " ".join(f"{type(error).__name__}: {error}".split())


@pytest.mark.parametrize("kept", [0, 3])
def test_a_reference_that_ends_early_is_a_failure(kept: int) -> None:
    report = check_engine(Toy(lambda prompts, settings, outputs: [tokens[:kept] for tokens in outputs]), max_examples=5)
    failed = {v.property: v.reason for v in report.verdicts if v.status == "fail"}
    assert {"equals_reference", "stop_is_exact", "samples_are_keyed", "raggedness"} <= set(failed)
    assert f"the reference (itself with k=0) gives {kept} tokens" in failed["stop_is_exact"]


def test_an_engine_that_hangs_is_bounded_and_ends_the_run() -> None:
    def hang(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        while len(prompts) > 1:
            try:
                time.sleep(0.01)
            except Exception:
                continue
        return outputs

    engine = PythonEngine(Toy(hang), "hanging", timeout_s=2)
    first, second = check_engine(engine, properties=["budget_is_exact", "runs_repeat"]).verdicts
    assert (first.status, second.status) == ("fail", "not run")
    assert "no answer within 2 s (timeout_s)" in first.reason
    assert re.fullmatch(r".*test_kit_failures.py:\d+, in hang", first.place)
    assert len(first.calls[0].prompts) > 1


def test_time_that_runs_out_in_a_finalizer_ends_the_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised there is lost; nor may it reach the hook that is told, in which time may run out once more."""
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: None)

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.5)

    def body() -> None:
        Slow()
        time.sleep(5)

    with pytest.raises(EngineGone), time_limit(0.05):
        body()


def test_the_limit_of_time_is_that_of_the_main_thread() -> None:
    with pytest.raises(EngineGone), time_limit(0.05):
        time.sleep(5)
    done: list[int] = []

    def body() -> None:
        with time_limit(0.001):
            time.sleep(0.05)
            done.append(1)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done


def wrong_at_spread_6(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    lengths = sorted(map(len, prompts))
    return [next_id(outputs[0]), *outputs[1:]] if lengths == [4, 6, 8, 10] else outputs


def crash_at_spread_6(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    if wrong_at_spread_6(prompts, settings, outputs) != outputs:
        raise RuntimeError("out of memory")
    return outputs


def test_wrong_rows_of_the_raggedness_profile_count() -> None:
    report = check_engine(Toy(wrong_at_spread_6), max_examples=1, properties=["equals_reference", "raggedness"])
    verdict = report.verdicts[1]
    assert [v.status for v in report.verdicts] == ["pass", "fail"]
    assert not report.passed
    assert report.raggedness.wrong_rows == (0, 0, 5, 0)
    assert (verdict.row, verdict.token) == (0, 11)
    assert sorted(map(len, verdict.calls[0].prompts)) == [4, 6, 8, 10]


def test_a_failure_in_the_raggedness_profile_counts() -> None:
    report = check_engine(Toy(crash_at_spread_6), max_examples=1, properties=["equals_reference", "raggedness"])
    assert report.verdicts[1].reason == "RuntimeError: out of memory"
    assert sorted(map(len, report.verdicts[1].calls[-1].prompts)) == [4, 6, 8, 10]
    assert report.raggedness.verdict == "not measured"
    assert not report.passed


def test_wrong_rows_count_also_where_a_later_batch_is_refused() -> None:
    def refuse_spread_12(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if max(map(len, prompts)) == 16:
            raise NotSupported("prompts of 16 tokens")
        return wrong_at_spread_6(prompts, settings, outputs)

    verdict = verdict_of(Toy(refuse_spread_12), "raggedness")
    assert (verdict.status, verdict.row) == ("fail", 0)


def test_a_reference_that_fails_is_told_from_the_engine() -> None:
    verdict = verdict_of(Toy(reference=lambda prompts, settings: [][0]), "equals_reference")
    assert verdict.reason == "the reference fails: IndexError: list index out of range"
    assert verdict.place.endswith(", in <lambda>")


# --- what a report says ----------------------------------------------------------------------------------------------


def test_a_failed_sample_can_be_asked_again_from_the_report() -> None:
    def wrong_if_sampled(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        wrong = settings.temperature == 2 and settings.seed > 5 and settings.num_speculative_tokens
        return [*outputs[:-1], next_id(outputs[-1])] if wrong else outputs

    engine = Toy(wrong_if_sampled)
    report = check_engine(engine, properties=["samples_are_keyed"])
    (request,) = map(json.loads, report.as_dict()["properties"][0]["requests"])
    assert (request.pop("op"), request.pop("id")) == ("generate", 1)
    prompts, settings = request.pop("prompts"), EngineSettings(**request)
    assert engine(prompts, settings) != engine(prompts, replace(settings, num_speculative_tokens=0))
    assert "temperature 2.0, seed 6" in tell_calls(report.verdicts[0])[0]


def test_the_law_tells_its_real_prompts() -> None:
    def first_token_is_zero(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        return [[0, *tokens[1:]] for tokens in outputs] if settings.num_speculative_tokens else outputs

    verdict = verdict_of(Toy(first_token_is_zero), "samples_follow_the_law")
    assert verdict.status == "fail"
    assert len(verdict.calls[0].prompts) == 4096
    assert "prompts 4096 × [4, 1]; max_new_tokens 4" in tell_calls(verdict)[0]
    assert "temperature 0.7, seed 1" in tell_calls(verdict)[0]


def test_a_failure_that_does_not_come_back_keeps_its_case() -> None:
    count: list[int] = []

    def wrong_once(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        count.append(1)
        return [next_id(outputs[0]), *outputs[1:]] if len(count) == 8 else outputs

    verdict = verdict_of(Toy(wrong_once, reference=Toy()), "equals_reference")
    assert verdict.status == "fail"
    assert "fails once and passes once" in verdict.reason
    assert "row 0 differs from token" in verdict.reason
    assert verdict.calls


def test_the_report_names_the_reference() -> None:
    def no_plain(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if settings.num_speculative_tokens == 0:
            raise NotSupported("k=0")
        return outputs

    def kind(engine: Toy, **options: Any) -> str:
        return check_engine(engine, max_examples=1, properties=["equals_reference"], **options).reference

    assert kind(Toy(reference=Toy())) == "own"
    assert kind(Toy()) == "itself with k=0"
    assert kind(Toy(no_plain)) == "itself with k=1"
    assert kind(Toy(), reference=Toy()) == "another engine"
    wrong_everywhere = Toy(lambda prompts, settings, outputs: list(map(next_id, outputs)))
    assert verdict_of(wrong_everywhere, "equals_reference").status == "pass"
    assert verdict_of(wrong_everywhere, "equals_reference", reference=Toy()).status == "fail"


# --- descriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nonsense", "module:factory"),
        (":make", "module:factory"),
        ("./toy_engines.py:make", "module:factory"),
        ("refimpl.nowhere:make", "cannot load"),
        ("refimpl.faults.engine:faulty:x", "unknown fault"),
        ("toy_engines:exiting:made", "SystemExit: 0"),
        ("toy_engines:without_vocabulary", "vocab_size must be an integer of at least 2, not None"),
        ("toy_engines:without_abilities", "supports must be a list of abilities, not None"),
        ("toy_engines:text_as_abilities", "supports must be a list of abilities, not 'sampling'"),
        ("toy_engines:misspelt", "unknown ability 'keyed-sampling' in supports: choose sampling, keyed_sampling"),
        ("toy_engines:with_a_list_as_reference", "reference must be a function"),
    ],
)
def test_a_wrong_engine_is_an_input_error(name: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        load_engine(name)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = (", "SyntaxError"),
        ("raise RuntimeError('no GPU')", "no GPU"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise BaseException('panic')", "panic"),
    ],
)
def test_a_module_that_cannot_be_imported_is_an_input_error(tmp_path, monkeypatch, source: str, told: str) -> None:
    (tmp_path / "broken_engine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=told):
        load_engine("broken_engine:make")


def test_modules_are_looked_for_in_the_current_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "engine_in_this_folder.py").write_text("import toy_engines\nmake = toy_engines.make\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InputError, match="No module named"):
        load_engine("engine_in_this_folder:make")
    monkeypatch.chdir(tmp_path)
    assert load_engine("engine_in_this_folder:make").vocab_size > 1


def test_vocabularies_of_two_are_enough() -> None:
    def halved(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        assert all(token < 2 for prompt in prompts for token in prompt)
        return [[token % 2 for token in tokens] for tokens in outputs]

    report = check_engine(Toy(halved, vocab_size=2, supports=frozenset({"sampling"})), max_examples=5)
    assert not any("AssertionError" in v.reason for v in report.verdicts)
