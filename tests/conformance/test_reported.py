"""What engines tell beside tokens, settings of rows and given drafts: a right engine passes, each lie fails."""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from stub_server import VOCAB_SIZE as STUB_SIZE
from stub_server import Reference, draw, law
from toy_engines import VOCAB_SIZE, Toy, continuation, next_id, verdict_of

from refimpl import generate, load_pair
from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.laws import binomial_p_value, visible_rate
from refimpl.conformance.model_reference import ModelReference
from refimpl.conformance.protocol import ABILITIES, EngineSettings
from refimpl.conformance.reported import REPORTED
from refimpl.conformance.subject import Subject
from refimpl.core.tokens import first_difference
from refimpl.pairs.names import TINY

ALL = frozenset(ABILITIES) - {"sampling", "keyed_sampling", "serving", "own_draft_length"}
ACCEPTANCE = "acceptance_follows_the_law"
Answer = dict[str, Any]


def decode(ids: list[int]) -> str:
    return "".join(chr(48 + token) for token in ids)


def drafted(prompt: list[int], row: list[int], given: Any) -> tuple[int, int, int]:
    """Drafts, accepted ones and rounds of a row that is drafted for from its second token on."""
    at, counts = 1, [0, 0, 0]
    further = continuation([*prompt, *row], EngineSettings(8))
    while at < len(row):
        drafts = given[at] if at < len(given) else ()
        right = first_difference(drafts, [*row, *further][at : at + len(drafts)])
        right = min(len(drafts) if right is None else right, len(row) - at)
        counts = [counts[0] + len(drafts), counts[1] + right, counts[2] + 1]
        at += right + 1
    return counts[0], counts[1], counts[2]


class Telling:
    """An engine that tells everything, until a lie changes it; of penalties only that large ones change tokens."""

    vocab_size = VOCAB_SIZE

    def __init__(self, lie: Callable[[EngineSettings, Answer], Answer] = lambda _, answer: answer, *more: str):
        self.lie, self.decode, self.supports = lie, decode, ALL | set(more)

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Answer:
        own = [settings.of_row(row) for row in range(len(prompts))]
        penalized = [
            (p, each, int(9 * each.repetition_penalty - 9) or None) for p, each in zip(prompts, own, strict=True)
        ]
        rows = [continuation(*row) for row in penalized]  # type: ignore[arg-type]
        given = settings.drafts or ((),) * len(rows)
        counts = [drafted(p, row, each) for p, row, each in zip(prompts, rows, given, strict=True)]
        totals = dict(zip(("drafted", "accepted", "rounds"), map(sum, zip(*counts, strict=True)), strict=True))
        leaves = settings.cancel_after or (None,) * len(rows)
        rows = [row[:at] for row, at in zip(rows, leaves, strict=True)]
        told = {"logprobs": [[-token / 8 for token in row] for row in rows], "texts": list(map(decode, rows))}
        counters = totals | {"generated": sum(map(len, rows))}
        return self.lie(settings, {"outputs": rows, "counters": counters} | told)


def counted(**more: int) -> Callable[..., Answer]:
    def lie(_: EngineSettings, answer: Answer) -> Answer:
        counters = answer["counters"]
        return answer | {"counters": counters | {name: counters[name] + n for name, n in more.items()}}

    return lie


def wrong(when: Callable[[EngineSettings], Any]) -> Callable[..., Answer]:
    """The last row is wrong in some calls."""

    def lie(settings: EngineSettings, answer: Answer) -> Answer:
        *others, last = answer["outputs"]
        return answer | {"outputs": [*others, next_id(last)]} if when(settings) else answer

    return lie


def backwards(settings: EngineSettings, answer: Answer) -> Answer:
    """Log-probabilities of a batch are those of the wrong places."""
    return answer | {"logprobs": [row[::-1] for row in answer["logprobs"]]} if settings.batch_size > 1 else answer


def processed(when: Callable[[EngineSettings], Any]) -> Callable[..., Answer]:
    """Log-probabilities are those of another law in some calls."""

    def lie(settings: EngineSettings, answer: Answer) -> Answer:
        shift = 0.1 if when(settings) else 0.0
        return answer | {"logprobs": [[logprob - shift for logprob in row] for row in answer["logprobs"]]}

    return lie


