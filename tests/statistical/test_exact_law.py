"""Rejection sampling keeps the target's law: total variation exactly 0 over every branch of the real engine."""

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from refimpl import generate
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.request import Request
from refimpl.faults import FAULTS
from refimpl.layouts.spans import Span
from refimpl.layouts.states import PassStates
from refimpl.selfcheck.enumeration import engine_law, law_config, target_law, total_variation
from refimpl.selfcheck.fraction_model import LATEST, Penalties, fraction_pair
from refimpl.selfcheck.state_machine import StateMachine

METHODS = [f"{layout}+{scheduler}" for layout in LAYOUTS for scheduler in SCHEDULERS]


def variation(method: str, pair, requests: list[Request], sharpness: int = 1, top_k: int = 0, drafter: str = "model"):
    config = law_config(method, drafter=drafter, temperature=1 / sharpness, top_k=top_k)
    return total_variation(engine_law(pair, requests, config), target_law(pair, requests, sharpness, top_k))


@pytest.mark.parametrize("method", METHODS)
def test_one_row_of_two_drafts(method):
    assert variation(method, fraction_pair(2, seed=3), [Request([0], 3, 2)]) == 0


@pytest.mark.parametrize("method", METHODS)
def test_joint_law_of_two_ragged_rows(method):
    requests = [Request([0], 2, 1), Request([1, 0], 2, 1, stop_token_ids=[1])]
    assert variation(method, fraction_pair(2, seed=3), requests) == 0


RAGGED = [Request([0], 3, 2), Request([1, 0, 1], 2, 1)]
COMMIT = PassStates.commit
WRONG = {
    "windowed": (Span, "reaches", lambda self, slot, query: slot >= 0),
    "recurrent": (
        PassStates,
        "commit",
        lambda self, counts: COMMIT(self, [len(self._behind[LATEST]) - 1] * len(counts)),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("method", METHODS[::4])
def test_joint_law_of_windows_and_recurrent_states(method, kind, monkeypatch):
    """And another one where windows are dropped, or states keep all that was fed."""
    pair = fraction_pair(2, seed=6, kind=kind)
    assert variation(method, pair, RAGGED) == 0
    monkeypatch.setattr(*WRONG[kind])
    assert variation(method, pair, RAGGED) > 0


@pytest.mark.parametrize("method", ["rollback+static", "realigned+grouped"])
def test_joint_law_when_rows_draft_different_numbers(method):
    assert variation(method, fraction_pair(2, seed=6), RAGGED) == 0


@pytest.mark.parametrize("method", ["rollback+fifo", "masked+fifo", "inplace+grouped"])
def test_joint_law_when_a_waiting_row_takes_a_free_place(method):
    requests = [Request([0], 1, 1), Request([1, 1], 2, 1), Request([1], 2, 1)]
    assert variation(method, fraction_pair(2, seed=5), requests) == 0


@pytest.mark.parametrize(
    ("method", "sharpness", "top_k"), [("inplace+grouped", 2, 0), ("masked+static", 1, 2), ("rollback+static", 2, 2)]
)
def test_law_of_processed_distributions(method, sharpness, top_k):
    assert variation(method, fraction_pair(3, seed=3), [Request([2], 3, 2)], sharpness, top_k) == 0


@pytest.mark.parametrize(
    ("method", "acceptance", "temperature"),
    [("rollback+static", "rejection", 0.5), ("masked+fifo", "rejection", 0.0), ("inplace+grouped", "block", 0.0)],
)
def test_joint_law_of_rows_of_different_temperatures(method, acceptance, temperature):
    pair, rows = fraction_pair(2, seed=3), [Request([0], 2, 1), Request([1, 0], 2, 1)]
    greedy = generate(pair, rows[1:], method="autoregressive").sequences[0].token_ids
    second = target_law(pair, rows[1:], sharpness=2) if temperature else {(tuple(greedy),): Fraction(1)}
    found = engine_law(
        pair, [rows[0], replace(rows[1], temperature=temperature)], law_config(method, acceptance=acceptance)
    )
    assert total_variation(found, product(target_law(pair, rows[:1]), second)) == 0


@pytest.mark.parametrize(("method", "drafter"), [("rollback+static", "model"), ("inplace+grouped", "ngram")])
def test_joint_law_under_a_repetition_penalty(method, drafter):
    pair, penalties = fraction_pair(2, seed=3), Penalties(repetition=2, frequency=1, presence=1)
    rows = [Request([0, 1, 0, 1], 3, 2), Request([1, 0], 2, 1)]
    config, penalized = law_config(method, drafter=drafter), [penalties.request(row) for row in rows]
    wanted = target_law(pair, rows, penalties=penalties)
    assert total_variation(engine_law(pair, penalized, config), wanted) == 0
    assert total_variation(target_law(pair, rows), wanted) > 0.1
    with FAULTS["processor-ignores-drafts"].injected():
        assert total_variation(engine_law(pair, penalized, config), wanted) > 0


@dataclass(frozen=True)
class Masked:
    """The law of a target of whose tokens only those of a grammar are possible."""

    machine: StateMachine

    def apply(self, law, prompt, generated):
        walk = self.machine()
        assert walk.advance(generated) == len(generated)
        return [mass if allowed else Fraction(0) for mass, allowed in zip(law, walk.allowed().tolist(), strict=True)]


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
@pytest.mark.parametrize("drafter", ["model", "ngram", "head"])
def test_joint_law_under_a_grammar(acceptance, drafter):
    pair, machine = fraction_pair(3, seed=8), StateMachine([{0: 1, 1: 1}, {1: 0, 2: 0}], (), 3)
    rows = [Request([0, 1, 0, 1], 3, 2), Request([1, 0], 2, 1)]
    config = law_config(drafter=drafter, acceptance=acceptance, checks="device")
    constrained = [replace(row, grammar=machine) for row in rows]
    wanted = target_law(pair, rows, penalties=Masked(machine))
    assert total_variation(engine_law(pair, constrained, config), wanted) == 0
    assert total_variation(target_law(pair, rows), wanted) > 0.1
    with FAULTS["bonus-row-unmasked"].injected():
        unchecked = replace(config, checks="off")
        assert drafter == "head" or total_variation(engine_law(pair, constrained, unchecked), wanted) > 0


def product(first, second):
    return {(*a, *b): p * q for a, p in first.items() for b, q in second.items()}


@pytest.mark.parametrize("drafter", ["ngram", "hybrid"])
@pytest.mark.parametrize("method", METHODS)
def test_joint_law_of_tokens_that_are_looked_up(method, drafter):
    """One row finds its last tokens before, one finds nothing at first."""
    requests = [Request([0, 1, 0, 1], 3, 2), Request([1, 0], 2, 1)]
    assert variation(method, fraction_pair(2, seed=3), requests, drafter=drafter) == 0


@pytest.mark.parametrize(
    ("fault", "method", "pair", "requests", "drafter"),
    [
        ("looked-up-with-the-q-of-a-draw", "inplace+fifo", 3, [Request([0, 1, 0, 1], 3, 2)], "ngram"),
        ("residual-forgotten", "inplace+fifo", 3, [Request([0], 2, 1)], "model"),
        ("rollback-draws-again", "rollback+static", 6, [Request([0], 2, 1), Request([1, 0], 2, 1)], "model"),
    ],
)
def test_enumeration_detects_a_fault_of_the_rule(fault, method, pair, requests, drafter):
    with FAULTS[fault].injected():
        assert variation(method, fraction_pair(2, seed=pair), requests, drafter=drafter) > 0
