"""The conformance kit: right engines pass, failures name their case, and the search reaches what it says."""

import random
import re
from dataclasses import replace

import pytest
from toy_engines import Prompts, Toy, continuation, keyed_noise, next_id, served_otherwise

from refimpl.conformance import adapters
from refimpl.conformance.cases import LAWS, EngineCase, Limits, offered_ids
from refimpl.conformance.kit import check_engine
from refimpl.conformance.laws import Tokens, compare_laws
from refimpl.conformance.properties import ENGINE_PROPERTIES, OF_BATCHES, equals_reference
from refimpl.conformance.protocol import MAX_VOCAB_SIZE, EngineGone, EngineSettings, NotSupported
from refimpl.conformance.report import conclusion
from refimpl.conformance.subject import Subject
from refimpl.core.config import NAMED_METHODS
from refimpl.core.stats import AcceptanceCollapseWarning
from refimpl.core.tokens import until_stop
from refimpl.faults.engine import faulty, faulty_unchecked
from refimpl.generation import generate
from refimpl.models.table_model import VOCAB_SIZE, table_pair

BRIEF = ["equals_reference", "stop_is_exact", "samples_are_keyed"]


@pytest.mark.parametrize("method", NAMED_METHODS)
def test_our_methods_conform(method: str) -> None:
    assert check_engine(adapters.method(method), max_examples=3, properties=BRIEF).passed


