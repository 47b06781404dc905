"""Workloads whose requests begin with the same tokens: what they share, and what that saves."""

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.service.metrics import measure
from simulator.service.simulation import simulate_once
from simulator.service.streams import Streams
from simulator.service.workload import RequestSource
from simulator.settings.scenario import Scenario

BASE = Scenario().but({
    "engine.layout": "paged", "engine.num_blocks": 400, "engine.batch_size": 4, "study.num_requests": 12,
    "workload.prompt_tokens.tokens": 64, "workload.output_tokens.tokens": 20, "cost.prefill_s_per_token": 0.001,
    "cost.kv_bytes_per_token": 1.0,
})  # fmt: skip


def run(changes):
    simulation = simulate_once(BASE.but(changes))
    return simulation, measure(simulation)


@pytest.mark.parametrize(
    ("tokens", "prompts", "found"), [(15, 1, 0), (16, 1, 16), (47, 1, 32), (48, 1, 48), (64, 1, 48), (32, 3, 32)]
)
def test_full_blocks_of_a_system_prompt_are_found_by_all_but_the_first_of_each(tokens, prompts, found):
    """Of 64 tokens 63 are cached, so that the last block is never found whole."""
    _, metrics = run({"workload.common": {"kind": "system_prompt", "tokens": tokens, "prompts": prompts}})
    assert metrics["cache_hit_rate"] == (12 - prompts) * found / (12 * 63)


def test_a_turn_finds_the_conversation_before_it():
    """After three turns another conversation begins."""
    common = {"kind": "sessions", "sessions": 4, "turns": 3}
    changes = {"workload.common": common, "engine.max_new_tokens": 15, "study.num_requests": 16}
    simulation, metrics = run(changes)
    lengths = [64] * 4 + [64 + 79] * 4 + [64 + 2 * 79] * 4 + [64] * 4
    assert [request.prompt_len for request in simulation.log.requests] == lengths
    found = [78 // 16 * 16, 157 // 16 * 16]  # all but the last token of an answer is cached
    needed = 63 + 63 + 79 + 63 + 158 + 63
    assert metrics["cache_hit_rate"] == pytest.approx(sum(found) / needed)


@pytest.mark.parametrize("order", [1, -1])
def test_a_long_conversation_is_added_up_once(order, monkeypatch):
    """Whichever turn is asked for first, its own lengths are not looked up again for every later one."""
    common = {"kind": "sessions", "sessions": 2, "turns": 3000}
    source = RequestSource(BASE.but({"workload.common": common}), Streams(0, 0))
    asked, own = [], RequestSource._own
    monkeypatch.setattr(RequestSource, "_own", lambda self, index: asked.append(index) or own(self, index))
    found = [source.lengths(index)[0] for index in range(6000)[::order]][::order]
    each = [own(source, index) for index in range(6000)]
    whole = np.array([prompt + min(output, budget) for prompt, output, budget in each]).reshape(3000, 2)
    before = np.vstack([[0, 0], whole.cumsum(axis=0)[:-1]]).ravel()
    assert found == [prompt + earlier for (prompt, _, _), earlier in zip(each, before, strict=True)]
    assert len(asked) < 3 * 6000


def test_sharing_saves_prefill_and_no_token_where_there_is_something_to_share():
    common = {"workload.common": {"kind": "system_prompt", "tokens": 48}}
    (_, shared), (_, alone) = run(common), run(common | {"engine.prefix_sharing": False})
    assert alone["cache_hit_rate"] == 0
    assert shared["tokens_per_round"] == alone["tokens_per_round"]
    assert shared["prefill_share"] < alone["prefill_share"]
    for equal in (run({})[1], run({"engine.prefix_sharing": False})[1]):
        assert alone == pytest.approx(equal, rel=0, abs=0, nan_ok=True)  # prices are not known


def test_a_pool_that_is_too_small_forgets_what_could_be_found():
    """Conversations that come back find nothing when others have needed the blocks in between."""
    sessions = {"kind": "sessions", "sessions": 6, "turns": 2}
    common = {"workload.common": sessions, "engine.batch_size": 1, "engine.max_new_tokens": 20}
    rates = [run(common | {"engine.num_blocks": n})[1]["cache_hit_rate"] for n in (12, 30, 400)]
    assert rates[0] == 0 < rates[2]
    assert rates == sorted(rates)


TRACE = "validation/cpu/tiny/paged-continuous-b5-k2-t48-0.ndjson.gz"  # of blocks of 16 tokens


def test_texts_of_a_run_are_those_of_its_blocks_and_beyond_them_all_differ():
    common = {"workload.common": {"kind": "trace", "path": TRACE}}
    with pytest.raises(InputError, match=r"is of blocks of 16 tokens, engine\.block_size is 4"):
        run(common | {"engine.block_size": 4})
    _, metrics = run(common | {"workload.prompt_tokens.tokens": 500})
    assert metrics["cache_hit_rate"] < 12 * 64 / (12 * 499)