def of_row_zero(*names: str) -> Toy:
    """Some settings of all rows are those of the first."""

    def change(prompts: list[list[int]], settings: EngineSettings, _: Any) -> Answer:
        first = {name: getattr(settings.rows[0], name) for name in names} if settings.rows else {}
        return Telling()(prompts, replace(settings, rows=tuple(replace(own, **first) for own in settings.rows)))

    return Toy(change, supports=ALL)


class Verifying:
    """Samples by the tables of the stub; accepts a given draft with a chance that depends on its probability."""

    vocab_size, supports = STUB_SIZE, frozenset({"sampling", "drafts", "counters"})

    def __init__(self, chance: Callable[[float], float] = lambda probability: probability, counted: int = 1):
        self.chance, self.counted = chance, counted

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Answer:
        counts, own = Counter[str](), [random.Random(f"{settings.seed} {i}") for i in range(len(prompts))]
        given = settings.drafts or ((),) * len(prompts)
        rows = [self._row(*row, settings, counts) for row in zip(prompts, given, own, strict=True)]
        return {"outputs": rows, "counters": {name: counts[name] for name in ("drafted", "accepted")}}

    def _row(self, prompt: list[int], given: Any, noise: Any, settings: EngineSettings, counts: Any) -> list[int]:
        row: list[int] = []
        while len(row) < settings.max_new_tokens:
            p = list(law((*prompt, *row), settings.temperature))
            for draft in given[len(row)] if len(row) < len(given) else ():
                counts["drafted"] += 1
                if noise.random() < self.chance(p[draft]):
                    counts["accepted"] += self.counted
                    row.append(draft)
                    p = list(law((*prompt, *row), settings.temperature))
                else:
                    p[draft] = 0.0
            row.append(draw(p, noise.random()))
        return row[: settings.max_new_tokens]


LIES: dict[str, tuple[str, Any]] = {
    "rounds that were cut count": ("counters_count_what_is_delivered", Telling(counted(rounds=9))),
    "tokens that were cut count": ("counters_count_what_is_delivered", Telling(counted(generated=1))),
    "more accepted than drafted": ("counters_count_what_is_delivered", Telling(counted(accepted=1))),
    "an accepted draft too many": ("acceptance_follows_the_drafts", Telling(counted(accepted=1))),
    "drafts that are never tried": (
        "acceptance_follows_the_drafts", Telling(lambda _, told: told | {"counters": {"drafted": 0, "accepted": 0}}),
    ),
    "wrong with drafts": ("given_drafts_change_nothing", Telling(wrong(lambda s: s.drafts))),
    "wrong without any": ("given_drafts_change_nothing", Telling(wrong(lambda s: s.drafts and not any(s.drafts[0])))),
    "wrong log-probabilities": ("logprobs_equal_reference", Telling(backwards)),
    "log-probabilities at a temperature": (
        "logprobs_equal_reference", Telling(processed(lambda s: s.temperature), "sampling"),
    ),
    "log-probabilities under a penalty": ("logprobs_equal_reference", Telling(processed(lambda s: s.rows))),
    "texts of other rows": ("texts_are_decoded", Telling(lambda _, told: told | {"texts": told["texts"][::-1]})),
    "wrong in pieces": ("streams_are_whole", Telling(wrong(lambda s: s.stream))),
    "wrong beside who leaves": ("cancelled_rows_leave_no_trace", Telling(wrong(lambda s: s.cancel_after))),
    "budgets of row zero": ("settings_are_of_the_row", of_row_zero("max_new_tokens")),
    "penalties of row zero": ("settings_are_of_the_row", of_row_zero("repetition_penalty")),
}  # fmt: skip


@pytest.mark.parametrize("rule", [rule.__name__ for rule in REPORTED])
def test_an_engine_that_tells_the_truth_passes(rule: str) -> None:
    verdict = verdict_of(Telling(), rule)
    assert verdict.status == "pass", verdict.reason


@pytest.mark.parametrize("name", LIES)
def test_a_lie_beside_the_tokens_is_caught(name: str) -> None:
    rule, engine = LIES[name]
    verdict = verdict_of(engine, rule)
    assert (verdict.status, verdict.no_answer) == ("fail", False), verdict.reason


