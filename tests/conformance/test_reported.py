"""What engines tell beside tokens, settings of rows and given drafts: a right engine passes, each lie fails."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_engines import VOCAB_SIZE, Toy, continuation, next_id, verdict_of

from refimpl import generate, load_pair
from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.model_reference import ModelReference
from refimpl.conformance.protocol import ABILITIES, EngineSettings
from refimpl.conformance.reported import REPORTED
from refimpl.conformance.subject import Subject
from refimpl.core.tokens import first_difference
from refimpl.pairs.names import TINY

ALL = frozenset(ABILITIES) - {"sampling", "keyed_sampling", "serving", "own_draft_length"}
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
    """An engine that tells everything, until a lie changes it."""

    vocab_size, supports = VOCAB_SIZE, ALL

    def __init__(self, lie: Callable[[EngineSettings, Answer], Answer] = lambda _, answer: answer):
        self.lie, self.decode = lie, decode

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Answer:
        own = [settings.of_row(row) for row in range(len(prompts))]
        rows = [continuation(p, each) for p, each in zip(prompts, own, strict=True)]  # type: ignore[arg-type]
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


def of_row_zero(prompts: list[list[int]], settings: EngineSettings) -> Answer:
    same = (settings.rows[0],) * len(settings.rows) if settings.rows else ()
    return Telling()(prompts, replace(settings, rows=same))


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
    "texts of other rows": ("texts_are_decoded", Telling(lambda _, told: told | {"texts": told["texts"][::-1]})),
    "wrong in pieces": ("streams_are_whole", Telling(wrong(lambda s: s.stream))),
    "wrong beside who leaves": ("cancelled_rows_leave_no_trace", Telling(wrong(lambda s: s.cancel_after))),
    "parameters of row zero": (
        "settings_are_of_the_row", Toy(lambda p, s, _: of_row_zero(p, s), supports=ALL),
    ),
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
    rule = {"logprobs": "logprobs_equal_reference", "text": "texts_are_decoded"}.get(report, REPORTED[5].__name__)
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
