"""What the kit says of an engine: failures with their smallest case, refusals, and what it may not hold against one."""

import json
import math
import random
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toy_engines import Change, Prompts, Toy, continuation, keyed_noise, next_id, refusing, verdict_of

from refimpl.conformance.cases import MELTED, EngineCase, long_case
from refimpl.conformance.kit import ALL_PROPERTIES, check_engine
from refimpl.conformance.limits import Limits
from refimpl.conformance.properties import OF_BATCHES, equals_reference
from refimpl.conformance.protocol import EngineGone, EngineSettings, NotSupported
from refimpl.conformance.python_engine import PythonEngine
from refimpl.conformance.report import conclusion, describe, hint, tell_calls
from refimpl.conformance.subject import Subject
from refimpl.conformance.verdicts import Report, Verdict
from refimpl.faults.engine import faulty, faulty_unchecked

EQUAL, LAW = "equals_reference", "samples_follow_the_law"
FEW = Limits(law_samples=512)


class WordlessError(Exception):
    def __str__(self) -> str:
        return self.args[0]["message"]


class PanicException(BaseException):
    """As PyO3 raises it for a panic of Rust."""


def raising(error: BaseException, when: Callable[[Prompts, EngineSettings], bool] = lambda *_: True) -> Toy:
    """An engine that raises an error in some calls."""

    def change(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if when(prompts, settings):
            raise error
        return outputs

    return Toy(change)


def wrong_where(when: Callable[[Prompts, EngineSettings], Any]) -> Change:
    """All rows are wrong in some calls."""
    return lambda prompts, settings, outputs: list(map(next_id, outputs)) if when(prompts, settings) else outputs


def cut(length: int) -> Toy:
    return Toy(lambda prompts, settings, outputs: [tokens[:length] for tokens in outputs])


def greedy(settings: EngineSettings) -> EngineSettings:
    return replace(settings, temperature=0.0)


def likeliest(prompts: Prompts, settings: EngineSettings, _: Prompts) -> Prompts:
    return Toy()(prompts, greedy(settings))


def same_numbers(prompts: Prompts, settings: EngineSettings, _: Prompts) -> Prompts:
    return [continuation(prompt, settings, keyed_noise(settings, 0)) for prompt in prompts]


def zeros(prompts: Prompts, settings: EngineSettings, _: Prompts) -> Prompts:
    return [[0] * (1 if 0 in settings.stop_token_ids else settings.max_new_tokens) for _ in prompts]


def by_length(prompts: Prompts, _: EngineSettings, outputs: Prompts) -> Prompts:
    return [tokens for _, tokens in sorted(zip(map(len, prompts), outputs, strict=True))]


REFUSES = raising(NotSupported("no model"))
TOLD: dict[str, tuple[Any, ...]] = {  # engine, property, options, verdict, and what its reason begins or ends with
    "invariant": (faulty("bsp-as-shipped"), EQUAL, {}, "fail", "InvariantViolation: INV-2"),
    "short by all but one": (cut(1), "budget_is_exact", {}, "fail", "row 0 has 1 token, the budget is "),
    "short reference": (Toy(), EQUAL, {"reference": cut(1)}, "fail", "the reference (another engine) gives 1 token, "),
    "short alone, too": (cut(3), "stop_is_exact", {}, "fail", "the reference (itself with k=0) gives 3 tokens, "),
    "empty": (cut(0), "raggedness", {}, "fail", "the reference (itself with k=0) gives 0 tokens, "),
    "refused": (refusing(), "runs_repeat", {}, "not supported", "batches"),
    "no batch": (refusing("batches"), EQUAL, {}, "not supported", "no batch of several rows was answered: batches"),
    "no serving": (Toy(), "serving_equals_reference", {}, "not supported", "serving"),
    "refusing reference": (Toy(), EQUAL, {"reference": REFUSES}, "not supported", "the reference refuses: no model"),
    "failing reference": (
        Toy(reference=lambda *_: [][0]), EQUAL, {}, "fail", "the reference fails: IndexError: list index out of range",
    ),
    "only one k": (
        Toy(), "draft_length_does_not_matter", {"limits": Limits(max_k=1)}, "not supported",
        "another number of drafts than 1",
    ),
    "truth values": (
        Toy(lambda _, s, rows: [[True] * s.max_new_tokens for _ in rows]), EQUAL, {}, "fail",
        "a row of the answer is not a list of token ids: [True",
    ),
    "no words": (raising(WordlessError("plain text")), EQUAL, {}, "fail", "WordlessError"),
    "order": (
        Toy(by_length, reference=Toy()), EQUAL, {}, "fail",
        "; all rows together are as they should be: are they in another order?",
    ),
    "shared numbers": (
        Toy(same_numbers), LAW, {"limits": FEW}, "fail", "they are all the same: do rows share their random numbers?",
    ),
    "no chance": (
        Toy(likeliest), LAW, {}, "not supported", "the reference's samples after [4, 1] at temperature 0.7 hardly vary",
    ),
    "prompts ignored": (
        Toy(zeros), "prompts_matter", {}, "fail", "16 different prompts get the same tokens: prompts are ignored",
    ),
    "prompts ignored by the reference, too": (
        Toy(zeros), "prompts_matter", {"reference": Toy(zeros)}, "not supported",
        "the reference gives the same tokens after every prompt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_verdict_says_why(name: str) -> None:
    engine, rule, options, status, told = TOLD[name]
    verdict = verdict_of(engine, rule, **{"max_examples": 3, "shrink": False} | options)
    assert verdict.status == status
    assert verdict.reason.startswith(told) or verdict.reason.endswith(told)


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_failure_is_shrunk_and_names_the_first_different_token() -> None:
    engine = faulty_unchecked("dsd-next-token-from-draft")
    verdict = verdict_of(engine, EQUAL, max_examples=10)
    assert (verdict.status, verdict.row, verdict.shrunk) == ("fail", 0, True)
    assert f"row 0 differs from token {verdict.token} on" in verdict.reason
    (call,) = verdict.calls
    (prompt,) = call.prompts
    for length in range(1, len(prompt)):
        equals_reference(Subject(engine), EngineCase((prompt[:length],), call.settings))


@pytest.mark.parametrize("wrap", [PythonEngine, lambda engine: engine])
@pytest.mark.parametrize(
    "error", [SystemExit(0), RuntimeError("out of memory\ntried 2 GiB"), CancelledError(), PanicException("None")]
)
def test_whatever_an_engine_raises_is_a_failure_of_its_smallest_case(error: BaseException, wrap: Any) -> None:
    verdict = verdict_of(wrap(raising(error, lambda prompts, _: len(prompts) > 2)), EQUAL)
    assert (verdict.status, verdict.no_answer, len(verdict.calls[0].prompts)) == ("fail", True, 3)
    assert verdict.reason == " ".join(f"{type(error).__name__}: {error}".split())


def test_a_case_is_called_the_smallest_only_where_smaller_ones_were_asked() -> None:
    far = Toy(lambda _, __, rows: list(map(next_id, rows)) if len(rows[0]) > 40 else rows, reference=Toy())
    once = verdict_of(raising(EngineGone("no answer")), "runs_repeat")
    assert (once.status, once.asked, once.shrunk) == ("fail", 1, False)
    assert [verdict_of(far, EQUAL).shrunk, verdict_of(far, "raggedness").shrunk] == [False] * 2


def test_a_failure_that_does_not_come_back_keeps_its_case() -> None:
    count: list[int] = []
    wrong_once = wrong_where(lambda *_: count.append(1) or len(count) == 8)
    verdict = verdict_of(Toy(wrong_once, reference=Toy()), EQUAL)
    assert verdict.status == "fail"
    assert "fails once and passes once" in verdict.reason
    assert "row 0 differs from token" in verdict.reason
    assert verdict.calls


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_an_engine_that_is_wrong_by_chance_is_not_lucky_in_every_case(draw: Any) -> None:
    short = wrong_where(lambda prompts, _: max(map(len, prompts)) <= 10 and draw() < 0.2)  # not the fixed cases
    assert verdict_of(Toy(short), "runs_repeat").status == "fail"


def test_a_failed_sample_can_be_asked_again_from_the_report() -> None:
    engine = Toy(wrong_where(lambda _, s: s.temperature == 2 and s.seed > 5 and s.num_speculative_tokens))
    report = check_engine(engine, properties=["samples_are_keyed"])
    (request,) = map(json.loads, report.as_dict()["properties"][0]["requests"])
    assert (request.pop("op"), request.pop("id")) == ("generate", 1)
    prompts, settings = request.pop("prompts"), EngineSettings(**request)
    assert engine(prompts, settings) != engine(prompts, replace(settings, num_speculative_tokens=0))
    assert "temperature 2.0, seed 6" in tell_calls(report.verdicts[0])[0]


def test_the_law_tells_its_real_prompts() -> None:
    engine = Toy(lambda _, s, rows: [[0, *t[1:]] if s.num_speculative_tokens else t for t in rows])
    verdict = verdict_of(engine, LAW)
    assert (verdict.status, len(verdict.calls[0].prompts)) == ("fail", 4096)
    assert describe(verdict.calls[0]).startswith("prompts 4096 × [4, 1]; max_new_tokens 4")
    assert describe(verdict.calls[0]).endswith("temperature 0.7, seed 1")


def test_rounding_is_no_excuse_for_a_row_that_goes_on_behind_its_budget() -> None:
    """Nor where the reference is another engine."""

    def hints(change: Change, **options: Any) -> list[str]:
        drafting = Toy(lambda p, s, rows: change(p, s, rows) if s.num_speculative_tokens else rows)
        report = check_engine(drafting, properties=[EQUAL], **options)
        assert report.verdicts[0].status == "fail"
        return hint(report.verdicts[0], report.reference)

    assert "does it round?" in hints(wrong_where(lambda *_: True))[0]
    assert hints(wrong_where(lambda *_: True), reference=Toy()) == []
    assert hints(lambda prompts, settings, outputs: [[*tokens, 3] for tokens in outputs]) == []


# --- what makes an engine conform ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "passed", "told"),
    [
        ({EQUAL: "pass", "runs_repeat": "not supported"}, True, "passes in the 2 of"),
        (dict.fromkeys(ALL_PROPERTIES, "pass"), True, "conforms"),
        ({EQUAL: "pass", "runs_repeat": "not finished"}, False, "not finished"),
        ({EQUAL: "not supported", "runs_repeat": "pass"}, False, "does not conform: equals_reference must pass"),
        ({EQUAL: "pass", "runs_repeat": "fail"}, False, "does not conform"),
        ({EQUAL: "pass", "runs_repeat": "not run"}, False, "does not conform"),
        ({EQUAL: "pass", "raggedness": "fail"}, False, "does not conform"),
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
    found = report.as_dict()
    assert found["conforms"] is report.conforms is words[told.partition(" ")[0]]
    run = sum(status in ("pass", "fail") for status in statuses.values())
    assert (found["properties_run"], found["properties_total"]) == (run, len(ALL_PROPERTIES))


def test_it_is_said_how_much_was_checked() -> None:
    def concluded(names: Iterable[str], asked: int = 0, **limits: int) -> str:
        verdicts = tuple(Verdict(name, "pass", asked=asked, answered=asked // 2) for name in names)
        return conclusion(Report("x", verdicts, limits=Limits(**limits)))

    assert concluded(ALL_PROPERTIES) == "conforms"
    assert concluded(ALL_PROPERTIES, max_batch=1) == "conforms, one row at a time"
    some = f"passes in the 2 of {len(ALL_PROPERTIES)} properties that were checked"
    assert concluded([EQUAL, "runs_repeat"], max_batch=1) == f"{some}, one row at a time"
    assert concluded([EQUAL, "runs_repeat"], 8) == f"{some}; it answered 4 of 8 cases of equals_reference"


@pytest.mark.parametrize("rule", sorted(OF_BATCHES))
def test_single_prompts_say_nothing_of_batches(rule: str) -> None:
    engine = refusing("batches")
    engine.supports = frozenset({"serving"})
    verdict = verdict_of(engine, rule)
    assert 0 < verdict.answered < verdict.asked <= 20 + 5, "those that are searched, and five fixed ones"
    assert (verdict.status, verdict.reason) == ("not supported", "no batch of several rows was answered: batches")


def test_an_engine_that_refuses_everything_does_not_conform() -> None:
    report = check_engine(refusing(), max_examples=3)
    assert {v.status for v in report.verdicts} == {"not supported"}
    assert all(v.asked and not v.answered for v in report.verdicts)
    assert (report.passed, report.conforms) == (False, False)


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64])
def test_integers_of_numpy_are_tokens(kind: type) -> None:
    engine = Toy(lambda prompts, settings, outputs: [[kind(token) for token in row] for row in outputs])
    assert verdict_of(engine, EQUAL, max_examples=1).status == "pass"


# --- the reference ---------------------------------------------------------------------------------------------------


def test_the_report_names_the_reference() -> None:
    no_plain = raising(NotSupported("k=0"), lambda _, settings: settings.num_speculative_tokens == 0)
    short = raising(NotSupported("long"), lambda prompts, _: max(map(len, prompts)) > 8)  # it is the prompt, not k = 0

    def kind(engine: Toy, **options: Any) -> str:
        report = check_engine(engine, properties=[EQUAL], max_examples=9, **options)
        assert report.verdicts[0].status == "pass"
        return report.reference

    assert kind(Toy(reference=Toy())) == "own"
    assert kind(Toy()) == kind(short) == "itself with k=0"
    assert kind(no_plain) == "itself with k=1"
    assert kind(Toy(), reference=Toy()) == "another engine"


def test_the_reference_is_asked_once_within_the_limits() -> None:
    asked: list[Prompts] = []
    one_row = Toy(lambda prompts, settings, rows: asked.append(prompts) or rows[: settings.batch_size == 1 or None])
    subject = Subject(Toy(), Limits(max_batch=1), reference=one_row)
    for _ in range(2):
        subject.reference(((1,), (2,), (1,)), EngineSettings())
    assert asked == [[[1]], [[2]]]


def test_the_samples_of_a_large_batch_are_asked_for_in_few_calls() -> None:
    """In all they decode at most four times the prompts that a property asks for; one by one it would be n²/2."""
    asked, rows = [], 64
    limits = Limits(max_batch=rows)
    case = long_case(limits, Subject(Toy()).stated, sampled=True)
    subject = Subject(Toy(lambda prompts, _, outputs: asked.append(len(prompts)) or outputs), limits)
    found = subject.run(case.prompts, case.settings)
    assert subject.reference(case.prompts, case.settings) == found
    assert sum(asked) <= 4 * rows
    assert asked[1:] == [1, 2, 4, 8, 16, 32, 64], "each place is asked for beside few others, too"


def test_keyed_samples_are_not_compared_with_another_engines() -> None:
    """One seed means other numbers there; what is promised is that batch and drafts do not matter."""
    other = Toy(lambda p, s, rows: [continuation(x, s, (keyed_noise(s, i), "other")) for i, x in enumerate(p)])
    own = Toy(lambda p, s, rows: other(p, s) if s.temperature else rows, reference=Toy())
    assert verdict_of(Toy(own.change), "samples_are_keyed", reference=Toy()).status == "pass"
    assert verdict_of(own, "samples_are_keyed", reference=Toy()).status == "fail"


def test_a_reference_that_refuses_to_sample_leaves_the_law_to_the_engine_itself() -> None:
    greedy_alone = raising(NotSupported("sampling"), lambda _, settings: settings.temperature > 0)

    def judged(change: Change | None) -> Report:
        return check_engine(Toy(change), reference=greedy_alone, properties=[EQUAL, LAW], limits=FEW, max_examples=1)

    right = judged(None)
    wrong = judged(lambda _, s, rows: [[0] * len(t) if s.num_speculative_tokens else t for t in rows])
    assert [report.verdicts[1].status for report in (right, wrong)] == ["pass", "fail"]
    told = "judged by its own samples without drafts: the reference refuses: sampling"
    assert all(told in report.verdicts[1].reason for report in (right, wrong))
    assert (right.reference, right.law_reference) == ("another engine", "itself with k=0")
    compared = "sampling against the reference, which refuses it: the engine was compared with itself"
    assert compared in right.not_looked_at
    assert compared not in check_engine(Toy(), max_examples=1, properties=[LAW], limits=FEW).not_looked_at


# --- sharp targets ---------------------------------------------------------------------------------------------------

OF_CHANCE = ["seeds_give_different_samples", "temperature_matters"]
ABILITIES = [frozenset({"sampling", "keyed_sampling"}), frozenset({"sampling"})]
GAP = 30.0  # between the logits of a sharp target's best token and the next


def sharp(seen: Callable[[EngineSettings], EngineSettings] = lambda s: s, **attributes: object) -> Toy:
    """An engine whose target puts nearly all on one token, with the settings that it takes note of."""

    def sample(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        own, rows = seen(settings), []
        for row in range(len(outputs)):
            rng = random.Random(repr((own.seed, row)))
            other = 1 / (1 + math.exp(GAP / own.temperature)) if own.temperature else 0.0
            rows.append([token ^ (rng.random() < other) for token in Toy()([prompts[row]], greedy(settings))[0]])
        return rows

    return Toy(sample, **attributes)


@pytest.mark.parametrize("supports", ABILITIES)
@pytest.mark.parametrize("reference", [None, Toy()])
def test_a_target_too_sharp_to_vary_is_no_fault(supports: frozenset[str], reference: Toy | None) -> None:
    report = check_engine(sharp(supports=supports), properties=OF_CHANCE, reference=reference)
    assert [verdict.status for verdict in report.verdicts] == ["not supported"] * 2
    told = f"samples at temperature 2 hardly vary, as they do at {MELTED:g}"
    assert {verdict.reason for verdict in report.verdicts} == {told}


@pytest.mark.parametrize(
    ("ignored", "broken"),
    [({"seed": 0}, OF_CHANCE[:1]), ({"temperature": 1.0}, OF_CHANCE), ({"temperature": 0.0}, OF_CHANCE)],
)
def test_a_sharp_target_hides_no_engine_that_ignores_seed_or_temperature(ignored: dict, broken: list[str]) -> None:
    engine = sharp(lambda settings: replace(settings, **ignored))
    verdicts = {verdict.property: verdict for verdict in check_engine(engine, properties=OF_CHANCE).verdicts}
    for name in broken:
        assert verdicts[name].status == "fail"
        assert {call.settings.temperature for call in verdicts[name].calls} <= {2.0, 0.05}, "not the case that failed"


@pytest.mark.parametrize("error", [NotSupported("so hot"), ValueError("so hot")])
def test_an_engine_that_refuses_the_control_fails_by_what_it_answered(error: Exception) -> None:
    refuses = raising(error, lambda _, settings: settings.temperature == MELTED)
    engine = Toy(lambda p, s, rows: refuses(p, s) and likeliest(p, s, rows))
    verdicts = check_engine(engine, properties=OF_CHANCE).verdicts
    assert [(verdict.status, verdict.no_answer) for verdict in verdicts] == [("fail", False)] * 2
    assert all("temperature is ignored" in verdict.reason for verdict in verdicts)
