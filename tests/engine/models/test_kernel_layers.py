"""Kernels between the products: the numbers of transformers' layers, in Triton's interpreter; and code for an H200.

The interpreter is chosen by TRITON_INTERPRET when a kernel is defined, so these tests run in a process of their own,
which the first test starts.
"""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from refimpl import InputError, generate, load_pair, verify
from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.layouts import make_layout
from refimpl.layouts.places import PoolRows
from refimpl.models.adapter import HuggingFaceLM
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import random_models
from refimpl.placement import PoolSize
from refimpl.requests import prepare

triton = pytest.importorskip("triton", reason="kernels need Triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

ROOT = Path(__file__).parents[3]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="in the process that the first test starts")
compiled = pytest.mark.skipif(INTERPRETED or "CHECK_SHAPES" in os.environ, reason="kernels are compiled as they are")
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
PROMPTS = [[1, 5, 9], [2, 4] * 13, [3]]


@pytest.fixture
def pair_of(monkeypatch):
    """Makes pairs on kernels, on a CPU."""
    if INTERPRETED:
        from tests.engine.models.interpreted_triton import mend

        mend(monkeypatch)
    monkeypatch.setattr("refimpl.models.layers.KERNEL_DEVICE", "cpu")

    def make(kind="Qwen3", dtype=torch.float32, layers="kernels", tried=False, **changes):
        config = getattr(transformers, f"{kind}Config")(**SMALL | {"sliding_window": None} | changes)
        models = random_models(config, seed=0, dtype=dtype, draft_noise=0.02)
        for model in models:  # weights of norms are ones until now, biases zeros
            torch.manual_seed(1)
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.data.add_(0.2 * torch.randn_like(parameter))
        if not tried:
            monkeypatch.setattr("refimpl.models.adapter.largest_error", lambda *_, **__: 0.0)
        return make_pair(*models[: 1 + (not tried)], stop_token_ids=(), layers=layers)

    return make


