"""Prepacked weights: the products of the layers as they were loaded, which transformers' own generation still runs."""

import json
import pickle
import sys

import pytest
import torch
from torch import nn

from refimpl import InputError, generate, load_pair
from refimpl.bench import BenchSettings, engines
from refimpl.bench.engines import hf_generate, run_method
from refimpl.bench.run import make_bench
from refimpl.cli import main
from refimpl.models.adapter import HuggingFaceLM
from refimpl.models.norms import WholeNorm
from refimpl.models.prepacked import LEAST_MULTIPLICATIONS, PrepackedForward, prepack
from refimpl.models.stand_ins import as_loaded

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
PROMPTS = ["def area(", "import os\n", "x = [", "class Box:\n    def __init__(self"]


@pytest.fixture(scope="module")
def prepacked():
    return load_pair("tiny", prepack_weights=True)


def stand_ins(model: nn.Module, kind: type = PrepackedForward) -> list[nn.Module]:
    return [layer for layer in model.modules() if "forward" in vars(layer) and isinstance(vars(layer)["forward"], kind)]


ALL = 24 * 7 + 1  # layers of the bundled target: four of attention and three of the MLP, 24 times, and the head
NORMS = 24 * 4 + 1  # two in each attention and two around it, and the last


def test_all_linear_layers_are_prepacked(prepacked):
    assert isinstance(prepacked.target, HuggingFaceLM)
    assert len(stand_ins(prepacked.target.model)) == ALL


def test_norms_are_one_call(prepacked):
    assert len(stand_ins(prepacked.target.model, WholeNorm)) == NORMS


def test_a_model_without_such_norms_is_prepacked():
    model = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256))
    prepack(model)
    assert len(stand_ins(model)) == 1


def test_layers_are_called_without_a_detour_and_listed_as_before(prepacked, tiny):
    """Only the LM head, to whose input a draft head listens, is called as a module."""
    model = prepacked.target.model
    attention, plain = (pair.target.model.model.layers[3].self_attn for pair in (prepacked, tiny))
    layers = dict(attention.named_children())
    assert isinstance(attention.q_proj, PrepackedForward)
    assert isinstance(attention.q_norm, WholeNorm)
    assert attention.q_proj.linear is layers["q_proj"]
    assert attention.q_proj.weight is layers["q_proj"].weight
    assert isinstance(model.lm_head, nn.Linear)
    assert model.state_dict().keys() == tiny.target.model.state_dict().keys()
    with as_loaded(model):
        assert attention.q_proj is layers["q_proj"]
        assert vars(attention).keys() == vars(plain).keys()
    assert isinstance(attention.q_proj, PrepackedForward)
    assert not hasattr(attention.q_proj, "no_such_thing")


