"""A hybrid's states: the bytes that are charged are those that the engine holds, and passes read and write them."""

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, Qwen3NextConfig

from refimpl import make_pair
from refimpl.core.errors import InputError
from refimpl.decoding.engine import Engine
from refimpl.layouts.states import PassStates
from refimpl.pairs.random_pairs import random_models
from simulator.engine_runs.parity import check_parity
from simulator.service.admission import room_bytes, state_bytes
from simulator.service.cost import Fed
from simulator.service.roofline import RooflineCost
from simulator.service.scenario_cost import make_cost
from simulator.service.simulation import simulate_once
from simulator.service.streams import Streams
from simulator.settings.fields import Spec
from simulator.settings.hardware import load_architecture
from simulator.settings.scenario import Scenario
from simulator.studies.crossing import find_crossings
from tests.traced_runs import BUDGETS, traced

HEADS, KEY, VALUE, WINDOW = (2, 4), 8, 16, 4  # of keys and values; numbers of a head; tokens of the convolution
TARGET = Qwen3NextConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, linear_num_key_heads=HEADS[0], linear_num_value_heads=HEADS[1],
    linear_key_head_dim=KEY, linear_value_head_dim=VALUE, linear_conv_kernel_dim=WINDOW, num_experts=4,
    num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
)  # fmt: skip
FACTS = {
    "name": "small", "source": "this file", "tied_embeddings": False, "layers": 4, "hidden": 32, "heads": 4,
    "kv_heads": 2, "head_dim": 16, "intermediate": 48, "vocabulary": 64, "key_norms": True,
    "experts": {"count": 4, "active": 2, "intermediate": 16, "shared": 1},
    "recurrent": {
        "layers": 3, "weights": 32 * (4 * 8 + 8 * 16 + 8) + 64 * 32,
        "state_bytes": 4 * 8 * 16 * 4 + (2 * 2 * 8 + 4 * 16) * WINDOW * 2,
    },
}  # fmt: skip
LARGE = {"device": "h200", "target": "qwen3-next-80b-a3b", "tensor_parallel": 2}


@pytest.fixture(scope="module")
def hybrid():
    """In 16 bit, as the simulator stores K/V."""
    draft = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    made = [random_models(each, seed=0, dtype=torch.bfloat16, draft_noise=0.0)[0] for each in (TARGET, draft)]
    return make_pair(*made, stop_token_ids=())


