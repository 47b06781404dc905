"""From a run of the engine to its trace, and from the trace to the replay."""

import json
import math

import pytest

from refimpl import Request, generate
from refimpl.core.errors import InputError
from refimpl.decoding.memory import pool_gib
from simulator.engine_runs.parity import check_parity, count_same_blocks, replay_scenario
from simulator.service.metrics import measure
from simulator.service.simulation import simulate_once
from simulator.settings.traces import read_engine_trace

BUDGETS = (3, 17, 1, 9, 24, 5, 12)


def requests(**wishes):
    """Prompts of 2 to 14 tokens, each with a budget of its own."""
    prompts = [[(5 * i + 3 * j) % 50 + 5 for j in range(2 + 2 * i)] for i in range(len(BUDGETS))]
    return [Request(p, max_new_tokens=n, **wishes) for p, n in zip(prompts, BUDGETS, strict=True)]


def traced(pair, path, asked, **settings):
    result = generate(pair, asked, batch_size=3, num_speculative_tokens=3, max_new_tokens=8, **settings)
    result.write_trace(path)
    return result


METHODS = [
    "eqspec", "exspec", "rollback", "masked+fifo", "inplace", "inplace+grouped", "paged", "masked+continuous",
    "rollback+continuous",
]  # fmt: skip


@pytest.mark.parametrize("stops", [{}, {"stop_token_ids": []}], ids=["stop tokens", "to the budget"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_different_budgets_is_replayed_without_a_difference(llama, tmp_path, method, stops):
    path = tmp_path / "run.ndjson"
    result = traced(llama, path, requests(), method=method, window_size=5, temperature=0.5, **stops)
    trace = read_engine_trace(path)
    assert tuple(trace.header["max_new_tokens_each"]) == BUDGETS
    assert trace.output_lens == [len(sequence.token_ids) for sequence in result.sequences]
    parity = check_parity(path)
    assert parity.exact, parity.first_difference


def test_the_header_holds_what_the_replay_needs_and_how_was_sampled(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    traced(llama, path, requests(), method="masked", compaction_threshold=0.07, temperature=0.5, top_p=0.9, seed=11)
    header = json.loads(path.read_text().splitlines()[0])
    assert header["max_new_tokens_each"] == list(BUDGETS)
    assert header["num_speculative_tokens_each"] == [3] * len(BUDGETS)
    assert [header[name] for name in ("temperature", "top_p", "top_k", "seed")] == [0.5, 0.9, 0, 11]
    assert replay_scenario(read_engine_trace(path)).engine.compaction_threshold == 0.07


def test_a_run_whose_rows_never_age_is_read_back_from_plain_json(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    traced(llama, path, requests(), method="exspec", aging_bound=math.inf)
    json.loads(path.read_text().splitlines()[0], parse_constant=pytest.fail)
    assert replay_scenario(read_engine_trace(path)).engine.aging_bound == math.inf
    assert check_parity(path).exact


def test_drafts_that_all_requests_agree_on_are_replayed(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    traced(llama, path, requests(num_speculative_tokens=2), method="eqspec")
    assert replay_scenario(read_engine_trace(path)).engine.num_speculative_tokens == 2
    assert check_parity(path).exact


def test_drafts_that_requests_differ_in_are_refused(llama, tmp_path):
    path, (first, *others) = tmp_path / "run.ndjson", requests()
    traced(llama, path, [Request(first.prompt, num_speculative_tokens=1), *others], method="eqspec")
    with pytest.raises(InputError, match=r"run\.ndjson:1: requests draft 1, 3 tokens a round; a scenario has one k"):
        check_parity(path)


@pytest.mark.parametrize("method", ["paged", "paged+static", "paged+grouped"])
def test_blocks_and_preemptions_are_replayed_without_a_difference(llama, tmp_path, method):
    path = tmp_path / "run.ndjson"
    settings = {"block_size": 2, "kv_memory_gib": pool_gib(llama, 18, 2), "stop_token_ids": []}
    result = traced(llama, path, requests(), method=method, **settings)
    assert (result.stats.num_blocks, result.stats.num_preemptions > 0) == (18, True)
    parity = check_parity(path)
    assert parity.exact, parity
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(line.replace('"num_blocks": 1', '"num_blocks": 2') for line in lines)]) + "\n")
    assert not check_parity(path).exact


@pytest.mark.parametrize("blocks", [18, 39])
@pytest.mark.parametrize("method", ["paged", "paged+grouped", "paged+continuous"])
def test_shared_blocks_are_replayed_without_a_difference(llama, tmp_path, method, blocks):
    """Prompts and samples that begin alike, in a pool that preempts and in one that does not."""
    path = tmp_path / "run.ndjson"
    settings = {"block_size": 2, "kv_memory_gib": pool_gib(llama, blocks, 2), "stop_token_ids": []}
    common = [5, 6, 7, 8, 9, 10]
    asked = [Request([*common[: 6 - i], *range(i)], max_new_tokens=6 + 2 * i) for i in range(4)]
    result = traced(llama, path, [*asked, Request(common, n=3, max_new_tokens=9)], method=method, **settings)
    assert (result.stats.num_prefix_hits > 0, result.stats.num_preemptions > 0) == (True, blocks == 18)
    assert check_parity(path).exact, check_parity(path)
    simulation = simulate_once(replay_scenario(read_engine_trace(path)))
    assert simulation.log.num_prefix_hits == result.stats.num_prefix_hits
    assert measure(simulation)["cache_hit_rate"] == simulation.log.num_prefix_hits / simulation.log.num_to_cache
    assert not compare_blocks_without_sharing(path)


def compare_blocks_without_sharing(path):
    trace = read_engine_trace(path)
    alone = simulate_once(replay_scenario(trace).but({"engine.prefix_sharing": False}))
    return count_same_blocks(trace, alone.log.round_frame()) == len(trace.rounds)


def test_a_trace_without_texts_has_none_in_common(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    traced(llama, path, requests(), method="inplace")
    common = {"workload.common": {"kind": "trace", "path": str(path)}}
    with pytest.raises(InputError, match="does not say which sequences begin with the same tokens"):
        simulate_once(replay_scenario(read_engine_trace(path)).but(common))


@pytest.mark.parametrize("texts", [[], [[1]] * 7, [["a"]] * 7, 3])
def test_texts_that_are_no_numbers_of_blocks_are_refused(llama, tmp_path, texts):
    path = tmp_path / "run.ndjson"
    traced(llama, path, requests(), method="paged", block_size=2)
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(header) | {"texts": texts}), *lines]) + "\n")
    with pytest.raises(InputError, match=":1: texts"):
        read_engine_trace(path)


