"""A plan says what a run takes, takes nothing itself, and gives up as little as it must."""

from contextlib import suppress

import pytest

from refimpl import InputError, generate
from refimpl.bench.memory import peak_bytes
from refimpl.decoding.memory import GIB
from refimpl.layouts.store import KVStore
from refimpl.pairs.random_pairs import random_pair
from refimpl.planning import MemoryPlan, plan_memory

AMPLE = 1.0


@pytest.fixture(scope="module")
def small():
    return random_pair("llama", vocab_size=64)


def prompts(*lengths: int) -> list[list[int]]:
    return [[(7 * i + j) % 50 + 3 for j in range(n)] for i, n in enumerate(lengths)]


def over_plan(pair, work, plan: MemoryPlan) -> float:
    """Measured bytes of a run over planned ones, weights left out."""
    planned = plan.footprint.total_bytes - plan.footprint.weights_bytes
    return peak_bytes(lambda: generate(pair, work, **plan.settings)) / planned


CASES = {
    "inplace": {"method": "inplace"},
    "rows that enter later": {"method": "inplace", "batch_size": 2},
    "blocks": {"method": "paged"},
    "lookups": {"method": "inplace", "drafter": "ngram"},
    "distributions": {"method": "inplace", "temperature": 1.0, "acceptance": "rejection"},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_a_run_takes_what_was_planned(small, settings):
    work = prompts(60, 60, 57, 60)
    asked = {"batch_size": 4, "num_speculative_tokens": 3, "max_new_tokens": 20, "stop_token_ids": []} | settings
    plan = plan_memory(small, work, budget_gib=AMPLE, **asked)
    assert plan.gave_up == ()
    assert 0.9 < over_plan(small, work, plan) < 1.05


def test_the_bundled_pair_takes_what_was_planned(tiny):
    work = prompts(90, 80, 85)
    plan = plan_memory(tiny, work, budget_gib=AMPLE, max_new_tokens=8, batch_size=3, stop_token_ids=[])
    assert 0.9 < over_plan(tiny, work, plan) < 1.05
    files = 2 * (19_711_536 + 1_969_136)  # of weights in 16 bit, read as 32 bit
    assert plan.footprint.weights_bytes == pytest.approx(files, rel=0.01)


def test_a_run_that_takes_more_is_noticed(small, monkeypatch):
    work = prompts(5, 5)
    plan = plan_memory(small, work, budget_gib=AMPLE, max_new_tokens=60, batch_size=2, stop_token_ids=[])
    empty = KVStore.empty
    monkeypatch.setattr(KVStore, "empty", lambda shape, rows, columns, **tags: empty(shape, 2 * rows, columns, **tags))
    assert over_plan(small, work, plan) > 1.1


def test_a_plan_takes_no_memory_itself(small):
    asked = {"max_new_tokens": 200, "batch_size": 64, "stop_token_ids": []}
    plans = []
    peak = peak_bytes(lambda: plans.append(plan_memory(small, prompts(*[20] * 64), budget_gib=AMPLE, **asked)))
    assert plans[0].footprint.kv_bytes > 10 * peak


def test_logits_count_where_they_are_the_largest(small):
    """One prompt token, so that the peak is the verify pass: logits of 33 positions, and distributions in float64."""
    wide = random_pair("llama", vocab_size=4000)
    asked = {"max_new_tokens": 40, "num_speculative_tokens": 32, "temperature": 1.0, "acceptance": "rejection"}
    footprint = plan_memory(wide, prompts(2), budget_gib=AMPLE, **asked).footprint
    assert footprint.logits_bytes > 33 * 4000 * (4 + 8)
    assert footprint.logits_bytes > 5 * footprint.activation_bytes


def shrinking(pair, work, asked):
    """Plans with budgets just below what the plan before took, down to where nothing fits."""
    budget = AMPLE
    with suppress(InputError):
        while True:
            plan = plan_memory(pair, work, budget_gib=budget, **asked)
            assert plan.footprint.total_bytes < budget * GIB
            yield plan
            budget = 1.05 * (plan.footprint.total_bytes - 1) / GIB


def test_less_and_less_is_kept(small):
    """Each step gives up the next wish, and takes less."""
    work = prompts(120, 5, 5)
    asked = {"batch_size": 2, "num_speculative_tokens": 2, "max_new_tokens": 9, "stop_token_ids": []}
    plans = list(shrinking(small, work, asked))
    with pytest.raises(InputError, match=r"^nothing fits into .*one row and drafter 'ngram' need .* GiB or more$"):
        plan_memory(small, work, budget_gib=0.9 * plans[-1].footprint.total_bytes / GIB, **asked)
    first, second, last = plans[0], plans[1], plans[-1]
    assert first.gave_up == ()
    assert second.gave_up == ("pool rows as long as the longest: paged stores blocks, which every pass gathers",)
    assert (last.settings["batch_size"], last.settings["drafter"]) == (1, "ngram")
    assert [line.partition(":")[0] for line in last.gave_up][-2:] == ["the draft model", "rows"]
    totals = [plan.footprint.total_bytes for plan in plans]
    assert totals == sorted(totals, reverse=True)


def test_what_is_not_planned(small):
    for method, message in {
        "paged+continuous": "prompts in chunks",
        "autoregressive": "not planned",
        "eqspec": "not planned",
    }.items():
        with pytest.raises(InputError, match=message):
            plan_memory(small, prompts(3), budget_gib=AMPLE, method=method)
    with pytest.raises(InputError, match="two cohorts"):
        plan_memory(small, prompts(3), budget_gib=AMPLE, execution="overlapped")


def test_the_plan_of_an_impossible_budget(small):
    for budget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="the budget must be a finite number of GiB above 0"):
            plan_memory(small, prompts(3), budget_gib=budget)
