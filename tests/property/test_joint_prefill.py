"""Rows that decode in the pass that caches the last of their prompt: the same tokens, in fewer passes."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import InputError, Request, generate, verify
from refimpl.core.config import make_config
from refimpl.core.execution import UNMOVED_LAYOUTS
from refimpl.core.sequence import Sequence
from refimpl.decoding.memory import pool_gib
from refimpl.models.table_model import table_pair
from refimpl.scheduling import ContinuousScheduler, make_scheduler
from refimpl.scheduling.base import JOINT_TOKENS
from refimpl.selfcheck.cases import Case, oracle_outputs, run_case
from refimpl.selfcheck.strategies import cases
from tests.outputs import tokens

PROMPTS = [[7, 1 + i, 2, 9, 4, 4, 1][: 1 + 2 * i % 7] * (1 + i) for i in range(6)]
SCHEDULERS = ("fifo", "static", "grouped", "continuous")
METHODS = [f"{layout}+{scheduler}" for layout in UNMOVED_LAYOUTS for scheduler in SCHEDULERS]


def joined(result):
    """Rows that were members of the round of a chunk of their own."""
    return sum(index in {row.sequence for row in record.rows} for record in result.rounds for index, _ in record.chunks)


@given(cases(), st.sampled_from(UNMOVED_LAYOUTS))
def test_no_token_changes(case: Case, layout):
    case = replace(case, layout=layout, joint_prefill=True)
    assert run_case(case, checks="device").outputs == oracle_outputs(case)


@given(cases(sampled=True), st.sampled_from(UNMOVED_LAYOUTS))
def test_no_sampled_token_changes(case: Case, layout):
    case = replace(case, layout=layout, joint_prefill=True)
    assert run_case(case, checks="device").outputs == oracle_outputs(case)


@pytest.mark.parametrize("method", METHODS)
def test_packed_prompts_beside_drafts_give_the_tokens_of_prompts_alone(llama, method, rules):
    settings = {"batch_size": 4, "max_new_tokens": 8, "checks": "oracle", **rules}
    found = generate(llama, PROMPTS, method=method, joint_prefill=True, **settings)
    assert tokens(found) == tokens(generate(llama, PROMPTS, method="inplace", **settings))
    assert joined(found)


@pytest.mark.parametrize("method", METHODS)
def test_a_round_is_one_pass_of_the_target(llama, monkeypatch, method):
    """Without it, rounds that rows join make another for their prompts, or rows join a round later."""
    passes = Counter()
    for name in ("forward", "forward_packed"):
        original = getattr(llama.target, name)

        def counting(*arguments, original=original):
            passes["target"] += 1
            return original(*arguments)

        monkeypatch.setattr(llama.target, name, counting)
    counts = []
    for joint in (True, False):
        passes.clear()
        found = generate(llama, PROMPTS, method=method, joint_prefill=joint, batch_size=2, max_new_tokens=9)
        counts.append((passes["target"], len(found.rounds)))
    assert counts[0][0] == counts[0][1]
    assert counts[1][0] > counts[0][0]


@pytest.mark.parametrize(
    "drafting", [{"drafter": "ngram"}, {"drafter": "hybrid"}, {"drafter": "head"}, {"num_speculative_tokens": 0}]
)
@pytest.mark.parametrize("method", ["inplace", "paged+continuous"])
def test_whatever_proposes(llama, method, drafting):
    settings = {"batch_size": 4, "max_new_tokens": 12, "checks": "oracle", **drafting}
    found = generate(llama, PROMPTS, method=method, joint_prefill=True, **settings)
    assert tokens(found) == tokens(generate(llama, PROMPTS, method="autoregressive", max_new_tokens=12))
    assert joined(found)


def test_a_row_of_a_budget_joins_a_round_earlier(llama):
    settings = {"batch_size": 3, "max_new_tokens": 12, "stop_token_ids": [], "token_budget": 60}
    joint, apart = (
        generate(llama, PROMPTS, method="paged+continuous", joint_prefill=joint, **settings) for joint in (True, False)
    )
    assert tokens(joint) == tokens(apart)
    assert len(joint.rounds) < len(apart.rounds)
    assert (joined(joint) > 0, joined(apart)) == (True, 0)


def test_rows_that_are_preempted_join_again(llama, rules):
    settings = {"batch_size": 4, "max_new_tokens": 12, **rules}
    wanted = tokens(generate(llama, PROMPTS, method="inplace", **settings))
    memory = {"block_size": 2, "kv_memory_gib": pool_gib(llama, 27, 2)}
    for method in ("paged", "paged+grouped", "paged+continuous"):
        found = generate(llama, PROMPTS, method=method, joint_prefill=True, checks="device", **settings, **memory)
        assert tokens(found) == wanted
        assert found.stats.num_preemptions > 0
        assert joined(found) > len(PROMPTS) - 2, "prompts of one token have nothing to cache"


def test_prompts_that_begin_alike_share_what_was_cached_before(llama):
    common = [5, 6, 7, 8, 9, 10, 11, 12]
    asked = [Request([*common, i], max_new_tokens=3 + i, stop_token_ids=()) for i in range(6)]
    for method in ("paged", "paged+continuous"):
        settings = {"block_size": 4, "batch_size": 2, "checks": "device"}
        found = generate(llama, asked, method=method, joint_prefill=True, **settings)
        assert tokens(found) == tokens(generate(llama, asked, method="inplace"))
        assert found.stats.num_prefix_hits >= 8


def test_a_prompt_can_be_shared_whose_row_ended_in_the_round_that_cached_it(llama):
    """Its blocks are given back in that round, and can be found from then on."""
    prompt = list(range(3, 20))
    asked = [Request(prompt, max_new_tokens=1, stop_token_ids=()) for _ in range(2)]
    for sharing in ({}, {"method": "paged+continuous"}):
        settings = {"method": "paged", "block_size": 4, "batch_size": 1} | sharing
        assert generate(llama, asked, joint_prefill=True, **settings).stats.num_prefix_hits == 16


def test_of_a_long_prompt_the_last_tokens_share_the_pass(tiny):
    """The rest is cached before the round, in steps, as all of it is without."""
    prompt = [(7 * i) % 200 + 5 for i in range(JOINT_TOKENS + 90)]
    settings = {"max_new_tokens": 4, "checks": "host"}
    found = generate(tiny, [prompt, [5, 6]], joint_prefill=True, **settings)
    assert found.rounds[0].chunks == ((0, JOINT_TOKENS), (1, 1))
    assert tokens(found) == tokens(generate(tiny, [prompt, [5, 6]], **settings))


def test_models_that_pack_nothing_cache_prompts_before_the_drafts():
    pair = table_pair()
    assert pair.target.forward_packed is None
    found = generate(pair, PROMPTS, max_new_tokens=6, joint_prefill=True, checks="device")
    assert tokens(found) == tokens(generate(pair, PROMPTS, max_new_tokens=6, method="autoregressive"))


@pytest.mark.parametrize(
    ("token_budget", "members", "chunks"), [(8, [1], [6, 1]), (9, [0], [6]), (10, [0], [6, 1]), (11, [0, 1], [6, 1])]
)
def test_a_row_joins_if_all_that_it_feeds_fits(token_budget, members, chunks):
    """Six tokens of a prompt, and two drafts behind the last; then another row, of two tokens, that drafts nothing."""
    some = [Sequence(0, [1] * 7, 8, 2), Sequence(1, [1, 2], 8, 0)]
    scheduler = ContinuousScheduler(2, token_budget, joint_prefill=True)
    scheduler.submit(some)
    scheduler.admit()
    plan, _ = scheduler.choose()
    assert [sequence.index for sequence in plan.members] == members
    assert [chunk.count for chunk in plan.chunks] == chunks


@pytest.mark.parametrize(("name", "apart"), [("static", 0), ("fifo", 0), ("grouped", 0), ("continuous", math.inf)])
def test_what_of_a_prompt_is_left_to_rounds(name, apart):
    config = make_config(method=f"inplace+{name}")
    assert make_scheduler(replace(config, joint_prefill=True)).left_to_rounds == max(apart, JOINT_TOKENS)
    assert make_scheduler(config).left_to_rounds == apart


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "masked"},
            "joint_prefill needs rows that are read where their prompts are written: masked gathers",
        ),
        ({"method": "eqspec"}, "choose inplace or paged"),
        ({"shape_stable": True}, "joint_prefill packs prompts into passes, which shape_stable does not let"),
        ({"cuda_graphs": True}, "joint_prefill packs prompts into passes, which cuda_graphs does not let"),
        ({"execution": "overlapped"}, "choose execution 'serial', not 'overlapped'"),
    ],
)
def test_settings_that_cannot_have_it(llama, settings, message):
    with pytest.raises(InputError, match=message):
        generate(llama, [[1]], **{"joint_prefill": True} | settings)


def test_all_methods_are_those_that_can_have_it(llama):
    report = verify(llama, [[1, 2, 3], [4]], batch_sizes=[2], max_new_tokens=4, joint_prefill=True)
    assert {each.method for each in report.results} == set(METHODS)