def test_sampled_drafts_are_accepted_as_often_as_they_should() -> None:
    """Each liar accepts some more, or counts none of those that it accepts; the last one is wrong by what is seen."""
    honest = verdict_of(Verifying(), ACCEPTANCE, reference=Reference())
    told = r"\d+ drafts of probability 0.19, given after \[4, 1, 1\] at temperature 1: acceptance that differs by 0.1\d"
    assert (honest.status, bool(re.match(told, honest.reason))) == ("pass", True), honest.reason
    seen = float(honest.reason.removesuffix(" is surely seen").rpartition(" ")[2])
    for liar in (Verifying(lambda _: 1), Verifying(lambda _: 0), Verifying(lambda p: p + seen), Verifying(counted=0)):
        verdict = verdict_of(liar, ACCEPTANCE, reference=Reference())
        assert (verdict.status, verdict.no_answer) == ("fail", False), verdict.reason
    assert verdict_of(Verifying(), ACCEPTANCE).status == "not supported", "nobody knows the law"


@pytest.mark.parametrize(("trials", "chance"), [(50, 0.4), (400, 0.02), (400, 0.97)])
def test_a_rate_that_is_surely_seen_is_seen_and_no_smaller_one(trials: int, chance: float) -> None:
    """By enumeration of all outcomes, at a false-alarm rate of 1 %."""
    rejected = [s for s in range(trials + 1) if binomial_p_value(s, trials, chance) < 0.01]

    def power(rate: float) -> float:
        return float(scipy.stats.binom.pmf(rejected, trials, min(max(rate, 0.0), 1.0)).sum())

    visible = visible_rate(trials, chance, 0.01)
    assert power(chance) < 0.01
    assert min(power(chance + visible), power(chance - visible)) >= 0.999 - 1e-9
    assert min(power(chance + 0.95 * visible), power(chance - 0.95 * visible)) < 0.999


def test_counters_that_are_left_out_are_not_judged() -> None:
    engine = Telling(lambda _, told: told | {"counters": {"rounds": told["counters"]["rounds"]}})
    assert verdict_of(engine, "acceptance_follows_the_drafts").status == "not supported"


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ("logprobs", {"logprobs": [[0.5]]}),
        ("text", {"texts": [5]}),
        ("counters", {"counters": {"accepted": -1}}),
        ("counters", {"counters": {"lucky": 1}}),
    ],
)
def test_what_is_told_has_the_right_form(report: str, told: Answer) -> None:
    rules = {"logprobs": "logprobs_equal_reference", "text": "texts_are_decoded"}
    rule = rules.get(report, "counters_count_what_is_delivered")
    verdict = verdict_of(Telling(lambda _, answer: answer | told), rule)
    assert (verdict.status, verdict.no_answer) == ("fail", True)
    assert "must be" in verdict.reason


def test_a_program_tells_more_than_ids(tmp_path: Path) -> None:
    example = Path(sys.modules[CommandEngine.__module__].__file__ or "").with_name("example_server.py").read_text()
    more = '"supports": ["counters"]}', 'for prompt in request["prompts"]], "counters": {"generated": 5}}'
    code = example.replace('"supports": []}', more[0]).replace('for prompt in request["prompts"]]}', more[1])
    (tmp_path / "program.py").write_text(code)
    engine = CommandEngine(f"{sys.executable} {tmp_path / 'program.py'}")
    answer = Subject(engine).answer([[1, 2]], EngineSettings(5, report=("counters",)))
    engine.close()
    assert (len(answer.tokens[0]), answer.counters.generated, engine.supports) == (5, 5, {"counters"})


def test_a_models_folder_decodes_plainly_and_tells_its_law() -> None:
    reference, prompts = ModelReference(str(TINY / "target")), [[5, 9, 200], [7]]
    wanted = generate(load_pair("tiny"), prompts, method="autoregressive", max_new_tokens=6, stop_token_ids=[])
    answer = reference(prompts, EngineSettings(6))
    assert answer["outputs"] == [sequence.token_ids for sequence in wanted.sequences]
    law = reference.law([*prompts[0], *answer["outputs"][0][:2]])
    assert answer["logprobs"][0][2] == pytest.approx(max(law), abs=1e-4)
    hot = EngineSettings(6, temperature=1.0, seed=3)
    assert reference(prompts, hot) == reference(prompts, hot) != reference(prompts, replace(hot, seed=4))
