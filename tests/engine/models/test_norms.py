"""Norms in a call or two: the bits of the norms as they were loaded, and no other norm than those."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from refimpl import InputError, generate, load_pair
from refimpl.cli import main
from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.models import norms
from refimpl.models.norms import ROUNDINGS, WholeNorm, fuse_norms
from refimpl.models.stand_ins import as_loaded
from refimpl.requests import prepare

PROMPTS = ["def area(", "import os\n", "x = [", "class Box:\n    def __init__(self"]
NORMS = 24 * 4 + 1  # of the bundled target: two in each attention and two around it, and the last


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def pairs(request):
    """As loaded, and with fused norms."""
    return load_pair("tiny", dtype=request.param), load_pair("tiny", dtype=request.param, fuse_norms=True)


def fused(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(vars(module).get("forward"), WholeNorm)]


def test_every_norm_gives_the_same_bits(pairs):
    assert [len(fused(pair.target.model)) for pair in pairs] == [0, NORMS]
    plain, whole = (
        [pair.target.model.model.layers[3].post_attention_layernorm, pair.target.model.model.layers[3].self_attn.q_norm]
        for pair in pairs
    )
    for norm, one in zip(plain, whole, strict=True):
        for shape in ((1, 1), (8, 6), (1, 300)):
            entries = (5 * torch.randn(*shape, *norm.weight.shape)).to(norm.weight.dtype)
            assert torch.equal(one(entries), norm(entries))


@pytest.mark.parametrize("method", ["inplace", "paged+continuous"])
def test_tokens_and_log_probabilities_are_the_same(pairs, method):
    """To the last bit, on a CPU."""
    settings = {"method": method, "batch_size": 3, "max_new_tokens": 12, "checks": "device", "logprobs": 1}
    expected, found = (generate(pair, PROMPTS, **settings).sequences for pair in pairs)
    assert [s.token_ids for s in found] == [s.token_ids for s in expected]
    assert [s.logprobs for s in found] == [s.logprobs for s in expected]


def layer_of(pair):
    """A layer of the bundled target; what it holds is looked up anew each time."""
    return pair.target.model.model.layers[3]


def test_numbers_of_16_bits_are_rounded_before_the_weight():
    """As transformers does it; one call for both would round once."""
    pair, entries = load_pair("tiny", dtype="bfloat16", fuse_norms=True), torch.randn(40, 192).bfloat16()
    norm = layer_of(pair).post_attention_layernorm
    once = torch.rms_norm(entries, (192,), norm.weight, norm.eps)
    assert not torch.equal(norm(entries), once)
    with as_loaded(pair.target.model):
        assert not torch.equal(layer_of(pair).post_attention_layernorm(entries), once)


def test_a_norm_is_two_calls_where_it_was_eight():
    """In 32 bits one. What PyTorch makes of a call is its own affair: on a GPU it is one kernel."""
    entries = torch.randn(2, 3, 192)

    def calls(pair):
        norm, mine = layer_of(pair).input_layernorm, entries.to(pair.dtype)
        with torch.profiler.profile() as profile, torch.inference_mode():
            norm(mine)
        top = [event.name for event in profile.events() if event.cpu_parent is None]
        return [name for name in top if name.startswith("aten::")]

    half, whole = (load_pair("tiny", dtype=dtype, fuse_norms=True) for dtype in ("bfloat16", "float32"))
    assert calls(half) == ["aten::rms_norm", "aten::mul"]
    assert calls(whole) == ["aten::rms_norm"]
    with as_loaded(half.target.model):
        assert len(calls(half)) == 8


LOOKS = {"view", "transpose", "permute", "slice", "unsqueeze", "expand", "unflatten", "select", "alias"}
AT_TIMES = {"to", "reshape", "flatten", "contiguous"}  # they copy, or look
COPIES = {"aten::_to_copy", "aten::clone", "aten::copy_"}


def operations(pair) -> int:
    """Those of a layer in a verify pass that compute or copy."""
    config = make_config(method="inplace", batch_size=4, max_new_tokens=16, stop_token_ids=())
    engine = Engine(pair, prepare(pair, [[5, 6, 7]] * 4, config), config)
    next(engine.rounds())
    layer, recorded = layer_of(pair), []
    forward = layer.forward

    def profiled(*args, **more):
        with torch.profiler.profile() as profile:
            out = forward(*args, **more)
        recorded.append(profile)
        return out

    layer.forward = profiled
    next(engine.rounds())
    del layer.forward
    top = [event for event in recorded[-1].events() if event.cpu_parent is None and event.name.startswith("aten::")]
    names = [(event.name.removeprefix("aten::"), {child.name for child in event.cpu_children}) for event in top]
    return sum(bool(COPIES & within) if name in AT_TIMES else name not in LOOKS for name, within in names)


def test_operations_of_a_layer():
    """The numbers of docs/engine.md and docs/results.md."""
    plain, fused_ = (load_pair("tiny", dtype="bfloat16", fuse_norms=fuse) for fuse in (False, True))
    found = operations(plain), operations(fused_)
    assert found == (58, 34)
    engine, results = ((Path(__file__).parents[3] / "docs" / name).read_text() for name in ("engine.md", "results.md"))
    assert "of its 58 operations in 16 bit" in engine
    assert "that leaves 34." in engine
    assert "leaves 34 of the 58 operations of a layer" in results


class PlusOne(nn.Module):
    """A norm of Gemma's kind: its weight is what is added to 1."""

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.zeros(8)), 1e-6

    def forward(self, entries):
        return nn.functional.rms_norm(entries, (8,), 1 + self.weight, self.variance_epsilon)


