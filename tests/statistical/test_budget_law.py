"""Budgets and drafters keep the target's law exactly where the engine runs them, and not where it refuses to."""

from fractions import Fraction
from functools import partial
from itertools import product
from random import Random

import pytest

from refimpl.core.invariants import InvariantViolation
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence
from refimpl.decoding.assembly import bias
from refimpl.decoding.drafters import LookupDrafter
from refimpl.decoding.engine import Engine
from refimpl.decoding.passes import EagerPasses
from refimpl.faults import FAULTS
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.selfcheck.enumeration import BranchingSource, law_config, scripts
from refimpl.selfcheck.fraction_model import FractionModel, fraction_pair, random_table
from refimpl.selfcheck.law import (
    BUDGETS,
    RULES,
    SEEDS,
    combinations,
    config_of,
    law_row,
    requests_for,
    variation,
)

ROWS = [(drafter, budget, rule) for (drafter, budget), rule in product(combinations(), RULES)]
TWO = [Request([0], 2, 1), Request([1, 0], 2, 1)]
HISTORY = [Request([0], 3, 1), Request([1, 0], 3, 1)]
DEEPER = [Request([0], 3, 2), Request([1, 0], 2, 1)]
SHARED = ("capacity:1",)
at_night = partial(pytest.param, marks=pytest.mark.nightly)


def is_short(drafter: str, budget: str, rule: str) -> bool:
    """Of every drafter and budget the rule that is easiest to break, and every rule once; others are for the night."""
    return rule == "rejection" or (drafter, budget) == ("model", "fixed")


@pytest.mark.parametrize(("drafter", "budget", "rule"), [row if is_short(*row) else at_night(*row) for row in ROWS])
def test_allowed_means_exact(drafter, budget, rule):
    row = law_row(drafter, budget, rule)
    assert (row.total_variation == 0) == row.allowed
    assert row.allowed or row.total_variation > 0.01


def test_what_is_refused():
    assert [row for row in ROWS if bias(config_of(*row))] == [
        (drafter, "capacity_own_token", rule) for drafter in ("model", "head") for rule in ("rejection", "block")
    ]


@pytest.mark.parametrize(("drafter", "budget"), [found for found in combinations() if BUDGETS[found[1]] != "fixed"])
def test_every_setting_offers_drafts_and_cuts_some(monkeypatch, drafter, budget):
    """A law that no draft has met would be kept by any budget."""
    seen, original = set(), EagerPasses.draft

    def spied(self, members, limits):
        most = [could_draft(self.drafter, member) for member in members]
        drafts, numbers = original(self, members, limits)
        seen.update("offered" for found in drafts.lengths if found)
        seen.update("cut" for found, limit in zip(drafts.lengths, most, strict=True) if found < limit)
        return drafts, numbers

    monkeypatch.setattr(EagerPasses, "draft", spied)
    config, requests = law_config(drafter=drafter, draft_budget=BUDGETS[budget]), requests_for(drafter, budget)
    for _ in runs(config, requests):
        if len(seen) == 2:
            break
    assert seen == {"offered", "cut"}


def runs(config, requests):
    """Every branch of the engine's runs, one after the other."""
    for seed in SEEDS:
        for source in scripts(BranchingSource):
            source.sequences = prepare(pair := fraction_pair(2, seed), requests, config)
            yield list(Engine(pair, source.sequences, config, source).rounds())


def could_draft(drafter, row):
    """Drafts that a row would be offered without a budget."""
    if row.finished or (drafter.states and not drafter.states.has(row)):
        return 0
    if isinstance(drafter, LookupDrafter):
        return len(drafter._find(row, row.draft_limit)) if row.draft_limit else 0
    return row.draft_limit


@pytest.mark.parametrize("budget", SHARED)
@pytest.mark.parametrize("method", ["inplace+fifo", "masked+static", "realigned+grouped"])
def test_joint_law_of_rows_that_share_a_budget(method, budget):
    config = law_config(method, draft_budget=budget)
    assert variation(fraction_pair(2, seed=3), TWO, config) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["inplace+fifo", "masked+static", "realigned+grouped"])
@pytest.mark.parametrize("seed", [3, 5, 6])
def test_joint_law_of_rows_that_share_a_budget_over_rounds(method, seed):
    config = law_config(method, draft_budget="capacity:2")
    assert variation(fraction_pair(2, seed), DEEPER, config) == 0


@pytest.mark.parametrize("budget", SHARED)
def test_joint_law_where_drafts_do_not_depend_on_what_came_before(budget):
    """The same noise then draws the same draft again after a rejection."""
    rng = Random(3)
    target, law = random_table(2, rng), [Fraction(5, 16), Fraction(11, 16)]
    flat = dict.fromkeys(target, law)
    pair = Pair(FractionModel(target), FractionModel(flat), vocab_size=2, name="flat")
    config = law_config(draft_budget=budget)
    assert variation(pair, TWO, config) == 0


@pytest.mark.parametrize("method", ["rollback+fifo", "inplace+fifo"])
def test_joint_law_of_rows_that_decide_alone(method):
    config = law_config(method, draft_budget="confidence:0.6")
    assert variation(fraction_pair(2, seed=6), TWO, config) == 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("method", [at_night("rollback+fifo"), "inplace+fifo", "realigned+grouped"])
def test_joint_law_of_rows_that_decide_by_history(method, rule):
    """Three tokens a row, one draft a round: whether the second round drafts depends on what the first has accepted."""
    if (method, rule) != ("rollback+fifo", "block"):  # which is refused
        config = law_config(method, acceptance=rule, draft_budget="goodput:1=1.6")
        assert variation(fraction_pair(2, seed=3), HISTORY, config) == 0


def test_a_history_of_offers_is_noticed(monkeypatch):
    """What was offered behind the batch minimum is drawn again, with the same numbers: a budget must not see it."""
    monkeypatch.setattr(Sequence, "note_drafts", _count_offers)
    config = law_config("rollback+fifo", draft_budget="goodput:1=1.3/1.6")
    with pytest.raises(InvariantViolation, match="INV-20 in row 0"):
        variation(fraction_pair(2, seed=3), [Request([0], 3, 2), Request([1, 0], 2, 1)], config)


def _count_offers(row, drafted, accepted, kept):
    row.num_accepted += accepted
    row.num_evaluated += drafted


@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("own-token-score", {"draft_budget": "capacity:1"}),
        ("stop-and-drop", {"draft_budget": "confidence:0.3"}),
    ],
)
def test_enumeration_detects_a_budget_that_reads_the_draft(fault, settings):
    with FAULTS[fault].injected():
        distance = max(variation(fraction_pair(2, seed), TWO, law_config(**settings)) for seed in (3, 5))
    assert distance > 0.01
