"""Lean layers: the numbers of transformers' own, for every family, format and layout, and a trial that says so."""

import copy
import importlib.util
import json
import os
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from refimpl import InputError, generate, load_pair, verify
from refimpl.layouts import make_layout
from refimpl.layouts.places import PoolRows
from refimpl.models import lean, lean_trial
from refimpl.models.adapter import HuggingFaceLM
from refimpl.models.lean import FAMILIES, LeanLayers
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import random_head, random_models
from refimpl.placement import PoolSize

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS = {
    "LlamaForCausalLM": [
        SMALL,
        SMALL | {"attention_bias": True},
        SMALL | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, "head_dim": 16},
    ],
    "MistralForCausalLM": [SMALL | {"sliding_window": None}],
    "Qwen2ForCausalLM": [SMALL],
    "Qwen3ForCausalLM": [SMALL | {"head_dim": 16, "tie_word_embeddings": True}],
    "Phi3ForCausalLM": [SMALL, SMALL | {"head_dim": 16, "partial_rotary_factor": 0.5}],
    "SmolLM3ForCausalLM": [SMALL | {"no_rope_layers": [1, 0]}],
    "GraniteForCausalLM": [
        SMALL
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0, "attention_multiplier": 0.2}
    ],
    "Olmo2ForCausalLM": [SMALL, SMALL | {"num_key_value_heads": 4}],
    "GemmaForCausalLM": [SMALL | {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}],
}
CASES = [(name, i) for name, configs in CONFIGS.items() for i in range(len(configs))]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
PROMPTS = [[1, 5, 9], [2, 4], [3, 3, 8, 1, 7], [6], [9, 9, 9, 9, 1, 9, 9]]
METHODS = ("rollback", "masked", "eqspec", "exspec", "inplace", "paged+continuous")


def config_of(name, i=0):
    return getattr(transformers, name.replace("ForCausalLM", "Config"))(**CONFIGS[name][i])


def pair_of(name, i=0, dtype=torch.float64, layers="lean", **more):
    target, draft = random_models(config_of(name, i), seed=i, dtype=dtype, draft_noise=0.02)
    for model in (target, draft):  # weights of norms and biases are ones and zeros until now
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
    return make_pair(target, draft, stop_token_ids=(), layers=layers, **more)


def tokens(pair, **settings):
    settings = {"max_new_tokens": 12, "num_speculative_tokens": 3, "batch_size": 3, "checks": "oracle", **settings}
    return [s.token_ids for s in generate(pair, PROMPTS, **settings).sequences]


def test_every_family_is_tried():
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "i"), CASES)
def test_numbers_are_those_of_transformers_but_for_the_order_of_additions(name, i, dtype):
    """In 16 bits all roundings are those of transformers: on a CPU the bits are equal."""
    for lm in pair_of(name, i, dtype).models():
        assert lm.layers.name == "lean"
        assert lm.forward_packed is not None
        if dtype.itemsize == 2:
            assert lm.layers.about == "equal bits"


@pytest.mark.parametrize(("name", "i"), CASES)
def test_every_family_is_exact_in_every_layout(name, i):
    """The oracle runs transformers' own layers."""
    pair = pair_of(name, i)
    report = verify(pair, PROMPTS, methods=METHODS, batch_sizes=[3], max_new_tokens=12, num_speculative_tokens=3)
    assert report.exact, report


@cache
def headed(name):
    """A pair with a head, and what it generates."""
    pair = pair_of(name)
    return replace(pair, head=random_head(pair.target.model.lm_head, 0)), tokens(pair, method="autoregressive")


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "hybrid", "head"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_drafter_reads_lean_layers(name, drafter):
    pair, expected = headed(name)
    checks = "oracle" if name == "Qwen3ForCausalLM" else "device"  # norms in float32 move the seventh digit of K/V
    assert tokens(pair, method="inplace", drafter=drafter, checks=checks) == expected
    assert tokens(pair, method="paged+continuous", drafter=drafter, checks=checks) == expected


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}], ids=["greedy", "sampled"])
def test_the_bundled_pair_gives_the_same_tokens(sampling):
    prompts = ["def f(x):", "import os\n", "class A:\n    def"]
    settings = {"max_new_tokens": 24, "batch_size": 2, **sampling}
    pairs = {layers: load_pair("tiny", layers=layers) for layers in ("transformers", "lean", "packed")}
    for method in METHODS:
        runs = {layers: generate(pair, prompts, method=method, **settings) for layers, pair in pairs.items()}
        assert [run.environment["layers"].partition(":")[0] for run in runs.values()] == [*runs]
        assert len({str([s.token_ids for s in run.sequences]) for run in runs.values()}) == 1


@pytest.mark.parametrize("layers", ["lean", "packed"])
def test_bits_are_those_of_one_row_at_a_time(layers):
    pair = load_pair("tiny", layers=layers)
    report = verify(
        pair, ["def f(x):", "import os\n", "x"], methods=["inplace", "paged"], bitwise=True, max_new_tokens=12
    )
    assert report.exact, report