@pytest.mark.parametrize("token_budget", [4, 9, 40, None])
@pytest.mark.parametrize("blocks", [18, None])
def test_chunks_beside_decoding_rows_are_replayed_without_a_difference(llama, tmp_path, token_budget, blocks):
    path = tmp_path / "run.ndjson"
    memory = {} if blocks is None else {"kv_memory_gib": pool_gib(llama, blocks, 2)}
    settings = {"method": "paged+continuous", "block_size": 2, "token_budget": token_budget, "stop_token_ids": []}
    result = traced(llama, path, requests(), **settings, **memory)
    assert (result.stats.num_preemptions > 0) == (blocks is not None and token_budget != 4)
    parity = check_parity(path)
    assert parity.exact, parity
    assert (parity.rounds, parity.chunks) == (len(result.rounds), sum(len(r.chunks) for r in result.rounds))
    assert any(record.rows and record.chunks for record in result.rounds)
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(line.replace('"chunk": ', '"chunk": 1') for line in lines)]) + "\n")
    assert not check_parity(path).exact


@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("blocks", [18, None])
@pytest.mark.parametrize("scheduler", ["fifo", "static", "grouped", "continuous"])
def test_prompts_cached_beside_drafts_are_replayed_without_a_difference(llama, tmp_path, scheduler, blocks, drafter):
    path = tmp_path / "run.ndjson"
    memory = {} if blocks is None else {"kv_memory_gib": pool_gib(llama, blocks, 2, drafts=drafter == "model")}
    settings = {"method": f"paged+{scheduler}", "block_size": 2, "stop_token_ids": [], "drafter": drafter}
    result = traced(llama, path, requests(), joint_prefill=True, **settings, **memory)
    assert (result.stats.num_preemptions > 0) == (blocks is not None)
    scenario = replay_scenario(read_engine_trace(path))
    assert scenario.engine.joint_prefill
    parity = check_parity(path)
    assert parity.exact, parity
    assert parity.chunks == sum(len(r.chunks) for r in result.rounds) > len(BUDGETS) - 1
    apart = simulate_once(scenario.but({"engine.joint_prefill": False}), keep_rows=True).log
    assert len(apart.chunks) == 0 or len(apart.round_frame()) > parity.rounds


@pytest.mark.parametrize("name", ["prompt_lens", "max_new_tokens_each", "num_speculative_tokens_each"])
def test_a_list_that_lacks_a_sequence_is_refused(llama, tmp_path, name):
    path = tmp_path / "run.ndjson"
    traced(llama, path, requests(), method="inplace")
    header, *lines = path.read_text().splitlines()
    short = json.loads(header) | {name: [4]}
    path.write_text("\n".join([json.dumps(short), *lines]) + "\n")
    with pytest.raises(InputError, match=f":1: {name} must contain 7 numbers, one per sequence"):
        read_engine_trace(path)
