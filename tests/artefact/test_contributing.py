"""What CONTRIBUTING.md promises: a new value on an axis is a class and its entries in registries, from one file."""

from dataclasses import fields
from typing import get_args

import pytest

from refimpl import generate, load_pair
from refimpl.conformance.adapters import MethodEngine
from refimpl.conformance.kit import check_engine
from refimpl.conformance.properties import ENGINE_PROPERTIES
from refimpl.core.config import make_config
from refimpl.core.drafting import DRAFT_BUDGETS, DRAFTERS, BudgetFacts, DrafterFacts, drafts
from refimpl.core.engine_settings import SCHEDULERS, EngineSettings, SchedulerFacts, SchedulerName
from refimpl.decoding.drafters import DRAFTER_MAKERS, LookupDrafter
from refimpl.decoding.trace import trace_header
from refimpl.drafting.budgets import BUDGETS, DraftBudget
from refimpl.models.table_model import table_pair
from refimpl.scheduling import SCHEDULER_CLASSES, RoundPlan, Scheduler
from refimpl.selfcheck import law
from simulator import Scenario
from simulator.engine_runs.parity import check_parity
from simulator.service.scenario_cost import COSTS
from simulator.service.simulation import simulate_once
from simulator.settings.fields import POSITIVE
from simulator.settings.kinds import COST
from tests.outputs import tokens

PROMPTS = [[5, 6, 7], [8], [9, 10]]
SETTINGS = {"batch_size": 2, "max_new_tokens": 12, "num_speculative_tokens": 3, "stop_token_ids": ()}
SMALL = {"study": {"num_requests": 6}, "workload": {"output_tokens": {"kind": "fixed", "tokens": 20}}}


class Youngest(Scheduler):
    """The youngest rows of the window run, unless its oldest has waited for `aging_bound` rounds."""

    @classmethod
    def of(cls, settings, **options):
        scheduler = super().of(settings, **options)
        scheduler.patience, scheduler.waited = settings.aging_bound, 0
        return scheduler

    def select(self):
        rows = list(self.pool.window.values())
        aged = self.waited >= self.patience
        chosen = rows[: self.batch_size] if aged else rows[-self.batch_size :]
        return RoundPlan(tuple(chosen), "aged" if aged else "youngest")

    def _after(self, plan):
        self.waited = 0 if plan.mode == "aged" else self.waited + 1
        return super()._after(plan)


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


def test_a_scheduler(monkeypatch, tmp_path, pair, wanted):
    """With a window and a setting, which its trace tells: the simulator makes the same decisions."""
    monkeypatch.setitem(SCHEDULER_CLASSES, "youngest", Youngest)
    monkeypatch.setitem(SCHEDULERS, "youngest", SchedulerFacts(windowed=True))
    result = generate(pair, PROMPTS, method="inplace+youngest", window_size=3, aging_bound=2, **SETTINGS)
    assert tokens(result) == wanted
    assert [[row.sequence for row in each.rows] for each in result.rounds[:3]] == [[1, 2], [1, 2], [0, 1]]
    result.write_trace(tmp_path / "run.ndjson")
    assert check_parity(tmp_path / "run.ndjson").exact


def test_types_and_registries_of_schedulers_agree():
    assert get_args(SchedulerName) == tuple(SCHEDULERS) == tuple(SCHEDULER_CLASSES)


def test_a_trace_tells_every_setting_that_engine_and_simulator_share():
    """So that a scheduler's own is replayed, too."""
    given = {"window_size": 9, "aging_bound": 5, "compaction_threshold": 0.5, "block_size": 4, "prefix_sharing": False}
    given |= {"batch_size": 3, "num_speculative_tokens": 2, "drafter": "ngram", "draft_budget": "by_load:2=1"}
    for more in (
        {"method": "paged+grouped"},
        {"method": "paged+continuous", "token_budget": 70, "joint_prefill": True},
    ):
        config = make_config(**given | more)
        header = trace_header(config, [], {})
        told = {field.name: header.get(field.name, field.default) for field in fields(EngineSettings)}
        resolved = {"window_size": config.resolved_window_size}
        assert told == {name: getattr(config, name) for name in told} | resolved


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
