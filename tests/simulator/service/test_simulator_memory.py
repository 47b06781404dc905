"""The simulator's reckoning of K/V is the engine's."""

import pytest

from refimpl import InputError, generate
from simulator.engine_runs.parity import replay_scenario
from simulator.runner import simulate
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario
from simulator.settings.traces import read_engine_trace

PROMPTS = [[5 + (7 * i + j) % 50 for j in range(3 + 6 * i)] for i in range(7)]


@pytest.mark.parametrize("method", ["eqspec", "exspec", "rollback", "masked+fifo", "inplace", "inplace+grouped"])
def test_what_a_run_allocates_is_predicted(llama, tmp_path, method):
    settings = {"method": method, "batch_size": 3, "window_size": 5, "num_speculative_tokens": 3, "max_new_tokens": 8}
    result = generate(llama, PROMPTS, **settings)
    result.write_trace(tmp_path / "run.ndjson")
    bytes_per_token = llama.target.kv_shape.bytes_per_token + llama.draft.kv_shape.bytes_per_token
    cost = Spec.of("linear", verify_base_s=1.0, kv_bytes_per_token=bytes_per_token)
    predicted = simulate(replay_scenario(read_engine_trace(tmp_path / "run.ndjson"), cost), 1)["kv_allocated_bytes"]
    if method.startswith("inplace"):
        assert predicted == result.stats.kv_bytes
    with pytest.raises(InputError, match=f"K/V of {predicted / bytes_per_token:.0f} tokens"):
        generate(llama, PROMPTS, **settings, kv_memory_gib=1e-9)


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_blocks_of_any_size_are_predicted(llama, tmp_path, block_size):
    result = generate(llama, PROMPTS, method="paged", batch_size=3, max_new_tokens=8, block_size=block_size)
    result.write_trace(tmp_path / "run.ndjson")
    bytes_per_token = llama.target.kv_shape.bytes_per_token + llama.draft.kv_shape.bytes_per_token
    cost = Spec.of("linear", verify_base_s=1.0, kv_bytes_per_token=bytes_per_token)
    predicted = simulate(replay_scenario(read_engine_trace(tmp_path / "run.ndjson"), cost), 1)["kv_allocated_bytes"]
    assert predicted == result.stats.kv_bytes


def test_a_replica_has_room_for_its_own_requests():
    """Blocks for all of them at once and one for scratch, on the replica that needs most."""
    shared = Scenario(
        study={"num_requests": 9},
        service={"replicas": 2},
        workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 4, "high_tokens": 60}},
        engine={"layout": "paged", "scheduler": "fifo", "batch_size": 9, "max_new_tokens": 20},
        cost={"kind": "linear", "verify_base_s": 1.0, "kv_bytes_per_token": 1.0},
    )
    found = simulate(shared, 1)
    requests = found.frame("requests")
    blocks = -(-(requests["prompt_tokens"] + shared.engine.max_new_tokens) // 16)
    of_replicas = blocks.groupby(requests["replica"]).sum()
    assert len(of_replicas) == 2
    assert found["kv_allocated_bytes"] == 16 * (of_replicas.max() + 1)