def test_weights_are_slices_and_not_copies():
    model, _ = random_models(config_of("LlamaForCausalLM"), seed=0, dtype=torch.float32, draft_noise=0.0)
    before, plain = copy.deepcopy(model.state_dict()), model(torch.tensor([PROMPTS[2]])).logits
    layers = LeanLayers(model)
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(storages.values()) == sum(tensor.nbytes for tensor in before.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(torch.tensor([PROMPTS[2]])).logits, plain)
    again = LeanLayers(model)  # a model that is its own draft is joined once
    assert again.layers[0].qkv.weight.data_ptr() == layers.layers[0].qkv.weight.data_ptr()
    model.model.layers[0].self_attn.k_proj.weight.data.fill_(7)
    assert (layers.layers[0].qkv.weight[32:48] == 7).all()


def test_other_processes_make_the_layers_again():
    pair = load_pair("tiny", layers="packed")
    there = pickle.loads(pickle.dumps(pair))
    assert there.target.layers.run.copied_bytes == pair.target.layers.run.copied_bytes > 0
    assert tokens(there, method="inplace") == tokens(pair, method="inplace")


def wrongly(monkeypatch, name):
    """Plant an error in lean layers."""
    right = {each: getattr(lean.Layer, each) for each in ("attend_to", "finish")}
    planted = {
        "halves of a head change places": (
            "attend_to",
            lambda self, x, delta, cos, sin, **more: right["attend_to"](self, x, delta, cos, -sin, **more),
        ),
        "the residual is lost": ("finish", lambda self, x, attended: right["finish"](self, 0 * x, attended)),
        "numbers are not finite": ("finish", lambda self, x, attended: (x / 0, attended.flatten(2))),
    }
    monkeypatch.setattr(lean.Layer, *planted[name])


@pytest.mark.parametrize("name", ["halves of a head change places", "the residual is lost", "numbers are not finite"])
def test_wrong_layers_are_not_used(name, monkeypatch):
    wrongly(monkeypatch, name)
    auto = pair_of("LlamaForCausalLM", dtype=torch.float32, layers="auto")
    assert auto.target.layers.describe().startswith("transformers: its numbers are off by ")
    with pytest.raises(InputError, match="layers cannot be lean: its numbers are off by"):
        pair_of("LlamaForCausalLM", dtype=torch.float32)


def test_what_fails_is_not_used_and_the_next_best_is(monkeypatch):
    """A compiler that is missing, or oneDNN's operator; asked for by name, it is one line."""

    def broken(*_, **__):
        raise RuntimeError("no\ncompiler")

    monkeypatch.setattr(lean.Linear, "pack", broken)
    monkeypatch.setattr(torch, "compile", broken)
    pair = pair_of("LlamaForCausalLM", dtype=torch.float32, layers="auto")
    assert {lm.layers.name for lm in pair.models()} == {"lean"}
    for name, reason in (("packed", "oneDNN fails here: no"), ("compiled", "no compiler")):
        with pytest.raises(InputError, match=f"^layers cannot be {name}: {reason}$"):
            pair_of("LlamaForCausalLM", dtype=torch.float32, layers=name)


def test_a_family_with_wrong_roundings_is_told_in_16_bits(monkeypatch):
    monkeypatch.setitem(lean.FAMILIES, "LlamaForCausalLM", lean.Family(rounds_first=False))
    lm = pair_of("LlamaForCausalLM", dtype=torch.bfloat16).target
    assert lm.layers.about != "equal bits"


@pytest.mark.parametrize("packed", [True, False])
def test_the_trial_sees_every_pass(packed, monkeypatch):
    """An error in any one pass, of one token in one row, is seen."""
    lm = pair_of("Qwen3ForCausalLM", dtype=torch.float32).target

    def error_with(index):
        count = iter(range(len(lean_trial.COUNTS)))

        def run(block, num_logits):
            logits = lm.run_layers(lm._prepared(block) if hasattr(block, "rectangle") else block, num_logits).clone()
            if next(count) == index:
                logits[-1, -1] *= 1.01
            return logits

        def right(block, num_logits):
            return lm.run_layers(lm._prepared(block) if hasattr(block, "rectangle") else block, num_logits)

        return lean_trial.largest_error(lm.kv_shape, lm.vocab_size, run, right, packed=packed, paged=False)

    assert error_with(None) == 0
    for index in range(len(lean_trial.COUNTS)):
        assert error_with(index) > lean_trial.allowed_error(torch.float32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda model: model.model.layers[1].mlp.register_forward_hook(lambda *_: None),
            "model.layers.1.mlp has hooks",
        ),
        (
            lambda model: torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj),
            "model.layers.0.mlp.up_proj is no plain linear layer",
        ),
    ],
    ids=["hooks", "parametrized"],
)
def test_layers_that_compute_more_are_left_alone(change, reason):
    model, _ = random_models(config_of("LlamaForCausalLM"), seed=0, dtype=torch.float32, draft_noise=0.0)
    change(model)
    assert reason in HuggingFaceLM(model).layers.about


