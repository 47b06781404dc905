"""Decoder layers under `torch.compile`: the same tokens, few graphs for all layers, and none for the oracle."""

import pickle
from contextlib import ExitStack

import pytest
import torch
import transformers
from torch._dynamo import eval_frame
from torch._dynamo.utils import counters

from refimpl import InputError, generate, load_pair, verify
from refimpl.bench.engines import hf_generate
from refimpl.bench.run import make_bench
from refimpl.bench.settings import BenchSettings
from refimpl.models.adapter import HuggingFaceLM
from refimpl.models.compiled import compile_layers, is_compiled, uncompiled
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_models, random_pair

PROMPTS = [[1, 5, 9], [2, 4], [3, 3, 8, 1, 7], [6]]
RUNS = {
    "inplace": {"batch_size": 1},
    "paged+continuous": {"batch_size": 3, "token_budget": 20},
    "eqspec": {"batch_size": 3},
}


@pytest.fixture(autouse=True)
def only_traced(monkeypatch):
    """Graphs run as they were traced: no compiler is needed, and no time for it."""
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **settings: compiled(self, backend="eager", **settings)
    )
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(pair):
    """A pair with both of its models compiled."""
    for lm in pair.models():
        compile_layers(lm.model)
    return pair


def tokens(pair, **settings):
    settings = {"max_new_tokens": 8, "num_speculative_tokens": 3, **settings}
    return [s.token_ids for s in generate(pair, PROMPTS, **settings).sequences]


def test_layers_are_compiled_and_nothing_else(saved, monkeypatch):
    found = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **settings: found.append((self, settings)))
    model = transformers.LlamaForCausalLM.from_pretrained(saved / "target")
    compile_layers(model)
    assert found == [(layer, {"dynamic": True}) for layer in model.model.layers]


def test_all_layers_share_their_graphs_and_the_oracle_has_none():
    """Else a model of forty layers would take forty times as long to compile, and pass the limit of graphs."""
    graphs = {}
    for layers in (2, 6):
        torch._dynamo.reset()
        counters.clear()
        class_name, arguments = TINY_ARCHITECTURES["llama"]
        config = getattr(transformers, class_name)(vocab_size=61, **arguments | {"num_hidden_layers": layers})
        models = random_models(config, seed=0, dtype=torch.float64, draft_noise=0.02)
        pair = compiled(make_pair(*models, stop_token_ids=()))
        expected = tokens(pair, method="autoregressive")
        pair.target.fresh_kv([1, 2, 3])
        HuggingFaceLM(pair.target.model)
        hf_generate(make_bench(pair, BenchSettings((2,), ("inplace",), 3, 4)), [[1, 2], [3, 4]], 2)
        assert not counters["frames"], (
            "nor has what checks recompute, what is tried on loading, or what a benchmark compares with"
        )
        assert tokens(pair, method="inplace", batch_size=4, cuda_graphs=True, checks="host") == expected
        graphs[layers] = counters["stats"]["unique_graphs"]
    assert 0 < graphs[6] <= 1.5 * graphs[2], "which is thrice with graphs of their own"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_compiled_layers_give_the_tokens_of_the_oracle(kind):
    pair = compiled(random_pair(kind))
    expected = tokens(pair, method="autoregressive")
    for method, settings in RUNS.items():
        assert tokens(pair, method=method, **settings) == expected
    assert counters["stats"]["unique_graphs"] > 0


def test_every_shape_of_a_pass_stays_compiled():
    """Passes of one row, of some and of many, of one token and of more: none is beyond the limit of graphs."""
    pair = load_pair("tiny", compile_modules=True)
    for batch_size in (1, 3):
        generate(pair, ["def area(", "import os", "x = "], method="inplace", batch_size=batch_size, max_new_tokens=8)
    frames = counters["frames"]
    assert frames["ok"] == frames["total"] > 8


def test_the_compiler_comes_back_with_the_last_thread_that_needs_it_off():
    """The first thread inside leaves before the second: each would put back what it has found."""
    with ExitStack() as first, ExitStack() as second:
        for each in (first, second):
            each.enter_context(uncompiled())
        first.close()
        assert eval_frame._stance.stance == "force_eager"
    assert eval_frame._stance.stance == "default"


def test_a_model_whose_layers_are_not_known_is_refused():
    with pytest.raises(InputError, match="compile_modules: Linear has no decoder layers that can be told"):
        compile_layers(torch.nn.Linear(2, 2))


def test_compiled_models_are_not_judged_in_processes_that_would_run_them_uncompiled():
    """Copies of a model are not compiled; one process runs the model itself."""
    pair = random_pair("llama")
    assert verify(pair, PROMPTS[:1], methods=["inplace"], batch_sizes=[1, 2], jobs=2, max_new_tokens=2).exact
    compiled(pair)
    assert not any(is_compiled(copy) for copy in pickle.loads(pickle.dumps([lm.model for lm in pair.models()])))
    with pytest.raises(InputError, match="jobs must be 1 for compiled models, not 2"):
        verify(pair, PROMPTS[:1], methods=["inplace"], batch_sizes=[1, 2], jobs=2, max_new_tokens=2)
    assert verify(pair, PROMPTS[:1], methods=["inplace"], batch_sizes=[1], max_new_tokens=2).exact
