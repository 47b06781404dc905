"""A plan says what a run takes, takes nothing itself, and gives up as little as it must."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from refimpl import InputError, Request, generate
from refimpl.bench.memory import peak_bytes
from refimpl.decoding.dry_run import DryRun
from refimpl.decoding.memory import GIB
from refimpl.layouts.store import KVStore
from refimpl.pairs.random_pairs import random_pair
from refimpl.planning import MemoryPlan, plan_memory

AMPLE = 1.0


@pytest.fixture(scope="module")
def small():
    return random_pair("llama", vocab_size=64)


@pytest.fixture(scope="module")
def wide():
    return random_pair("llama", vocab_size=4000)


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
    "a static batch": {"method": "paged+static", "batch_size": 2},
    "groups": {"method": "inplace+grouped", "batch_size": 2},
    "one shape": {"method": "inplace", "shape_stable": True},
    "lookups": {"method": "inplace", "drafter": "ngram"},
    "long lookups": {"method": "paged", "drafter": "suffix"},
    "distributions": {"method": "inplace", "temperature": 1.0, "acceptance": "rejection"},
    "distributions of blocks": {"method": "inplace", "temperature": 1.0, "acceptance": "block"},
    "coupled": {"method": "inplace", "temperature": 1.0},
    "forced": {"method": "inplace", "acceptance": "forced:0.5/0.5"},
    "all are sure": {"method": "inplace", "draft_budget": "confidence:0.0"},
    "room for all": {"method": "inplace", "draft_budget": "capacity:12", "temperature": 1.0},
}
AT_MOST = {
    "a lookup first": {"drafter": "hybrid"},
    "a lookup first, in blocks": {"drafter": "hybrid", "method": "paged", "num_speculative_tokens": 1},
    "a head": {"drafter": "head"},
    "distributions of a head": {"drafter": "head", "temperature": 1.0, "acceptance": "rejection"},
    "by load": {"draft_budget": "by_load:2=1"},
    "by goodput": {"draft_budget": "goodput:1=1.2/1.5/2.0", "drafter": "ngram"},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_a_run_takes_what_was_planned(small, settings):
    work = prompts(60, 60, 57, 60)
    asked = {"batch_size": 4, "num_speculative_tokens": 3, "max_new_tokens": 20, "stop_token_ids": []} | settings
    plan = plan_memory(small, work, budget_gib=AMPLE, **asked)
    assert plan.gave_up == ()
    assert 0.9 < over_plan(small, work, plan) < 1.05


@pytest.mark.parametrize("settings", AT_MOST.values(), ids=AT_MOST)
def test_a_run_takes_no_more_than_was_planned(small, settings):
    """Rounds that differ are counted as the largest: with all drafts, and a draft that catches up from its prompt."""
    work = prompts(8, 60, 7, 5)
    asked = {"batch_size": 4, "num_speculative_tokens": 3, "max_new_tokens": 40, "stop_token_ids": []} | settings
    plan = plan_memory(small, work, budget_gib=AMPLE, **asked)
    assert (plan.gave_up, plan.settings["drafter"]) == ((), settings.get("drafter", "model"))
    assert 0.5 < over_plan(small, work, plan) < 1.05


def test_the_weights_of_a_head_count(small):
    planned = [
        plan_memory(small, prompts(5), budget_gib=AMPLE, drafter=drafter).footprint.weights_bytes
        for drafter in ("head", "ngram")
    ]
    assert planned[0] - planned[1] == sum(each.nbytes for each in small.head.block.parameters())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
def test_packed_weights_count_twice():
    """The copies of the products; norms and embeddings have none."""
    pair = random_pair("llama", vocab_size=64, dtype=torch.float32)  # of which auto makes packed layers
    products = [layer for lm in pair.models() for layer in lm.model.modules() if isinstance(layer, torch.nn.Linear)]
    planned = plan_memory(pair, prompts(5), budget_gib=AMPLE).footprint.weights_bytes
    parameters = sum(parameter.nbytes for lm in pair.models() for parameter in lm.model.parameters())
    assert planned - sum(layer.weight.nbytes for layer in products) == pytest.approx(parameters, rel=0.01)


def test_logits_of_packed_passes_count(wide):
    """A packed pass has its logits twice for a moment: without pads, and as a rectangle."""
    repeated = [[n + 7 * i for i in range(9)] * 2 for n in range(3, 8)]
    others = [list(range(n, n + 18)) for n in (100, 120, 140)]
    asked = {"drafter": "ngram", "batch_size": 8, "num_speculative_tokens": 8, "max_new_tokens": 12}
    plan = plan_memory(wide, repeated + others, budget_gib=AMPLE, stop_token_ids=[], **asked)
    assert 0.9 < over_plan(wide, repeated + others, plan) < 1.05


@pytest.mark.parametrize("capacity", [0, 6, 24])
def test_a_capacity_bounds_what_is_verified(wide, capacity):
    """At most as many drafts, of one row or of several; the distributions of all that are drawn are kept."""
    work = prompts(20, 20, 18, 20)
    asked = {"method": "inplace", "num_speculative_tokens": 8, "max_new_tokens": 30, "stop_token_ids": []}
    plan = plan_memory(wide, work, budget_gib=AMPLE, batch_size=4, draft_budget=f"capacity:{capacity}", **asked)
    assert 0.9 < over_plan(wide, work, plan) < 1.05


def test_the_bundled_pair_takes_what_was_planned(tiny):
    work = prompts(90, 80, 85)
    plan = plan_memory(tiny, work, budget_gib=AMPLE, max_new_tokens=8, batch_size=3, stop_token_ids=[])
    assert 0.9 < over_plan(tiny, work, plan) < 1.05
    files = 2 * (19_711_536 + 1_969_136)  # of weights in 16 bit, read as 32 bit
    copied = sum(lm.layers.copied_bytes for lm in tiny.models())
    assert plan.footprint.weights_bytes - copied == pytest.approx(files, rel=0.01)


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


@pytest.mark.parametrize("drafter", ["model", "ngram", "suffix"])
def test_logits_of_all_drafts_count(wide, drafter):
    """One prompt token, so that the peak is the verify pass: logits of 33 positions, and distributions in float64."""
    asked = {"max_new_tokens": 40, "num_speculative_tokens": 32, "temperature": 1.0, "acceptance": "rejection"}
    footprint = plan_memory(wide, prompts(2), budget_gib=AMPLE, drafter=drafter, **asked).footprint
    assert footprint.logits_bytes > 33 * 4000 * (8 + 8)
    assert footprint.logits_bytes > 5 * footprint.activation_bytes


def test_logits_count_with_their_padding(wide):
    padded = replace(wide, vocab_size=3990)
    asked = {"max_new_tokens": 40, "num_speculative_tokens": 32, "drafter": "ngram"}
    assert plan_memory(padded, prompts(2), budget_gib=AMPLE, **asked).footprint.logits_bytes >= 33 * 4000 * 8


def test_the_largest_prefill_and_the_largest_round_may_be_of_different_rows(small, wide):
    """The row with the longest prompt ends first; the longest row has no drafts."""
    for pair, work in (
        (small, [Request([3] * 30, 1), Request([3] * 2, 30)]),
        (wide, [Request([3] * 30, 1), Request([3] * 20, 10)]),
    ):
        plan = plan_memory(pair, work, budget_gib=AMPLE, batch_size=1, num_speculative_tokens=5, stop_token_ids=[])
        assert 0.9 < over_plan(pair, work, plan) < 1.05


@pytest.mark.parametrize("settings", [CASES["blocks"], CASES["room for all"] | CASES["blocks"]])
def test_the_planned_pool_is_that_of_the_run(small, settings):
    """Blocks for the rows that are longest together; their prompts are short."""
    work = [Request([3] * prompt, new) for prompt, new in ((60, 1), (5, 90), (40, 20), (5, 70))]
    plan = plan_memory(small, work, budget_gib=AMPLE, batch_size=2, stop_token_ids=[], **settings)
    assert plan.footprint.kv_bytes == generate(small, work, **plan.settings).stats.kv_bytes


def shrinking(pair, work, asked):
    """Plans with budgets just below what the plan before took, until nothing fits, which is an error."""
    budget = AMPLE
    while True:
        plan = plan_memory(pair, work, budget_gib=budget, **asked)
        assert plan.footprint.total_bytes < budget * GIB
        yield plan
        budget = 1.05 * (plan.footprint.total_bytes - 1) / GIB


def test_the_least_that_is_named_fits(small):
    """Rounded up, and with the activations that the last try did not get to count."""
    with pytest.raises(InputError, match="nothing fits") as refused:
        plan_memory(small, prompts(7), budget_gib=1e-9, batch_size=2, max_new_tokens=9)
    least = float(str(refused.value).split()[-2])
    plan_memory(small, prompts(7), budget_gib=least, batch_size=2, max_new_tokens=9)
    with pytest.raises(InputError, match="nothing fits"):
        plan_memory(small, prompts(7), budget_gib=0.99 * least, batch_size=2, max_new_tokens=9)


def test_less_and_less_is_kept(small):
    """Each step gives up the next wish, and takes less."""
    work = prompts(120, 5, 5)
    asked = {"batch_size": 2, "num_speculative_tokens": 1, "max_new_tokens": 9, "stop_token_ids": []}
    plans: list[MemoryPlan] = []
    with pytest.raises(InputError, match=r"^nothing fits into .*one row and drafter 'ngram' need .* GiB$"):
        plans.extend(shrinking(small, work, asked))
    first, second, last = plans[0], plans[1], plans[-1]
    assert first.gave_up == ()
    assert second.gave_up == ("pool rows as long as the longest: paged stores blocks, which every pass gathers",)
    assert (last.settings["batch_size"], last.settings["drafter"]) == (1, "ngram")
    assert [line.partition(":")[0] for line in last.gave_up][-2:] == ["draft model dropped", "rows"]
    totals = [plan.footprint.total_bytes for plan in plans]
    assert totals == sorted(totals, reverse=True)


def test_drafts_are_halved_where_logits_are_the_largest(wide):
    asked = {"method": "paged", "drafter": "ngram", "num_speculative_tokens": 32, "max_new_tokens": 40}
    first, second = islice(shrinking(wide, prompts(2), asked), 2)
    assert (first.gave_up, second.gave_up) == ((), ("drafts: 16 a row instead of 32",))
    assert second.settings["num_speculative_tokens"] == 16


def test_a_plan_keeps_the_scheduler(small):
    work = prompts(120, 5, 5)
    asked = {"batch_size": 2, "num_speculative_tokens": 1, "max_new_tokens": 9, "stop_token_ids": []}
    for method, other, given_up in (
        ("inplace+static", "paged+static", "pool rows as long as the longest"),
        ("paged+grouped", "paged+grouped", "draft model dropped"),
    ):
        _, second = islice(shrinking(small, work, asked | {"method": method}), 2)
        assert second.settings["method"] == other
        assert [line.partition(":")[0] for line in second.gave_up] == [given_up]


def test_a_plan_says_where_prompts_are_cut(small):
    plans = [plan_memory(small, prompts(9), budget_gib=AMPLE, max_prompt_tokens=most) for most in (None, 4)]
    assert ["max_prompt_tokens" in plan.settings for plan in plans] == [False, True]
    assert generate(small, prompts(9), **plans[1].settings, max_new_tokens=2).sequences[0].num_prompt_tokens_cut == 5


def test_what_exceeds_the_budget_in_its_prefill_is_counted_no_further(small, monkeypatch):
    counted, run_passes = [], DryRun._run_passes
    monkeypatch.setattr(DryRun, "_run_passes", lambda self, *given: counted.append(0) or run_passes(self, *given))
    plans = list(islice(shrinking(small, prompts(120, 5, 5), {"method": "paged", "batch_size": 2}), 3))
    assert len(counted) == len(plans) == 3


def test_bytes_are_those_of_host_checks(small):
    asked = {"max_new_tokens": 8, "batch_size": 1}
    plans = [
        plan_memory(small, prompts(20), budget_gib=AMPLE, **asked, **checks) for checks in ({}, {"checks": "device"})
    ]
    assert plans[0].footprint == plans[1].footprint
    assert [plan.settings["checks"] for plan in plans] == ["host", "device"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "paged+continuous"}, "prompts in chunks"),
        ({"method": "autoregressive"}, "only inplace and paged are"),
        ({"method": "eqspec"}, "only inplace and paged are"),
        ({"execution": "overlapped"}, "two cohorts"),
        ({"cuda_graphs": True}, "leave cuda_graphs out"),
        ({"logprobs": 0}, "leave logprobs out"),
        ({"kv_memory_gib": 1.0}, "leave kv_memory_gib out"),
        ({"max_model_len": 90}, "leave max_model_len out"),
    ],
)
def test_what_is_not_planned(small, settings, message):
    with pytest.raises(InputError, match=message):
        plan_memory(small, prompts(3), budget_gib=AMPLE, **settings)


def test_a_request_with_drafts_of_its_own_is_not_planned(small):
    with pytest.raises(InputError, match="prompt 1 has its own num_speculative_tokens"):
        plan_memory(small, [[3], Request([3], num_speculative_tokens=5)], budget_gib=AMPLE)


def test_the_plan_of_an_impossible_budget(small):
    for budget in (0.0, -1.0, float("nan"), float("inf"), 1e300, True):
        with pytest.raises(InputError, match="the budget must be a finite number of GiB above 0"):
            plan_memory(small, prompts(3), budget_gib=budget)


def test_budgets_of_one_token_beside_longer_ones_are_planned(small):
    """The longest rows end before they have room for all drafts: the draft has then cached no more than the row has."""
    work = [Request(tokens, max_new_tokens=new) for tokens, new in zip(prompts(60, 47, 5), (1, 1, 20), strict=True)]
    plan = plan_memory(small, work, budget_gib=AMPLE, batch_size=2, num_speculative_tokens=4, drafter="hybrid")
    assert plan.gave_up == ()