def test_what_is_chosen_and_why():
    for dtype, expected in (
        (torch.float64, "transformers: in float64"),
        (torch.float32, "packed: "),
        (torch.bfloat16, "lean: "),
    ):
        assert pair_of("LlamaForCausalLM", dtype=dtype, layers="auto").target.layers.describe().startswith(expected)
    with pytest.raises(InputError, match="layers cannot be packed: packed weights need float32 on a CPU"):
        pair_of("LlamaForCausalLM", layers="packed")
    with pytest.raises(
        InputError, match="layers must be one of auto, transformers, lean, packed, compiled, kernels, not 'fast'"
    ):
        load_pair("tiny", layers="fast")


def test_another_class_runs_on_its_own_modules():
    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    models = random_models(config, seed=0, dtype=torch.float32, draft_noise=0.02)
    assert (
        make_pair(*models, stop_token_ids=())
        .target.layers.describe()
        .startswith("transformers: GPT2LMHeadModel is none of")
    )
    with pytest.raises(InputError, match="layers cannot be lean: GPT2LMHeadModel is none of LlamaForCausalLM, "):
        make_pair(*models, stop_token_ids=(), layers="lean")


@pytest.fixture
def only_traced(monkeypatch):
    """Graphs run as they were traced: no compiler is needed, and no time for it."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled(function, backend="eager", dynamic=True))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.skipif("CHECK_SHAPES" in os.environ, reason="checks of shapes cannot be traced")
def test_all_layers_share_their_graphs(only_traced):
    """Else a model of forty layers would take forty times as long to compile, and pass the limit of graphs.

    Every draft is accepted, so that rounds have the same shapes in both models.
    """
    graphs = {}
    for num_layers in (2, 5):
        torch._dynamo.reset()
        counters.clear()
        config = config_of("Qwen3ForCausalLM")
        config.num_hidden_layers, config.layer_types = num_layers, ["full_attention"] * num_layers
        models = random_models(config, seed=0, dtype=torch.float32, draft_noise=0.0)
        pair = make_pair(*models, stop_token_ids=(), layers="compiled")
        expected = tokens(pair, method="autoregressive")
        for method in ("inplace", "paged+continuous", "eqspec"):
            assert tokens(pair, method=method) == expected
        graphs[num_layers] = counters["stats"]["unique_graphs"]
        assert not counters["graph_break"]
    assert graphs[2] == graphs[5] > 0


class Allocations(TorchDispatchMode):
    """Bytes of the largest tensor that an operator makes."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given, made = (
            [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)] for tree in ((args, kwargs), result)
        )
        known = {t.untyped_storage().data_ptr() for t in given}
        sizes = [t.untyped_storage().nbytes() for t in made if t.untyped_storage().data_ptr() not in known]
        self.most = max([self.most, *sizes])
        return result


@pytest.mark.parametrize("layers", ["transformers", "lean"])
def test_a_pass_does_not_copy_the_pool(layers):
    """Compiled layers write to it outside of their graphs, in these very lines."""
    lm = pair_of("Qwen3ForCausalLM", dtype=torch.float32, layers=layers).target
    layout = make_layout("inplace", lm.kv_shape, PoolSize(3, 4096, 3), max_positions=256, tagged=False)
    places = PoolRows(layout.pool, torch.arange(3), slice(0, 3))
    block = layout.slot_block(places, torch.ones(3, 2, dtype=torch.long), torch.tensor([[4, 5]] * 3), 32)
    with torch.inference_mode(), Allocations() as allocations:
        lm.forward(block, 2)
    assert 0 < allocations.most < layout.pool.data[0, 0].nbytes / 16


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_launches_are_those_of_the_page(kind, monkeypatch):
    """Those of compiled layers take long to count: they stay as committed."""
    root = Path(__file__).parents[3]
    monkeypatch.syspath_prepend(str(root / "tools"))
    launches = importlib.import_module("launches")
    committed = next(
        row for row in json.loads((root / "docs/results/launches.json").read_text())["rows"] if row["kind"] == kind
    )
    model, _ = random_models(launches.config_of(kind), seed=0, dtype=torch.bfloat16, draft_noise=0.0)
    counted = {layers: HuggingFaceLM(model, layers=layers) for layers in ("transformers", "lean")}
    if importlib.util.find_spec("triton"):
        counted["kernels"] = launches.with_kernels(HuggingFaceLM(model, layers="lean"))
    for layers, lm in counted.items():
        assert [launches.dispatched(lm, q) for q in committed["queries"]] == committed[layers]
    assert max(committed["kernels"]) <= 8 < min(committed["compiled"])
    assert max(committed["compiled"]) <= 12 < min(committed["lean"])