def facts(folder, **changes):
    """A file of the small architecture's."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(FACTS | changes))
    return str(path)


def roofline(target, **more):
    return RooflineCost(Spec.of("roofline", **{"device": "h200", "target": target} | more), None)


@pytest.mark.parametrize(("method", "rows"), [("inplace+grouped", 5), ("paged", 3), ("masked+fifo", 3)])
def test_what_is_charged_is_what_the_engine_holds(hybrid, tmp_path, monkeypatch, method, rows):
    """K/V of a token, weights, and the states of all rows and of a round."""
    copies, engines, commit, init = [], [], PassStates.commit, Engine.__init__

    def noted(self, counts):
        copies.append(sum(each.nbytes for behind in self._behind.values() for each in behind))
        commit(self, counts)

    def kept(self, *given, **named):
        init(self, *given, **named)
        engines.append(self)

    monkeypatch.setattr(PassStates, "commit", noted)
    monkeypatch.setattr(Engine, "__init__", kept)
    traced(hybrid, tmp_path / "run.ndjson", method=method, drafter="ngram")
    settings = {"window_size": 5, "batch_size": 3, "num_speculative_tokens": 3, "method": method}
    engine = Scenario().but({f"engine.{name}": value for name, value in settings.items()}).engine
    cost = roofline(facts(tmp_path))
    assert engines[0].state_bytes + max(copies) == state_bytes(engine, cost)
    assert engines[0].state_bytes == rows * cost.state_bytes_per_row > 0
    assert cost.kv_bytes_per_token == hybrid.target.kv_shape.bytes_per_token
    assert cost.target.model.weights == pytest.approx(
        sum(p.numel() for p in hybrid.target.model.parameters()), rel=0.15
    )


def test_rows_share_nothing_and_are_replayed(hybrid, tmp_path):
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12]] * len(BUDGETS)
    result = traced(hybrid, tmp_path / "run.ndjson", prompts, method="paged", block_size=2, max_new_tokens=6)
    assert result.stats.num_prefix_hits == 0
    assert check_parity(tmp_path / "run.ndjson").exact


def scenario(**changes):
    alike = {"engine.layout": "paged", "engine.num_blocks": 400, "workload.common": Spec.of("system_prompt", tokens=32)}
    linear = {"kind": "linear", "verify_base_s": 0.02, "draft_base_s": 0.002, "kv_bytes_per_token": 10.0}
    return Scenario().but(alike | {"cost": linear} | changes)


@pytest.mark.parametrize("size", [0.0, 5.0])
def test_a_simulated_hybrid_shares_nothing_either(size):
    log = simulate_once(scenario(**{"cost.state_bytes_per_row": size})).log
    assert (log.num_prefix_hits.total() > 0) == (size == 0)


def test_a_recurrent_draft_is_refused(tmp_path):
    with pytest.raises(InputError, match="has recurrent layers; only a target's are simulated"):
        roofline("qwen3-8b", draft=facts(tmp_path))


def test_states_leave_less_room_for_keys_and_values():
    """To a pool, and to requests that wait for it; where nothing is left, the scenario is refused."""
    held = 8 + 4 * (3 + 2)  # of 8 rows, and of 4 behind and before each of 4 tokens
    sized = {"engine.batch_size": 4, "engine.window_size": 8, "engine.num_speculative_tokens": 3}
    sized |= {"engine.num_blocks": None, "engine.scheduler": "grouped", "service.kv_capacity_bytes": 3e4}
    for size in (0.0, 100.0):
        given = scenario(**sized, **{"cost.state_bytes_per_row": size})
        cost = make_cost(given, Streams(0, 0))
        assert room_bytes(given, cost) == 3e4 - held * size
        replica = simulate_once(given).fleet.replicas[0]
        assert replica.scheduler.allocator.num_blocks == (3e4 - held * size) // (10 * given.engine.block_size)
    with pytest.raises(InputError, match=r"^recurrent states of 8 rows take 3.08e\+04 bytes, and there is"):
        simulate_once(scenario(**sized, **{"cost.state_bytes_per_row": 1100.0}))
    with pytest.raises(InputError, match=r"num_blocks 1048576 take .* bytes beside .* of states, the device has room"):
        simulate_once(
            scenario(
                **{
                    "cost": {"kind": "roofline"} | LARGE,
                    "engine.num_speculative_tokens": 0,
                    "engine.num_blocks": 1 << 20,
                }
            )
        )


def test_as_many_rows_are_tried_as_have_room_for_their_states():
    """In the study of where drafts stop to pay, of up to 8 drafts: 11 states a row."""
    cost = {name: value for name, value in LARGE.items() if name != "device"} | {"draft": "qwen3-0.6b"}
    found, model = find_crossings(cost, ["h200"], draws=1, layers=("kernels",)), roofline(**LARGE, draft="qwen3-0.6b")
    for crossing in found:
        row_bytes = model.kv_bytes_per_token * (crossing.context_tokens + 9) + model.state_bytes_per_row * 11
        assert crossing.fits == model.kv_capacity_bytes // row_bytes


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_passes_read_states_and_write_those_behind_tokens_that_are_verified(tmp_path, tensor_parallel):
    size = 1e8
    with_states, without = (
        roofline(facts(tmp_path, recurrent=FACTS["recurrent"] | {"state_bytes": each}), tensor_parallel=tensor_parallel)
        for each in (size, 1.0)
    )
    bandwidth = with_states.machine.bandwidth * tensor_parallel

    def more_s(component, rows, tokens):
        widths = np.array([64])
        return np.diff([each.seconds(component, rows, tokens, widths, False)[0] for each in (without, with_states)])[0]

    def read_and_written(rows):
        return pytest.approx(rows * 3 * (size - 1) / bandwidth, rel=1e-6)

    assert more_s("verify", 8, 4) == read_and_written(8 * (1 + 4))
    assert more_s("prefill", 8, 100) == read_and_written(8 * 2)
    beside = [each.beside(Fed(8, 4, 64), [Fed(1, 100, 0)])[1] for each in (without, with_states)]
    assert np.diff(beside)[0] == read_and_written(2)


def test_a_published_hybrid_is_that_of_its_configuration():
    """By the configuration class of transformers, whose defaults are those of the checkpoint."""
    model, config = load_architecture("qwen3-next-80b-a3b"), Qwen3NextConfig()
    keys, values = (
        getattr(config, f"linear_num_{kind}_heads") * getattr(config, f"linear_{kind}_head_dim")
        for kind in ("key", "value")
    )
    assert model.recurrent.layers == config.layer_types.count("linear_attention")
    window = (2 * keys + values) * config.linear_conv_kernel_dim
    assert model.recurrent.state_bytes == 4 * values * config.linear_key_head_dim + 2 * window
    assert model.attention_layers == 12
    attention = 2 * config.num_key_value_heads * config.head_dim
    assert model.kv_bytes_per_token == 2 * attention * model.attention_layers
    facts = {
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "vocabulary": "vocab_size",
        "layers": "num_hidden_layers",
    }
    assert all(getattr(model, ours) == getattr(config, theirs) for ours, theirs in facts.items())
    experts = {"count": "num_experts", "active": "num_experts_per_tok", "intermediate": "moe_intermediate_size"}
    assert all(getattr(model.experts, ours) == getattr(config, theirs) for ours, theirs in experts.items())