@pytest.mark.parametrize("size", [3, 50, 5000, 10**9])
def test_the_law_of_any_vocabulary_is_compared(size: int) -> None:
    """Two samples of one law, of shifted ids, and of a law that differs in the last token alone."""
    rng = random.Random(size)
    first, second = ([tuple(rng.randrange(size) for _ in range(3)) for _ in range(1024)] for _ in range(2))
    assert compare_laws(first, second).p_value > 1e-3
    assert compare_laws(first, [(a + size, b, c) for a, b, c in second]).p_value < 1e-9
    assert compare_laws(first, [(a, b, c // 2) for a, b, c in second]).p_value < 1e-9


def test_answers_of_one_token_or_none_have_a_law() -> None:
    assert compare_laws([(1,)] * 1024, [(1,)] * 1024).p_value == 1
    assert compare_laws([(1,)] * 1024, [()] * 1024).p_value < 1e-9
    assert compare_laws([(1, 2)] * 1024, [(1,)] * 1024).p_value < 1e-9


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


@pytest.mark.parametrize(("size", "cells"), [(4096, 2), (4096, 8), (4096, 128), (512, 16)])
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
    ("token", "limits", "passes"), [(65, Limits(), False), (66, Limits(), True), (66, Limits(8, 80), False)]
)
def test_errors_far_on_are_seen_as_far_as_the_long_case_goes(token: int, limits: Limits, passes: bool) -> None:
    wanted = ["equals_reference"]
    report = check_engine(WrongFrom(token), max_examples=3, properties=wanted, limits=limits)
    assert report.passed == passes
    assert report.limits == limits


def test_the_rejection_rule_conforms_in_law() -> None:
    wanted = ["samples_follow_the_law"]
    report = check_engine(adapters.rejection("rollback"), max_examples=1, properties=wanted)
    assert report.verdicts[0].status == "pass"


def test_a_broken_invariant_is_a_failure_that_names_it() -> None:
    (verdict,) = check_engine(faulty("bsp-as-shipped"), max_examples=3, properties=BRIEF[:1], shrink=False).verdicts
    assert verdict.status == "fail"
    assert verdict.reason.startswith("InvariantViolation: INV-2")


@pytest.mark.nightly
def test_a_subtle_fault_fails_with_more_samples() -> None:
    wanted, limits = ["samples_follow_the_law"], Limits(law_samples=16384)
    engine = faulty_unchecked("recovery-reuses-draft-noise")
    assert not check_engine(engine, properties=wanted, limits=limits).passed
    assert check_engine(adapters.rejection(), properties=wanted, limits=limits).passed


def test_a_failure_is_shrunk_and_names_the_first_different_token() -> None:
    engine = faulty_unchecked("dsd-next-token-from-draft")
    verdict = check_engine(engine, properties=["equals_reference"], max_examples=10, fail_fast=True).verdicts[0]
    assert (verdict.status, verdict.row) == ("fail", 0)
    assert f"row 0 differs from token {verdict.token} on" in verdict.reason
    (call,) = verdict.calls
    (prompt,) = call.prompts
    for length in range(1, len(prompt)):
        equals_reference(Subject(engine), EngineCase((prompt[:length],), call.settings))


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


def wrong_if_wide(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    wide = min(len(prompts), settings.batch_size) > 5
    return [*outputs[:-1], next_id(outputs[-1])] if wide else outputs


def wrong_with_many_drafts(_: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    return list(map(next_id, outputs)) if settings.num_speculative_tokens > 5 else outputs


def first_stop_only(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    one = replace(settings, stop_token_ids=settings.stop_token_ids[:1])
    return [continuation(prompt, one, keyed_noise(one, i)) for i, prompt in enumerate(prompts)]


def temperature_twice(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    if not settings.num_speculative_tokens:
        return outputs
    hot = replace(settings, temperature=settings.temperature**2)
    return [continuation(prompt, hot, keyed_noise(hot, i)) for i, prompt in enumerate(prompts)]


def always_the_likeliest(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    return [continuation(prompt, settings) for prompt in prompts]


def seed_ignored(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    return [continuation(p, settings, keyed_noise(replace(settings, seed=7), i)) for i, p in enumerate(prompts)]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (wrong_if_wide, "equals_reference"),
        (wrong_with_many_drafts, "equals_reference"),
        (first_stop_only, "stop_is_exact"),
        (temperature_twice, "samples_are_keyed"),
        (always_the_likeliest, "seeds_give_different_samples"),
        (seed_ignored, "seeds_give_different_samples"),
    ],
)
def test_what_small_greedy_cases_cannot_see(change, rule: str) -> None:
    verdict = check_engine(Toy(change), properties=[rule]).verdicts[0]
    assert verdict.status == "fail", change.__name__


def rare(prompt: list[int], settings: EngineSettings, *, stops: bool) -> list[int]:
    """Tokens of a large vocabulary, none of which comes twice by chance."""
    free = continuation(prompt, replace(settings, stop_token_ids=()))
    ids = [hash((*prompt, *free[: i + 1])) % 2**31 for i in range(len(free))]
    return until_stop(ids, settings.stop_token_ids if stops else ())


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_stop_that_only_the_first_rows_heed_is_seen_in_a_large_vocabulary(rows: int) -> None:
    engine = Toy(
        lambda p, settings, _: [rare(p[i], settings, stops=i < rows) for i in range(len(p))], vocab_size=MAX_VOCAB_SIZE
    )
    assert check_engine(engine, properties=["stop_is_exact"]).verdicts[0].status == "fail"
    engine.change = lambda p, settings, _: [rare(prompt, settings, stops=True) for prompt in p]
    assert check_engine(engine, properties=["stop_is_exact"]).verdicts[0].status == "pass"


def test_a_stop_token_in_a_prompt_that_ends_its_row_is_seen() -> None:
    """In a large vocabulary no prompt has one by chance."""

    def ended(prompts: Prompts, settings: EngineSettings, _: Prompts) -> Prompts:
        stops = set(settings.stop_token_ids)
        return [rare(prompt, settings, stops=True)[: 1 if stops & {*prompt} else None] for prompt in prompts]

    engine = Toy(ended, vocab_size=MAX_VOCAB_SIZE)
    assert check_engine(engine, properties=["stop_is_exact"]).verdicts[0].status == "fail"


def test_one_draft_a_round_at_most_says_nothing_of_other_numbers() -> None:
    wanted = ["draft_length_does_not_matter"]
    (verdict,) = check_engine(Toy(), properties=wanted, limits=Limits(max_k=1)).verdicts
    assert (verdict.status, verdict.reason) == ("not supported", "another number of drafts than 1")


def test_a_case_that_was_not_searched_is_not_called_the_smallest() -> None:
    far = Toy(lambda p, _, outputs: list(map(next_id, outputs)) if len(outputs[0]) > 40 else outputs, reference=Toy())
    (verdict,) = check_engine(far, properties=["equals_reference"]).verdicts
    assert (verdict.status, verdict.shrunk) == ("fail", False)


def test_a_case_that_was_asked_once_is_not_called_the_smallest() -> None:
    def gone(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        raise EngineGone("no answer")

    (verdict,) = check_engine(Toy(gone), properties=["runs_repeat"]).verdicts
    assert (verdict.status, verdict.asked, verdict.shrunk) == ("fail", 1, False)


def test_rows_that_share_their_random_numbers_are_named() -> None:
    same = Toy(lambda p, settings, _: [continuation(x, settings, keyed_noise(settings, 0)) for x in p])
    (verdict,) = check_engine(same, properties=["samples_follow_the_law"], limits=Limits(law_samples=512)).verdicts
    assert verdict.reason.endswith("they are all the same: do rows share their random numbers?")


def test_samples_that_hardly_vary_show_no_law() -> None:
    (verdict,) = check_engine(Toy(always_the_likeliest), properties=["samples_follow_the_law"]).verdicts
    assert (verdict.status, verdict.reason) == (
        "not supported",
        "the reference's samples after [4, 1] at temperature 0.7 hardly vary",
    )


def test_a_law_that_passes_says_what_it_would_have_seen() -> None:
    (verdict,) = check_engine(Toy(), properties=["samples_follow_the_law"], limits=Limits(law_samples=512)).verdicts
    assert verdict.status == "pass"
    told = r"after \[{}\] at temperature {} \d+ outcomes told apart; a total variation of 0\.[1-9]\d is surely seen"
    assert re.fullmatch(
        "; ".join(told.format(*law) for law in (("4, 1", 0.7), ("4, 1, 4, 1, 4", 2), ("4, 1", 0.25))),
        verdict.reason,
    )


def test_fixed_samples_depend_on_the_seed() -> None:
    first, second = (cases_of("samples_follow_the_law", seed) for seed in (0, 5))
    assert [case.prompts[0] for case in first] == [law.prompt for law in LAWS]
    assert [case.settings.seed for case in first + second] == [1] * len(LAWS) + [6] * len(LAWS)


def zeros(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    return [[0] * (1 if 0 in settings.stop_token_ids else settings.max_new_tokens) for _ in prompts]


def test_an_engine_that_ignores_its_prompts_does_not_conform() -> None:
    engine = Toy(zeros, supports=frozenset())
    report = check_engine(engine)
    assert [verdict.property for verdict in report.verdicts if verdict.status == "fail"] == ["prompts_matter"]
    trusted = check_engine(engine, properties=["prompts_matter"], reference=Toy(zeros)).verdicts[0]
    assert trusted.status == "not supported"
    assert check_engine(engine, properties=["prompts_matter"], reference=Toy()).verdicts[0].status == "fail"


def test_an_engine_that_was_built_for_one_k_is_asked_for_no_other() -> None:
    asked: set[int] = set()

    def built_for_5(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        asked.add(settings.num_speculative_tokens)
        return outputs

    report = check_engine(Toy(built_for_5), limits=Limits(law_samples=512, k=5), max_examples=5)
    assert asked == {0, 5}
    assert conclusion(report) == "conforms, at k = 5 alone"
    refused = [verdict.property for verdict in report.verdicts if verdict.status == "not supported"]
    assert refused == ["draft_length_does_not_matter", "serving_equals_reference"]


def test_a_right_engine_conforms_with_every_seed() -> None:
    assert all(check_engine(Toy(), seed=seed, limits=Limits(law_samples=512)).conforms for seed in range(3))


def test_a_case_whose_drafts_are_never_right_warns_nobody():
    """The kit wants such cases; whoever runs the method by hand is warned."""
    never = {first: [False] * 100 for first in range(VOCAB_SIZE)}
    engine = adapters.MethodEngine("inplace", table_pair(never), checks="off")
    prompts, settings = [[1], [2], [3], [4]], EngineSettings(max_new_tokens=60)
    with pytest.warns(AcceptanceCollapseWarning):
        by_hand = generate(engine.pair, prompts, method="inplace", batch_size=4, max_new_tokens=60)
    assert engine(prompts, settings) == [sequence.token_ids for sequence in by_hand.sequences]


@pytest.mark.parametrize("rule", sorted(OF_BATCHES))
def test_however_few_cases_are_searched_there_is_a_batch(rule: str) -> None:
    serving = served_otherwise(lambda settings: settings)()
    assert check_engine(serving, max_examples=1, properties=[rule]).verdicts[0].status == "pass"