@pytest.mark.parametrize("threads", [1, 2])
def test_small_products_are_those_of_pytorch(threads, monkeypatch):
    """The least number of multiplications is that of each thread, so that a call is worth its costs."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = nn.Sequential(nn.Linear(256, 256, bias=False))
    prepack(model)
    (layer,) = stand_ins(model)
    fed, product = [], PrepackedForward.product
    monkeypatch.setattr(
        PrepackedForward, "product", lambda self, entries: (fed.append(len(entries)), product(self, entries))[1]
    )
    for tokens in range(1, 40):
        layer(torch.zeros(tokens, 256))
    assert fed == [tokens for tokens in range(1, 40) if tokens * 256 * 256 >= LEAST_MULTIPLICATIONS * threads]
    assert 0 < len(fed) < 39


@pytest.mark.parametrize("shape", [(1,), (3,), (9,), (2, 1), (2, 5), (7, 5), (0, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_layer(shape, bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 300, bias=bias))
    entries = torch.randn(*shape, 256)
    with torch.inference_mode():
        plain = model(entries)
        prepack(model)
        found = model(entries)
    assert found.shape == plain.shape
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    if plain.numel() * 256 < LEAST_MULTIPLICATIONS:
        assert torch.equal(found, plain)


@pytest.mark.parametrize("method", ["inplace", "paged+continuous", "masked", "exspec"])
def test_tokens_are_the_same(prepacked, tiny, method):
    settings = {"method": method, "batch_size": 3, "max_new_tokens": 24, "checks": "device"}
    found, expected = (generate(pair, PROMPTS, **settings) for pair in (prepacked, tiny))
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in expected.sequences]


def test_prepacking_twice_changes_nothing():
    model = nn.Sequential(nn.Linear(256, 256))
    prepack(model)
    (layer,) = stand_ins(model)
    forward = vars(layer)["forward"]
    prepack(model)
    assert vars(layer)["forward"] is forward


def doubled_in_place(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def replaced(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def loaded(layer: nn.Linear) -> None:
    layer.load_state_dict({"weight": torch.randn_like(layer.weight)})


@pytest.mark.parametrize("change", [doubled_in_place, replaced, loaded])
def test_weights_that_change_are_read_anew(change):
    layer, entries = nn.Linear(1024, 1024, bias=False), torch.randn(64, 1024)
    prepack(nn.Sequential(layer))
    layer(entries)
    change(layer)
    expected = nn.functional.linear(entries, layer.weight)
    assert torch.allclose(layer(entries), expected, rtol=1e-4, atol=1e-4)


def test_a_layer_of_zeros_is_prepacked():
    model = nn.Sequential(nn.Linear(256, 256, bias=False))
    nn.init.zeros_(model[0].weight)
    prepack(model)
    assert len(stand_ins(model)) == 1
    assert not model(torch.randn(64, 256)).any()


def test_weights_made_in_inference_mode_are_prepacked():
    with torch.inference_mode():
        layer, entries = nn.Linear(1024, 1024, bias=False), torch.randn(64, 1024)
        prepack(nn.Sequential(layer))
        assert torch.allclose(layer(entries), nn.functional.linear(entries, layer.weight), rtol=1e-4, atol=1e-4)


def test_another_process_prepacks_again():
    model = nn.Sequential(nn.Linear(256, 256))
    prepack(model)
    assert pickle.loads(pickle.dumps(vars(model[0])["forward"]))._read is None, "its weights may lie where ours do"
    copy, entries = pickle.loads(pickle.dumps(model)), torch.randn(64, 256)
    (layer,) = stand_ins(copy)
    forward = vars(layer)["forward"]
    assert forward.linear is layer
    with torch.inference_mode():
        assert torch.equal(copy(entries), model(entries))
    assert forward._weight is not None


def test_generation_of_transformers_runs_as_shipped(prepacked, monkeypatch):
    """The baseline of the benchmark multiplies as PyTorch does, our engine before and after it does not."""
    bench = make_bench(prepacked, BenchSettings(max_new_tokens=4, repeats=1))
    during = []
    generates = type(bench.target.model).generate
    monkeypatch.setattr(
        type(bench.target.model),
        "generate",
        lambda self, *args, **more: (during.append(len(stand_ins(self, object))), generates(self, *args, **more))[1],
    )
    prompts = [[5, 6, 7], [8, 9]]
    ours = run_method(bench, prompts, "inplace", 2)
    assert hf_generate(bench, prompts, 2).outputs == ours.outputs
    assert during == [0]
    assert len(stand_ins(bench.target.model)) == ALL
    assert len(stand_ins(bench.draft.model)) > 0
    with pytest.raises(ZeroDivisionError), engines.as_shipped(bench):
        1 / 0  # noqa: B018
    assert len(stand_ins(bench.target.model)) == ALL


def test_weights_come_back_in_their_places(prepacked):
    model = prepacked.target.model
    before = stand_ins(model)
    with as_loaded(model):
        assert not stand_ins(model, object)
    assert stand_ins(model) == before
    assert len(stand_ins(model, WholeNorm)) == NORMS


class TestRefused:
    @pytest.mark.parametrize("number_format", ["float64", "bfloat16"])
    def test_other_numbers(self, number_format):
        with pytest.raises(InputError, match=f"prepack_weights needs float32 on a CPU, not {number_format} on cpu"):
            load_pair("tiny", dtype=number_format, prepack_weights=True)

    def test_beside_compiled_modules(self):
        with pytest.raises(InputError, match="compile_modules and prepack_weights exclude each other"):
            load_pair("tiny", compile_modules=True, prepack_weights=True)

    def test_products_that_are_wrong(self, monkeypatch):
        """As where the order of the weights is that of another processor."""
        product = PrepackedForward.product
        monkeypatch.setattr(PrepackedForward, "product", lambda self, entries: product(self, entries) * 1.001)
        with pytest.raises(InputError, match=r"oneDNN's products differ from PyTorch's by 0\.001"):
            prepack(nn.Sequential(nn.Linear(256, 256)))

    def test_products_that_there_are_not(self, monkeypatch):
        def fails(*_):
            raise RuntimeError("no such operator\nand a long text")

        monkeypatch.setattr(PrepackedForward, "product", fails)
        model = nn.Sequential(nn.Linear(256, 256))
        with pytest.raises(InputError, match=r"needs oneDNN, which fails here: no such operator$"):
            prepack(model)
        assert not stand_ins(model)

    def test_no_layer_is_prepacked_where_a_later_one_fails(self, monkeypatch):
        model, product = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 128)), PrepackedForward.product
        factor = {256: 1.0, 128: 1.001}
        monkeypatch.setattr(
            PrepackedForward, "product", lambda self, entries: product(self, entries) * factor[self.out_features]
        )
        with pytest.raises(InputError, match="oneDNN's products differ"):
            prepack(model)
        assert not stand_ins(model)

    def test_by_the_command(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["refimpl", "generate", "--prompt", "x", "--prepack", "--dtype", "float64"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "prepack_weights needs float32 on a CPU" in capsys.readouterr().err


def test_the_command_prepacks(capsys, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["refimpl", "generate", "--prompt", "def f(", "--max-new-tokens", "3", "--prepack"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) == 3


@pytest.mark.parametrize("method", ["inplace", "paged", "paged+grouped", "inplace+static"])
def test_bits_are_those_of_one_row_at_a_time(prepacked, method):
    settings = {"batch_size": 3, "max_new_tokens": 12, "shape_stable": True, "logprobs": 0}
    alone = generate(prepacked, PROMPTS, method="autoregressive", **settings).sequences
    found = generate(prepacked, PROMPTS, method=method, **settings).sequences
    assert [s.token_ids for s in found] == [s.token_ids for s in alone]
    assert [s.logprobs for s in found] == [s.logprobs for s in alone]