class Plain(PlusOne):
    """A norm that can be fused."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(1 + torch.rand(8))

    def forward(self, entries):
        return self.weight * nn.functional.rms_norm(entries, (8,), None, self.variance_epsilon)


class Widened(Plain):
    """A norm whose output is in 32 bits, whatever is fed."""

    def forward(self, entries):
        return super().forward(entries).float()


class RoundedOnce(Plain):
    """A norm whose product by the weight is one of 32 bits."""

    def forward(self, entries):
        return nn.functional.rms_norm(entries, (8,), self.weight, self.variance_epsilon)


BESIDE_A_LAYER = nn.Sequential(nn.Linear(8, 8).bfloat16(), Plain())


@pytest.mark.parametrize(
    "other", [PlusOne(), nn.LayerNorm(8), Widened().bfloat16(), RoundedOnce().bfloat16(), BESIDE_A_LAYER]
)
def test_norms_of_another_kind_stay_as_they_are(other):
    """The last one's weight is not in the model's number format, so that its output would not be in it, either."""
    model = nn.Sequential(other)
    with pytest.raises(InputError, match="fuse_norms: Sequential has no norm that one call of PyTorch's own agrees"):
        fuse_norms(model)
    assert not fused(model)


def test_norms_in_float64_stay_as_they_are():
    """Those of transformers are computed in 32 bits even then."""
    with pytest.raises(InputError, match="fuse_norms: Qwen3ForCausalLM has no norm"):
        load_pair("tiny", dtype="float64", fuse_norms=True)


def test_one_norm_is_enough():
    model = nn.Sequential(PlusOne(), Plain())
    fuse_norms(model)
    assert fused(model) == [model[1]]
    fuse_norms(model)
    assert fused(model) == [model[1]]


@pytest.mark.parametrize(("dtype", "within", "beyond"), [(torch.bfloat16, 1, 3), (torch.float32, 6, 12)])
def test_what_rounding_explains_elsewhere_than_on_a_cpu(dtype, within, beyond):
    expected = torch.randn(1000).to(dtype)
    step = torch.finfo(dtype).eps * expected.abs().double()
    near, far = ((expected.double() + count * step).to(dtype) for count in (within, beyond))
    allowed = ROUNDINGS[8 * dtype.itemsize]
    assert norms._agree(near, expected, allowed)
    assert not norms._agree(near, expected, 0)
    assert not norms._agree(far, expected, allowed)
    assert not norms._agree(expected.double(), expected, allowed)
    assert norms._agree(expected, expected, 0)


def test_another_process_has_fused_norms():
    model = load_pair("tiny", fuse_norms=True).target.model
    copy = pickle.loads(pickle.dumps(model))
    assert len(fused(copy)) == NORMS
    norm = copy.model.layers[0].self_attn.q_norm
    assert isinstance(norm, WholeNorm)
    assert norm.weight is dict(copy.model.layers[0].self_attn.named_children())["q_norm"].weight


@pytest.mark.parametrize("other", ["compile_modules", "prepack_weights"])
def test_one_way_to_be_faster_is_enough(other):
    with pytest.raises(InputError, match=f"{other} and fuse_norms exclude each other"):
        load_pair("tiny", fuse_norms=True, **{other: True})


def test_the_command_fuses(capsys, monkeypatch):
    arguments = ["refimpl", "generate", "--prompt", "def f(", "--max-new-tokens", "3", "--fuse-norms"]
    for more, code, out, err in (([], None, '"token_ids"', ""), (["--dtype", "float64"], 2, "", "fuse_norms: Qwen3")):
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or None, out in printed.out, err in printed.err) == (code, True, True)


def test_a_weight_that_takes_the_place_of_another_is_read():
    plain, fused_pair = load_pair("tiny"), load_pair("tiny", fuse_norms=True)
    others = {name: 1.5 * t if "norm" in name else t for name, t in plain.target.model.state_dict().items()}
    tokens, logits = torch.tensor([[5, 6, 7, 8]]), []
    for pair in (plain, fused_pair):
        pair.target.model.load_state_dict(others, assign=True)
        with torch.inference_mode():
            logits.append(pair.target.model(tokens).logits)
    assert torch.equal(*logits)
