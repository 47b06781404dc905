"""The conformance kit: right engines pass, the search reaches what it says, and samples are compared by their law."""

import random
import re
from dataclasses import replace

import pytest
from toy_engines import Prompts, Toy, continuation, served_otherwise, verdict_of

from refimpl.conformance import adapters
from refimpl.conformance.cases import LAWS, EngineCase, offered_ids
from refimpl.conformance.kit import check_engine
from refimpl.conformance.laws import Tokens, compare_laws
from refimpl.conformance.limits import Limits
from refimpl.conformance.properties import ENGINE_PROPERTIES, OF_BATCHES
from refimpl.conformance.protocol import MAX_VOCAB_SIZE, EngineSettings
from refimpl.conformance.report import conclusion
from refimpl.conformance.reported import REPORTED
from refimpl.core.config import NAMED_METHODS
from refimpl.core.stats import AcceptanceCollapseWarning
from refimpl.core.tokens import until_stop
from refimpl.faults.engine import faulty_unchecked
from refimpl.generation import generate
from refimpl.models.table_model import VOCAB_SIZE, table_pair

# --- right engines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", NAMED_METHODS)
def test_our_methods_conform(method: str) -> None:
    wanted = ["equals_reference", "stop_is_exact", "samples_are_keyed"]
    assert check_engine(adapters.method(method), max_examples=3, properties=wanted).passed


def test_the_rejection_rule_conforms_in_law() -> None:
    assert verdict_of(adapters.rejection("rollback"), "samples_follow_the_law").status == "pass"


@pytest.mark.nightly
def test_a_subtle_fault_fails_with_more_samples() -> None:
    engine, limits = faulty_unchecked("recovery-reuses-draft-noise"), Limits(law_samples=16384)
    assert verdict_of(engine, "samples_follow_the_law", limits=limits).status == "fail"
    assert verdict_of(adapters.rejection(), "samples_follow_the_law", limits=limits).status == "pass"


def test_an_engine_that_was_built_for_one_k_is_asked_for_no_other() -> None:
    asked: set[int] = set()
    engine = Toy(lambda _, settings, outputs: asked.add(settings.num_speculative_tokens) or outputs)
    report = check_engine(engine, limits=Limits(law_samples=512, k=5), max_examples=5)
    assert asked == {0, 5}
    assert conclusion(report) == "conforms, at k = 5 alone"
    refused = [verdict.property for verdict in report.verdicts if verdict.status == "not supported"]
    reported = [*(p.__name__ for p in REPORTED), "acceptance_follows_the_law"]
    assert refused == ["draft_length_does_not_matter", "serving_equals_reference", *reported]


def test_a_vocabulary_of_two_is_enough() -> None:
    def halved(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        assert all(token < 2 for prompt in prompts for token in prompt)
        return [[token % 2 for token in tokens] for tokens in outputs]

    report = check_engine(Toy(halved, vocab_size=2, supports=["sampling"]), max_examples=5)
    assert not any("AssertionError" in v.reason for v in report.verdicts)


def test_a_case_whose_drafts_are_never_right_warns_nobody():
    """The kit wants such cases; whoever runs the method by hand is warned."""
    never = {first: [False] * 100 for first in range(VOCAB_SIZE)}
    engine = adapters.MethodEngine("inplace", table_pair(never), checks="off")
    prompts, settings = [[1], [2], [3], [4]], EngineSettings(max_new_tokens=60)
    with pytest.warns(AcceptanceCollapseWarning):
        by_hand = generate(engine.pair, prompts, method="inplace", batch_size=4, max_new_tokens=60)
    assert engine(prompts, settings)["outputs"] == [sequence.token_ids for sequence in by_hand.sequences]


# --- what the search reaches ---------------------------------------------------------------------------------------


def cases_of(name: str, seed: int = 0, vocab_size: int = 40) -> list[EngineCase]:
    cases: list[EngineCase] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINE_PROPERTIES, name, lambda _, case: cases.append(case))
        check_engine(Toy(vocab_size=vocab_size), properties=[name], seed=seed)
    return cases


def test_every_property_has_cases_of_its_own_that_repeat() -> None:
    first, second = cases_of("budget_is_exact"), cases_of("runs_repeat")
    assert first == cases_of("budget_is_exact")
    assert not set(first[1:-1]) & set(second[1:-1])  # all begin with the smallest and end with the long case
    assert not set(first[1:-1]) & set(cases_of("budget_is_exact", seed=1))
    law, other = (cases_of("samples_follow_the_law", seed) for seed in (0, 5))  # fixed but for the seed of samples
    assert [case.prompts[0] for case in law] == [given.prompt for given in LAWS]
    assert [case.settings.seed for case in law + other] == [1] * len(LAWS) + [6] * len(LAWS)


def test_cases_do_not_depend_on_what_is_loaded() -> None:
    """Hypothesis draws large numbers that it finds in local modules; ids of a large vocabulary are not drawn so."""
    assert [offered_ids(size) for size in (2, 3, 40)] == [list(range(size)) for size in (2, 3, 40)]
    few = offered_ids(32000)
    assert {0, 2, 31999} <= set(few)
    assert len(few) <= 64
    assert {0, 2, MAX_VOCAB_SIZE - 1} <= set(offered_ids(MAX_VOCAB_SIZE))  # and not by counting that far
    cases = cases_of("runs_repeat", vocab_size=32000)
    assert {token for case in cases[:-1] for prompt in case.prompts for token in prompt} <= set(few)


