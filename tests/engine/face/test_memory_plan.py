"""A plan says what a run takes, takes nothing itself, and gives up as little as it must."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3NextConfig

from refimpl import InputError, Request, generate, load_pair, make_pair
from refimpl.bench.memory import peak_bytes
from refimpl.decoding.memory import GIB
from refimpl.pairs.random_pairs import random_models, random_pair
from refimpl.planning import MemoryPlan, plan_memory

AMPLE = 1.0
DELTA = {"num_hidden_layers": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8} | dict.fromkeys(
    ("linear_key_head_dim", "linear_value_head_dim"), 16
)


@pytest.fixture(scope="module")
def pairs():
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "vocab_size": 64}
    settings = {"seed": 0, "dtype": torch.float32, "draft_noise": 0.02}
    mixed = random_models(Qwen3MoeConfig(**sizes, **experts), **settings)
    recurrent, _ = random_models(Qwen3NextConfig(**sizes | experts | DELTA), **settings)
    found = {"tiny": load_pair("tiny"), "experts": make_pair(*mixed, stop_token_ids=())}
    found["recurrent"] = replace(make_pair(recurrent, mixed[1], stop_token_ids=()), draft=None)
    return found | {vocab: random_pair("llama", vocab_size=vocab) for vocab in (64, 4000)}


@pytest.fixture(scope="module")
def small(pairs):
    return pairs[64]


def prompts(*lengths: int) -> list[list[int]]:
    return [[(7 * i + j) % 50 + 3 for j in range(n)] for i, n in enumerate(lengths)]


ALIKE, UNLIKE = prompts(60, 60, 57, 60), prompts(8, 60, 7, 5)
REPEATED = [[n + 7 * i for i in range(9)] * 2 for n in range(3, 8)]
FORCED = {"acceptance": "forced:0.5/0.5"}
DRAWN = {"temperature": 1.0, "acceptance": "rejection"}
PAGED, LONG, LOOKUP = {"method": "paged"}, {"num_speculative_tokens": 8, "max_new_tokens": 30}, {"drafter": "ngram"}
HYBRID = {"drafter": "hybrid", "max_new_tokens": 40}
# pair, prompts and settings; where the longest rows do not meet, or drafts are rare, a run may take less than planned
MET = {
    "inplace": (64, ALIKE, {}),
    "rows that enter later": (64, ALIKE, {"batch_size": 2}),
    "blocks": (64, ALIKE, PAGED),
    "a static batch": (64, ALIKE, {"method": "paged+static", "batch_size": 2}),
    "groups": (64, ALIKE, {"method": "inplace+grouped", "batch_size": 2}),
    "one shape": (64, ALIKE, {"shape_stable": True}),
    "lookups": (64, ALIKE, LOOKUP),
    "long lookups": (64, ALIKE, PAGED | {"drafter": "suffix"}),
    "distributions": (64, ALIKE, DRAWN),
    "distributions of blocks": (64, ALIKE, DRAWN | {"acceptance": "block"}),
    "coupled": (64, ALIKE, {"temperature": 1.0}),
    "forced": (64, ALIKE, FORCED),
    "all are sure": (64, ALIKE, {"draft_budget": "confidence:0.0"}),
    "room for all": (64, ALIKE, {"draft_budget": "capacity:12", "temperature": 1.0}),
    "room for none": (4000, prompts(20, 20, 18, 20), LONG | {"draft_budget": "capacity:0"}),
    "room for some": (4000, prompts(20, 20, 18, 20), LONG | {"draft_budget": "capacity:6"}),
    "packed logits": (4000, REPEATED + prompts(18, 18, 18), LOOKUP | LONG | {"batch_size": 8, "max_new_tokens": 12}),
    "the longest prompt ends first": (64, [Request([3] * 30, 1), Request([3] * 2, 30)], {"batch_size": 1}),
    "the longest row has no drafts": (4000, [Request([3] * 30, 1), Request([3] * 20, 10)], {"batch_size": 1}),
    "experts in float32": ("experts", ALIKE, {}),
    "recurrent states": ("recurrent", ALIKE, LOOKUP),
    "the bundled pair": ("tiny", prompts(90, 80, 85), {"max_new_tokens": 8}),
}
APART = {
    "a lookup first": (64, UNLIKE, HYBRID),
    "a lookup first, in blocks": (64, UNLIKE, PAGED | HYBRID | {"num_speculative_tokens": 1}),
    "a lookup first, beside budgets of one": (64, [Request([3] * 60, 1), Request([3] * 5, 20)], HYBRID),
    "a head": (64, UNLIKE, {"drafter": "head"}),
    "distributions of a head": (64, UNLIKE, DRAWN | {"drafter": "head"}),
    "by load": (64, UNLIKE, {"draft_budget": "by_load:2=1"}),
    "by goodput": (64, UNLIKE, LOOKUP | {"draft_budget": "goodput:1=1.2/1.5/2.0"}),
}
RARE = {"a draft that could catch up at the end": (64, prompts(2), HYBRID | {"max_new_tokens": 150})}
BOUNDS = [(case, least) for cases, least in ((MET, 0.9), (APART, 0.5), (RARE, 0.4)) for case in cases.values()]


@pytest.mark.parametrize(("case", "least"), BOUNDS, ids=[*MET, *APART, *RARE])
def test_a_run_takes_what_was_planned(pairs, case, least):
    """As the allocator counts it, weights left out."""
    name, work, settings = case
    asked = {"batch_size": 4, "num_speculative_tokens": 3, "max_new_tokens": 20, "stop_token_ids": []} | settings
    plan = plan_memory(pairs[name], work, budget_gib=AMPLE, **asked)
    assert (plan.gave_up, plan.settings["drafter"]) == ((), settings.get("drafter", "model"))
    planned = plan.footprint.total_bytes - plan.footprint.weights_bytes
    assert least < peak_bytes(lambda: generate(pairs[name], work, **plan.settings)) / planned < 1.05


@pytest.mark.parametrize(("batch_size", "window_size", "rows"), [(2, 2, 2), (2, 3, 3), (4, 9, 4)])
def test_states_of_all_rows_are_planned(pairs, batch_size, window_size, rows):
    """Three of four layers have them: of 8 heads of 16 times 16, and of a convolution over 4 tokens, in float32."""
    sizes = {"batch_size": batch_size, "window_size": window_size, "method": "inplace+grouped"}
    plan = plan_memory(pairs["recurrent"], ALIKE, budget_gib=AMPLE, **sizes, **LOOKUP)
    channels = (2 * 4 + 8) * 16
    assert plan.footprint.state_bytes == rows * 3 * 4 * (8 * 16 * 16 + channels * 4)
    assert plan_memory(pairs["experts"], ALIKE, budget_gib=AMPLE).footprint.state_bytes == 0


@pytest.mark.parametrize("settings", [PAGED, PAGED | {"draft_budget": "capacity:12", "temperature": 1.0}])
def test_the_planned_pool_is_that_of_the_run(small, settings):
    """Blocks for the rows that are longest together; their prompts are short."""
    work = [Request([3] * prompt, new) for prompt, new in ((60, 1), (5, 90), (40, 20), (5, 70))]
    plan = plan_memory(small, work, budget_gib=AMPLE, batch_size=2, stop_token_ids=[], **settings)
    assert plan.footprint.kv_bytes == generate(small, work, **plan.settings).stats.kv_bytes


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
def test_weights_count_with_their_packed_copies_and_the_head():
    """Products have copies; norms and embeddings have none."""
    pair = random_pair("llama", vocab_size=64, dtype=torch.float32)  # of which auto makes packed layers
    products = [layer for lm in pair.models() for layer in lm.model.modules() if isinstance(layer, torch.nn.Linear)]
    model, head, lookup = (
        plan_memory(pair, prompts(5), budget_gib=AMPLE, drafter=drafter).footprint.weights_bytes
        for drafter in ("model", "head", "ngram")
    )
    parameters = sum(parameter.nbytes for lm in pair.models() for parameter in lm.model.parameters())
    assert model - sum(layer.weight.nbytes for layer in products) == pytest.approx(parameters, rel=0.01)
    assert head - lookup == sum(each.nbytes for each in pair.head.block.parameters())


def test_a_plan_takes_no_memory_itself(small):
    asked = {"max_new_tokens": 200, "batch_size": 64, "stop_token_ids": []}
    plans = []
    peak = peak_bytes(lambda: plans.append(plan_memory(small, prompts(*[20] * 64), budget_gib=AMPLE, **asked)))
    assert plans[0].footprint.kv_bytes > 10 * peak


@pytest.mark.parametrize("drafter", ["model", "ngram", "suffix"])
def test_logits_of_all_drafts_count_with_their_padding(pairs, drafter):
    """One prompt token, so that the peak is the verify pass: logits of 33 positions, and distributions in float64."""
    asked = {"max_new_tokens": 40, "num_speculative_tokens": 32, "drafter": drafter} | DRAWN
    footprint = plan_memory(replace(pairs[4000], vocab_size=3990), prompts(2), budget_gib=AMPLE, **asked).footprint
    assert footprint.logits_bytes > 33 * 4000 * (8 + 8)
    assert footprint.logits_bytes > 5 * footprint.activation_bytes


def shrinking(pair, work, asked):
    """Plans with budgets just below what the plan before took, until nothing fits, which is an error."""
    budget = AMPLE
    while True:
        plan = plan_memory(pair, work, budget_gib=budget, stop_token_ids=[], **asked)
        assert plan.footprint.total_bytes < budget * GIB
        yield plan
        budget = 1.05 * (plan.footprint.total_bytes - 1) / GIB


@pytest.mark.parametrize("scheduler", ["fifo", "grouped"])
def test_less_and_less_is_kept(small, scheduler):
    """Each step gives up the next wish, and takes less; the scheduler stays."""
    asked = {"batch_size": 2, "num_speculative_tokens": 1, "max_new_tokens": 9, "method": f"inplace+{scheduler}"}
    plans: list[MemoryPlan] = []
    with pytest.raises(InputError, match=r"^nothing fits into .*one row and drafter 'ngram' need about .* GiB$"):
        plans.extend(shrinking(small, prompts(120, 5, 5), asked))
    first, second, *_, last = plans
    assert first.gave_up == ()
    assert second.gave_up == ("pool rows as long as the longest: paged stores blocks, which every pass gathers",)
    assert {plan.settings["method"] for plan in plans} == {f"{layout}+{scheduler}" for layout in ("inplace", "paged")}
    assert (last.settings["batch_size"], last.settings["drafter"]) == (1, "ngram")
    assert [line.partition(":")[0] for line in last.gave_up][-2:] == ["draft model dropped", "rows"]
    totals = [plan.footprint.total_bytes for plan in plans]
    assert totals == sorted(totals, reverse=True)


def test_drafts_are_halved_where_logits_are_the_largest(pairs):
    asked = PAGED | LOOKUP | {"num_speculative_tokens": 32, "max_new_tokens": 40}
    first, second = islice(shrinking(pairs[4000], prompts(2), asked), 2)
    assert (first.gave_up, second.gave_up) == ((), ("drafts: 16 a row instead of 32",))
    assert second.settings["num_speculative_tokens"] == 16


def test_settings_are_those_that_were_asked_for(small):
    """Where prompts are cut, and checks, which take no part in the bytes."""
    settings = [{"checks": "device"}, {"max_prompt_tokens": 20}, {}]
    plans = [plan_memory(small, prompts(20), budget_gib=AMPLE, max_new_tokens=8, **given) for given in settings]
    assert len({plan.footprint for plan in plans}) == 1
    assert [plan.settings["checks"] for plan in plans] == ["device", "host", "host"]
    assert [plan.settings.get("max_prompt_tokens") for plan in plans] == [None, 20, None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"method": name}, f"{name} is not planned") for name in ("paged+continuous", "autoregressive", "eqspec")),
        ({"execution": "overlapped"}, "what execution takes"),
        ({"cuda_graphs": True}, "what cuda_graphs takes"),
        ({"logprobs": 0}, "what logprobs takes"),
        ({"kv_memory_gib": 1.0}, "what kv_memory_gib takes"),
        ({"max_model_len": 90}, "what max_model_len takes"),
        ({"joint_prefill": True}, "what joint_prefill takes"),
        *(({"budget_gib": gib}, "must be a finite number of GiB above 0") for gib in (0.0, -1.0, float("nan"), True)),
    ],
)
def test_what_is_not_planned(small, settings, message):
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        plan_memory(small, prompts(3), **{"budget_gib": AMPLE} | settings)


def test_a_request_with_drafts_of_its_own_is_not_planned(small):
    with pytest.raises(InputError, match="num_speculative_tokens of a prompt's own"):
        plan_memory(small, [[3], Request([3], num_speculative_tokens=5)], budget_gib=AMPLE)