@pytest.mark.skipif(INTERPRETED, reason="runs these tests")
def test_in_the_interpreter():
    environment = {name: value for name, value in os.environ.items() if name != "CHECK_SHAPES"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=environment | {"TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@interpreted
@pytest.mark.parametrize(
    ("kind", "dtype", "span"),
    [
        ("Llama", torch.bfloat16, 16),
        ("Qwen2", torch.float16, 2048),
        ("Qwen3", torch.float32, 16),
        ("Qwen3", torch.bfloat16, 2048),
    ],
)
def test_numbers_are_those_of_transformers(kind, dtype, span, pair_of, monkeypatch):
    """In the trial at load, whose rows have 18 positions: two spans, or one."""
    from refimpl.models import kernel_layers

    monkeypatch.setattr(kernel_layers, "SPAN", span)
    monkeypatch.setattr(kernel_layers, "BLOCK", 16)
    target = pair_of(kind, dtype, tried=True).target
    assert target.layers.name == "kernels"
    assert target.maskless_queries == 64


SETTINGS = {"max_new_tokens": 8, "num_speculative_tokens": 3, "batch_size": 2, "checks": "host", "stop_token_ids": ()}


@interpreted
@pytest.mark.parametrize("settings", [{"method": "inplace", "cuda_graphs": True}, {"method": "paged"}], ids=str)
def test_tokens_are_those_of_the_oracle(settings, pair_of):
    """Rows come and go, so some are idle; contexts outgrow a block, and a page."""
    pair = pair_of(num_hidden_layers=1)
    expected = generate(pair, PROMPTS, **SETTINGS | {"method": "autoregressive"})
    found = generate(pair, PROMPTS, **SETTINGS | settings)
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in expected.sequences]
    assert found.environment["layers"] == "kernels: equal bits"  # as the trial is left out


@interpreted
def test_bits_are_those_of_one_row_at_a_time(pair_of):
    settings = SETTINGS | {"max_new_tokens": 4, "batch_sizes": [2], "bitwise": True}
    del settings["batch_size"]
    assert verify(pair_of(num_hidden_layers=1), PROMPTS[:2], methods=["inplace", "paged"], **settings).exact


@interpreted
@pytest.mark.parametrize(("layers", "one"), [("lean", False), ("kernels", True)])
def test_one_recording_serves_all_widths(layers, one, pair_of):
    config = make_config(method="inplace", cuda_graphs=True, **SETTINGS)
    pair = pair_of(num_hidden_layers=1, layers=layers)
    engine = Engine(pair, prepare(pair, [[5] * 26], config), config)
    list(engine.rounds())
    widths = [width for width, _ in engine.context.passes._recordings]
    assert (widths == [0]) == one
    assert (len(widths) > 1) == (not one)


def logits(lm, columns, *, idle=(), q=3):
    """Logits of three rows from position 13 on, and their pool up to there."""
    layout = make_layout("inplace", lm.kv_shape, PoolSize(3, columns, 3), max_positions=128, tagged=False)
    layout.pool.data[:, :, :, :, :13] = torch.randn(13, lm.kv_shape.key_dim, generator=torch.Generator().manual_seed(0))
    position = torch.arange(13, 13 + q).repeat(3, 1)
    position[list(idle)] = -(1 << 40)
    places = PoolRows(layout.pool, torch.arange(3), slice(0, 3))
    block = layout.slot_block(places, torch.arange(3 * q).view(3, q), position, 32)
    with torch.inference_mode():
        return lm.forward(block, q), layout.pool.data[..., :16, :]


@interpreted
def test_rows_depend_neither_on_each_other_nor_on_the_pool(pair_of, monkeypatch):
    monkeypatch.setattr("refimpl.models.kernel_layers.SPAN", 64)
    lm = pair_of().target
    expected, entries = logits(lm, 64)
    for found, pool in (logits(lm, 256), logits(lm, 64, idle=[1])):
        assert torch.equal(found[[0, 2]], expected[[0, 2]])
        assert torch.equal(pool[:, :, :, [0, 2]], entries[:, :, :, [0, 2]])
    assert (pool[:, :, :, 1, 13:] == 0).all()


@interpreted
@pytest.mark.parametrize(
    ("kind", "changes", "need"),
    [
        ("Llama", {"dtype": torch.float64}, "numbers of 16 or 32 bits"),
        ("Llama", {"head_dim": 16}, "heads of 32, 64, 128, 256 numbers"),
        ("Phi3", {"partial_rotary_factor": 0.5, "hidden_size": 128}, "RoPE of fixed frequencies over whole heads"),
        ("Mistral", {"sliding_window": 64}, "layers without sliding windows"),
        ("Gemma", {}, "layers of the kind of Llama's, with SiLU"),
        ("Olmo2", {"hidden_size": 128}, "layers of the kind of Llama's, with SiLU"),
        ("Granite", {"residual_multiplier": 0.5, "hidden_size": 128}, "layers of the kind of Llama's, with SiLU"),
    ],
)
def test_what_the_kernels_do_not_know_is_refused(kind, changes, need, pair_of):
    with pytest.raises(InputError, match=f"^layers cannot be kernels: kernels need {need}$"):
        pair_of(kind, **changes)


@interpreted
def test_a_wrong_kernel_is_not_used(pair_of, monkeypatch):
    monkeypatch.setattr("refimpl.models.kernel_layers._silu_mul", lambda gate_up: gate_up.chunk(2, dim=1)[1].clone())
    with pytest.raises(InputError, match=r"^layers cannot be kernels: its numbers are off by"):
        pair_of(tried=True)


@compiled
def test_kernels_need_a_gpu():
    with pytest.raises(InputError, match=r"^layers cannot be kernels: kernels need a CUDA device$"):
        load_pair("tiny", layers="kernels")


def built(kernel, given, named):
    """Code of a kernel for an H200, called like this."""
    options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
    values = inspect.signature(kernel.fn).bind(*given, **named).arguments
    constant = {each.name: values[each.name] for each in kernel.params if each.is_constexpr}
    kinds = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", int: "i32", float: "fp32"}
    signature = {
        name: "constexpr" if name in constant else kinds[getattr(value, "dtype", type(value))]
        for name, value in values.items()
    }
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = ASTSource(kernel, signature, constant, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm


@compiled
@pytest.mark.parametrize("q", [1, 6])
def test_kernels_compile_for_an_h200(q, monkeypatch, tmp_path):
    """Without memory of a thread's own; and keys are fetched behind the barrier that follows their writes."""
    from refimpl.models import kernel_layers

    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    launches = importlib.import_module("launches")
    config = transformers.Qwen3Config(**SMALL | {"head_dim": 128, "num_attention_heads": 8, "num_hidden_layers": 1})
    model, _ = random_models(config, seed=0, dtype=torch.bfloat16, draft_noise=0.0)
    lm, calls = HuggingFaceLM(model, layers="lean"), {}
    lm.run_layers = kernel_layers.KernelLayers(model)
    for name in ("add_rms", "silu_mul", "attend", "join_spans"):
        kernel = getattr(kernel_layers, name)

        def note(*given, kernel=kernel, **named):
            calls[kernel] = given, named

        monkeypatch.setattr(kernel_layers, name, launches.Kernel(note))
    monkeypatch.setattr(kernel_layers, "SPAN", 64)
    logits(lm, 256, q=q)
    assert len(calls) == 4
    for kernel, (given, named) in calls.items():
        code = built(kernel, given, named)
        (tmp_path / "cubin").write_bytes(code["cubin"])
        tool = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", tmp_path / "cubin"]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        assert "STACK:0 " in usage
        assert "LOCAL:0 " in usage
        if kernel.fn.__name__ == "attend":
            before = code["ptx"].partition("cp.async")[0]
            assert 0 < before.rindex("st.global") < before.rindex("bar.sync")
