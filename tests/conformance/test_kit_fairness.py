"""What the kit may not hold against an engine: a sharp target, many rows, an error without words; and what it may."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from toy_engines import LIARS, Change, Prompts, Toy, next_id, refusing

from refimpl.conformance.cases import MELTED, Limits
from refimpl.conformance.kit import check_engine
from refimpl.conformance.protocol import EngineSettings, NotSupported, one_line
from refimpl.conformance.report import conclusion, hint
from refimpl.conformance.subject import Subject

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


def greedy(settings: EngineSettings) -> EngineSettings:
    return replace(settings, temperature=0.0)


@pytest.mark.parametrize("supports", ABILITIES)
@pytest.mark.parametrize("reference", [None, Toy()])
def test_a_target_too_sharp_to_vary_is_no_fault(supports: frozenset[str], reference: Toy | None) -> None:
    report = check_engine(sharp(supports=supports), properties=OF_CHANCE, reference=reference)
    assert [verdict.status for verdict in report.verdicts] == ["not supported"] * 2
    assert {verdict.reason for verdict in report.verdicts} == {
        f"samples at temperature 2 hardly vary, as they do at {MELTED:g}"
    }


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
    def refuse(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if settings.temperature == MELTED:
            raise error
        return Toy()(prompts, greedy(settings))

    verdicts = check_engine(Toy(refuse), properties=OF_CHANCE).verdicts
    assert [(verdict.status, verdict.no_answer) for verdict in verdicts] == [("fail", False)] * 2
    assert all("temperature is ignored" in verdict.reason for verdict in verdicts)


def test_the_samples_of_a_large_batch_are_asked_for_in_few_calls() -> None:
    """In all they decode at most four times the prompts that a property asks for; before, n²/2."""
    asked, rows = [], 64

    def count(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        asked.append(len(prompts))
        return outputs

    limits = Limits(max_batch=rows)
    case = limits.long_case(Toy.vocab_size, sampled=True)
    subject = Subject(Toy(count), limits)
    found = subject.run(case.prompts, case.settings)
    assert subject.reference(case.prompts, case.settings) == found
    assert sum(asked) <= 4 * rows
    assert asked[1:] == [1, 2, 4, 8, 16, 32, 64], "each place is asked for beside few others, too"


def test_samples_that_depend_on_how_many_prompts_there_are_are_not_keyed() -> None:
    engine = Toy(lambda p, s, _: Toy()(p, replace(s, seed=s.seed + len(p))) if s.temperature else Toy()(p, s))
    (verdict,) = check_engine(engine, properties=["samples_are_keyed"], max_examples=5).verdicts
    assert verdict.status == "fail"


class WordlessError(Exception):
    def __str__(self) -> str:
        return self.args[0]["message"]


def test_an_error_without_words_is_told_by_its_kind() -> None:
    assert one_line(WordlessError("plain text")) == "WordlessError"

    def break_off(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        raise WordlessError("plain text")

    (verdict,) = check_engine(Toy(break_off), properties=["runs_repeat"]).verdicts
    assert (verdict.status, verdict.reason, verdict.no_answer) == ("fail", "WordlessError", True)


def test_an_engine_that_refuses_cases_conforms_in_those_it_answered() -> None:
    def refuse_ragged(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if len({len(prompt) for prompt in prompts}) > 1:
            raise NotSupported("ragged batches")
        return outputs

    report = check_engine(Toy(refuse_ragged), properties=["equals_reference"], max_examples=12)
    (verdict,) = report.verdicts
    assert 0 < verdict.answered < verdict.asked
    told = f"it answered {verdict.answered} of {verdict.asked} cases of equals_reference"
    assert conclusion(report) == f"passes in the 1 of 17 properties that were checked; {told}"
    assert "answered" not in conclusion(check_engine(Toy(), properties=["equals_reference"], max_examples=2))


def test_a_batch_without_drafts_is_compared_with_rows_one_at_a_time() -> None:
    """The lie is in `toy_engines`; an engine that cannot decode without drafts is not blamed."""
    assert "by batch without drafts" in LIARS

    def with_drafts(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        return outputs if settings.num_speculative_tokens else refusing()(prompts, settings)

    assert check_engine(Toy(with_drafts), properties=["equals_reference"], max_examples=3).passed


def test_rounding_is_no_excuse_for_a_row_that_goes_on_behind_its_budget() -> None:
    def told(change: Change) -> list[str]:
        def in_batches(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
            return change(prompts, settings, outputs) if settings.num_speculative_tokens else outputs

        report = check_engine(Toy(in_batches), properties=["equals_reference"])
        assert report.verdicts[0].status == "fail"
        return hint(report.verdicts[0], report.reference)

    assert told(lambda prompts, settings, outputs: [[*tokens, 3] for tokens in outputs]) == []
    assert "does it round?" in told(lambda prompts, settings, outputs: list(map(next_id, outputs)))[0]


def test_right_outputs_in_another_order_are_told_as_such() -> None:
    def by_length(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        return [tokens for _, tokens in sorted(zip(map(len, prompts), outputs, strict=True))]

    def last_wrong(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        return [*outputs[:-1], next_id(outputs[-1])]

    for change, is_told in ((by_length, True), (last_wrong, False)):
        (verdict,) = check_engine(Toy(change, reference=Toy()), properties=["equals_reference"]).verdicts
        assert verdict.status == "fail"
        assert verdict.reason.endswith("are they in another order?") == is_told