def test_cases_are_long_and_wide_often_enough() -> None:
    cases = [case for seed in range(5) for case in cases_of("samples_are_keyed", seed)]
    settings = [case.settings for case in cases]
    assert sum(s.max_new_tokens >= 4 for s in settings) > 0.7 * len(cases)
    assert {1, 12} <= {s.max_new_tokens for s in settings}
    assert 8 in {s.num_speculative_tokens for s in settings}
    assert any(min(len(case.prompts), case.settings.batch_size) == 8 for case in cases)
    assert {len(case.stop_at) for case in cases} == {1, 2}
    assert {s.temperature for s in settings} == {0.5, 1.0, 2.0}


@pytest.mark.parametrize("rule", sorted(OF_BATCHES))
def test_however_few_cases_are_searched_there_is_a_batch(rule: str) -> None:
    assert verdict_of(served_otherwise(lambda settings: settings)(), rule, max_examples=1).status == "pass"


def rare(prompt: list[int], settings: EngineSettings, *, stops: bool = True) -> list[int]:
    """Tokens of a large vocabulary, none of which comes twice by chance."""
    free = continuation(prompt, replace(settings, stop_token_ids=()))
    ids = [hash((*prompt, *free[: i + 1])) % 2**31 for i in range(len(free))]
    return until_stop(ids, settings.stop_token_ids if stops else ())


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda p, s, _: [rare(prompt, s) for prompt in p], "pass"),
        (lambda p, s, _: [rare(prompt, s, stops=i < 1) for i, prompt in enumerate(p)], "fail"),
        (lambda p, s, _: [rare(prompt, s, stops=i < 4) for i, prompt in enumerate(p)], "fail"),
        (lambda p, s, _: [rare(prompt, s)[: 1 if {*s.stop_token_ids} & {*prompt} else None] for prompt in p], "fail"),
    ],
    ids=["right", "first row alone", "first four rows alone", "prompt ends its row"],
)
def test_stops_are_judged_in_a_large_vocabulary_too(change, status: str) -> None:
    """No prompt and no output has a stop token by chance there."""
    assert verdict_of(Toy(change, vocab_size=MAX_VOCAB_SIZE), "stop_is_exact").status == status


# --- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 50, 5000, 10**9])
def test_the_law_of_any_vocabulary_is_compared(size: int) -> None:
    """Two samples of one law, of shifted ids, and of a law that differs in the last token alone; and of none."""
    rng = random.Random(size)
    first, second = ([tuple(rng.randrange(size) for _ in range(3)) for _ in range(1024)] for _ in range(2))
    assert compare_laws(first, second).p_value > 1e-3
    assert compare_laws(first, [(a + size, b, c) for a, b, c in second]).p_value < 1e-9
    assert compare_laws(first, [(a, b, c // 2) for a, b, c in second]).p_value < 1e-9
    assert compare_laws([(size,)] * 1024, [(size,)] * 1024).p_value == 1
    assert compare_laws([(size,)] * 1024, [()] * 1024).p_value < 1e-9


def test_samples_of_one_law_are_told_apart_no_more_often_than_they_may() -> None:
    """As a whole and by each of eight tokens, at 5 %: of 200 pairs 29 or more has a chance below 1e-6."""
    rng = random.Random(1)
    samples = [[tuple(rng.choices(range(2), k=8)) for _ in range(256)] for _ in range(400)]
    p_values = [compare_laws(*pair).p_value for pair in zip(samples[::2], samples[1::2], strict=True)]
    assert 0 < sum(p_value < 0.05 for p_value in p_values) < 29


def drawn(rng: random.Random, size: int, cells: int, total_variation: float) -> tuple[list[Tokens], list[Tokens]]:
    """Two samples: the law of one is even, that of the other has more of half of the outcomes and less of the rest."""
    outcomes = [(i,) for i in range(cells)]
    weights = [1 + 2 * total_variation * (-1) ** i for i in range(cells)]
    return rng.choices(outcomes, weights, k=size), rng.choices(outcomes, k=size)


@pytest.mark.parametrize(("size", "cells"), [(4096, 2), (4096, 128), (512, 16)])
def test_the_difference_that_is_surely_seen_is_seen(size: int, cells: int) -> None:
    """Of 300 samples of laws that differ so much 295 or more; a power of 0.97 would miss that in 94 % of the seeds."""
    rng, trials = random.Random(cells), 300
    visible = compare_laws(*drawn(rng, size, cells, 0)).visible_difference(1e-6)
    seen, of_less = (
        sum(compare_laws(*drawn(rng, size, cells, share * visible)).p_value < 1e-6 for _ in range(trials))
        for share in (1, 0.75)
    )
    assert seen >= 295
    assert of_less < 270, "the number is larger than it need be"


def test_a_law_that_passes_says_what_it_would_have_seen() -> None:
    verdict = verdict_of(Toy(), "samples_follow_the_law", limits=Limits(law_samples=512))
    assert verdict.status == "pass"
    told = r"after \[{}\] at temperature {} \d+ outcomes told apart; a total variation of 0\.[1-9]\d is surely seen"
    laws = (("4, 1", 0.7), ("4, 1, 4, 1, 4", 2), ("4, 1", 0.25))
    assert re.fullmatch("; ".join(told.format(*law) for law in laws), verdict.reason)
