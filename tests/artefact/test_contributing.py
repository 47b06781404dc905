"""What CONTRIBUTING.md promises: a new value on an axis is a class and its entries in registries, from one file."""

import pytest

from refimpl import generate, load_pair
from refimpl.conformance.adapters import MethodEngine
from refimpl.conformance.kit import check_engine
from refimpl.conformance.properties import ENGINE_PROPERTIES
from refimpl.core.drafting import DRAFT_BUDGETS, DRAFTERS, BudgetFacts, DrafterFacts, drafts
from refimpl.core.engine_settings import SCHEDULERS
from refimpl.decoding.drafters import DRAFTER_MAKERS, LookupDrafter
from refimpl.drafting.budgets import BUDGETS, DraftBudget
from refimpl.models.table_model import table_pair
from refimpl.scheduling import SCHEDULER_CLASSES, FifoScheduler, RoundPlan
from refimpl.selfcheck import law
from simulator import Scenario
from simulator.service.scenario_cost import COSTS
from simulator.service.simulation import simulate_once
from simulator.settings.fields import POSITIVE
from simulator.settings.kinds import COST
from tests.outputs import tokens

PROMPTS = [[5, 6, 7], [8], [9, 10]]
SETTINGS = {"batch_size": 2, "max_new_tokens": 12, "num_speculative_tokens": 3, "stop_token_ids": ()}
SMALL = {"study": {"num_requests": 6}, "workload": {"output_tokens": {"kind": "fixed", "tokens": 20}}}


class Youngest(FifoScheduler):
    """The youngest row runs alone."""

    def select(self):
        return RoundPlan((list(self.pool.window.values())[-1],), "fifo")


class Echo:
    """The last token, again and again."""

    def read(self, token_ids):
        self.last = token_ids[-1]

    def propose(self, limit):
        return [self.last] * limit


class AtMost(DraftBudget):
    """So many drafts a row."""

    def __init__(self, most):
        self.most = most

    def before(self, rows):
        return [min(row.draft_limit, self.most) for row in rows]


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny")


@pytest.fixture(scope="module")
def wanted(pair):
    return tokens(generate(pair, PROMPTS, method="autoregressive", **SETTINGS))


def test_a_scheduler(monkeypatch, pair, wanted):
    monkeypatch.setitem(SCHEDULER_CLASSES, "youngest", Youngest)
    SCHEDULERS.append("youngest")
    try:
        result = generate(pair, PROMPTS, method="inplace+youngest", **SETTINGS)
        assert tokens(result) == wanted
        assert [row.sequence for row in result.rounds[0].rows] == [1]
        rounds = simulate_once(Scenario(engine={"method": "inplace+youngest"}, **SMALL)).log.round_frame()
        assert rounds["rows"].max() == 1
    finally:
        SCHEDULERS.remove("youngest")


def test_a_drafter(monkeypatch, pair, wanted):
    monkeypatch.setitem(DRAFTERS, "echo", DrafterFacts(lookup="echo"))
    monkeypatch.setitem(DRAFTER_MAKERS, "echo", lambda make: LookupDrafter(Echo))
    result = generate(pair, PROMPTS, method="paged", drafter="echo", **SETTINGS)
    assert tokens(result) == wanted
    assert result.stats.drafters["echo"].drafted > 0


def test_a_draft_budget(monkeypatch, pair, wanted):
    monkeypatch.setitem(DRAFT_BUDGETS, "at_most", BudgetFacts(drafts, "2"))
    monkeypatch.setitem(BUDGETS, "at_most", AtMost)
    monkeypatch.setitem(law.BUDGETS, "at_most", "at_most:0")
    result = generate(pair, PROMPTS, draft_budget="at_most:2", **SETTINGS)
    assert tokens(result) == wanted
    assert max(row.drafted for record in result.rounds for row in record.rows) == 2
    assert law.law_row("model", "at_most", "rejection").total_variation == 0
    scenario = Scenario(engine={"draft_budget": "at_most:1"}, **SMALL)
    assert simulate_once(scenario).log.round_frame()["k"].max() == 1


def test_a_cost(monkeypatch):
    def constant(scenario, streams):
        return COSTS["linear"](
            scenario.but(cost={"kind": "linear", "verify_base_s": scenario.cost["round_s"]}), streams
        )

    monkeypatch.setitem(COST, "constant", {"round_s": POSITIVE})
    monkeypatch.setitem(COSTS, "constant", constant)
    scenario = Scenario(cost={"kind": "constant", "round_s": 2.0}, noise=False, **SMALL)
    rounds = simulate_once(scenario).log.round_frame()
    assert rounds["round_s"].tolist() == [2.0] * len(rounds)


def test_a_property_of_the_kit(monkeypatch):
    def answers_every_prompt(subject, case):
        assert len(subject.run(case.prompts, case.settings)) == len(case.prompts)

    monkeypatch.setitem(ENGINE_PROPERTIES, "answers_every_prompt", answers_every_prompt)
    engine = MethodEngine("exspec", table_pair({}))
    report = check_engine(engine, properties=["answers_every_prompt"], max_examples=3)
    assert [(verdict.property, verdict.status) for verdict in report.verdicts] == [("answers_every_prompt", "pass")]
