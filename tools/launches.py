"""Launches of a decoder layer on a GPU, for each value of `layers`, and of decisions, counted on a machine without one.

``python tools/launches.py docs/results/launches.json`` takes two architectures in bfloat16, eight rows, with one query
a row and with k + 1. Operators of `transformers`, `lean` and `kernels` are counted as PyTorch dispatches them, kernels
where they are called. Those of `compiled` are in the code that Inductor writes for an H200: it is given the properties
of one, and its code is read instead of run. It needs Triton.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from refimpl.core.config import make_config
from refimpl.core.files import write_whole
from refimpl.decoding.acceptance import AcceptanceRule, Proposal, RowNumbers, make_rule
from refimpl.decoding.devices import provenance
from refimpl.decoding.sampling import RowKeys
from refimpl.layouts import make_layout
from refimpl.layouts.places import PoolRows
from refimpl.models.adapter import HuggingFaceLM
from refimpl.models.lean import Layer, LeanLayers
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_models
from refimpl.placement import PoolSize

ROWS, QUERIES, CONTEXT, VOCABULARY = 8, (1, 6), 64, 151_936
RULES = (("greedy", 0.0), ("coupled", 0.8))
KINDS = ("qwen3", "llama")
WHOLE = {"scaled_dot_product_attention", "rms_norm"}  # one kernel on a GPU
FREE = {  # views and memory
    "view", "_unsafe_view", "expand", "slice", "select", "transpose", "permute", "unsqueeze", "squeeze", "t", "alias",
    "detach", "as_strided", "split", "split_with_sizes", "unbind", "_reshape_alias", "empty", "new_empty", "empty_like",
    "empty_strided",
}  # fmt: skip
BESIDE = 3  # launches between the two graphs of a compiled layer: keys, values and attention; with many queries a copy
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150 << 30, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=60 << 20, gcnArchName="", clock_rate=1980000, memory_clock_rate=3201000, memory_bus_width=6144,
)  # fmt: skip
GUARD = r"""
#include <torch/extension.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
static c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
static c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, &guard);
int ready() { return 1; }
"""
LAUNCH = re.compile(
    r"^\s+(?:triton_\w+?\.run\(|extern_kernels\.\w+\(|(?:buf\w+ = )?torch\.ops\.[\w.]+\()", re.MULTILINE
)


KERNELS = ("add_rms", "attend", "silu_mul")


class Operations(TorchDispatchMode):
    """Counts the operators that launch work, composite ones taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, given = func._schema.name.partition("::")[2], kwargs or {}
        if name not in WHOLE and func._can_decompose() and func._schema.name.startswith("aten::"):
            with self:
                return func.decompose(*args, **given)
        self.count += name not in FREE
        return func(*args, **given)


class Kernel:
    """Stands for a kernel: notes what it is called with, and does nothing."""

    def __init__(self, note: Callable[..., None]):
        self.note = note

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.note


@torch.inference_mode()
def dispatched(lm: HuggingFaceLM, q: int) -> int:
    """Launches between the writes of two layers' keys and values, in a pass of the recorded rounds."""
    size = PoolSize.of_run([CONTEXT] * ROWS, window_size=ROWS, batch_size=ROWS, span=q)
    layout = make_layout("inplace", lm.kv_shape, size, max_positions=lm.max_positions, tagged=False)
    places, rows = PoolRows(layout.pool, torch.arange(ROWS), slice(0, ROWS)), torch.arange(ROWS)[:, None]
    block = layout.slot_block(places, torch.ones(ROWS, q, dtype=torch.long), rows + torch.arange(q), layout.columns)
    counts: list[int] = []
    with Operations() as operations, ExitStack() as stack:

        def append(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Any:
            counts.append(operations.count)
            return block.append(layer, keys, values)

        def launch(name: str, *_: Any, **__: Any) -> None:
            operations.count += 1
            counts.extend([operations.count] if name == "attend" else [])

        for name in KERNELS if lm.maskless_queries else ():
            path = f"refimpl.models.kernel_layers.{name}"
            stack.enter_context(patch(path, Kernel(partial(launch, name))))
        lm.forward(replace(block, append=append), q)
    return counts[1] - counts[0]


@contextmanager
def pretended() -> Iterator[list[str]]:
    """Let Inductor believe in an H200; yields the modules that it writes, which are not loaded."""
    import torch._dynamo.device_interface as devices
    import torch._inductor.codecache as codecache
    import torch.utils._triton as found
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    written: list[str] = []

    def caught(key: str, path: str, *_: Any, **__: Any) -> None:
        written.append(Path(path).read_text())
        raise EOFError("read instead of run")

    cuda, of_device = devices.CudaInterface, {"get_device_properties": H200, "current_device": 0}
    answers = of_device | {
        "is_available": True, "device_count": 1, "get_compute_capability": 90, "exchange_device": 0,
        "maybe_exchange_device": 0, "is_triton_capable": True, "raise_if_triton_unavailable": None,
        "is_bf16_supported": True, "synchronize": None,
    }  # fmt: skip
    of_torch = of_device | {"device_count": 1, "get_device_capability": (9, 0), "_lazy_init": None, "synchronize": None}
    target = CUDABackend(GPUTarget("cuda", 90, 32))
    with ExitStack() as stack:
        for owner, values in ((cuda.Worker, of_device), (cuda, answers)):
            for name, value in values.items():
                stack.enter_context(patch.object(owner, name, staticmethod(lambda *_, v=value, **__: v)))
        for name, value in of_torch.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, v=value, **__: v))
        for name, value in {"has_triton": True, "triton_hash_with_backend": "none", "triton_backend": target}.items():
            stack.enter_context(patch.object(found, name, lambda *_, v=value: v))
        stack.enter_context(patch.object(codecache.PyCodeCache, "load_by_key_path", staticmethod(caught)))
        yield written


def lowered(function: Callable[..., Any], make: Callable[[], list[torch.Tensor]]) -> int:
    """Launches of the code that Inductor writes for a function of tensors on a GPU."""
    import torch._inductor.config as config
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    options = {"emulate_precision_casts": True, "compile_threads": 1, "force_disable_caches": True}
    options["joint_graph_constant_folding"] = False  # it would compute constants on the GPU
    with fake, torch.no_grad():
        given = make()
        graph = make_fx(function, tracing_mode="real", _allow_non_fake_inputs=True)(*given)
    context = torch._guards.TracingContext(fake)
    with pretended() as code, torch.no_grad(), config.patch(**options), torch._guards.tracing(context):
        try:
            compile_fx(graph, given)
        except Exception:
            if not code:
                raise
    return len(LAUNCH.findall(code[-1][code[-1].index("def call(") :]))


def compiled(layer: Layer, hidden: int, dim: int, q: int) -> int:
    """Launches of a compiled layer of these parts, each as large as it is here."""
    heads, _, _ = layer.heads
    tensors = [layer.qkv.weight, layer.out.weight, layer.gate_up.weight, layer.down.weight]
    norms = [layer.before.weight, layer.before_mlp.weight, *([layer.head_norm.weight] if layer.head_norm else [])]

    def on_gpu(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
        parts = [tuple(each.shape) for each in (*tensors, *norms)]
        return [torch.empty(size, dtype=torch.bfloat16, device="cuda") for size in (*sizes, *parts)]

    def with_parts(parts: tuple[torch.Tensor, ...]) -> Layer:
        qkv, out, gate_up, down, before, before_mlp, *head_norm = parts
        return replace(
            layer, qkv=replace(layer.qkv, weight=qkv), out=replace(layer.out, weight=out),
            gate_up=replace(layer.gate_up, weight=gate_up), down=replace(layer.down, weight=down),
            before=replace(layer.before, weight=before), before_mlp=replace(layer.before_mlp, weight=before_mlp),
            head_norm=replace(layer.head_norm, weight=head_norm[0]) if head_norm else None,
        )  # fmt: skip

    x, turn = (ROWS, q, hidden), (ROWS, q, 1, dim)
    first = lowered(
        lambda x, y, cos, sin, *parts: with_parts(parts).attend_to(x, y, cos, sin, by_head=True),
        lambda: on_gpu(x, x, turn, turn),
    )
    last = lowered(lambda x, a, *parts: with_parts(parts).finish(x, a), lambda: on_gpu(x, (ROWS, q, heads, dim)))
    return first + BESIDE + (q > 1) + last


def decisions(rule: str, temperature: float) -> dict[str, Any]:
    """Launches of a draft's choice and of a decision with its table, as PyTorch dispatches them and fused."""
    made = make_rule(make_config(acceptance=rule, temperature=temperature))
    counts: dict[str, Any] = {"rule": rule}
    for name, function, q in (("proposal", proposed, 1), ("decision", decided, QUERIES[-1])):
        sizes = [(ROWS, q - 1), (ROWS,), (ROWS,), (ROWS, q), (ROWS,)]
        work = partial(function, made)
        given = [torch.zeros(size, dtype=torch.long) for size in sizes]
        with Operations() as operations:
            work(torch.zeros(ROWS, q, VOCABULARY, dtype=torch.bfloat16), *given)

        def on_gpu(q: int = q, sizes: list[tuple[int, ...]] = sizes) -> list[torch.Tensor]:
            logits = torch.empty(ROWS, q, VOCABULARY, dtype=torch.bfloat16, device="cuda")
            return [logits, *(torch.empty(size, dtype=torch.long, device="cuda") for size in sizes)]

        with patch.object(torch.compiler, "is_compiling", lambda: True):
            counts[name] = {"operators": operations.count, "fused": lowered(work, on_gpu)}
    return counts


def proposed(rule: AcceptanceRule, logits: torch.Tensor, *numbers: torch.Tensor) -> torch.Tensor:
    """Tokens that a draft chooses."""
    _, seed, sequence, position, _ = numbers
    return rule.propose(logits, RowKeys(seed, sequence), position).tokens


def decided(rule: AcceptanceRule, logits: torch.Tensor, *numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A decision, and what the host is told of it."""
    tokens, seed, sequence, position, limits = numbers
    found = rule.decide(Proposal(tokens), logits, RowNumbers(RowKeys(seed, sequence), position, limits))
    drawn = [tensor for each in found.drawn for tensor in (each.mass, each.tokens, each.num_used)]
    return found.num_accepted, found.emitted, found.table(), *drawn


def config_of(kind: str) -> Any:
    """Configuration of a small model of an architecture, with heads that the kernels know."""
    name, arguments = TINY_ARCHITECTURES[kind]
    return getattr(transformers, name)(vocab_size=61, **arguments | {"head_dim": 32})


def with_kernels(lm: HuggingFaceLM) -> HuggingFaceLM:
    """The same model as on a GPU, where kernels run its layers."""
    from refimpl.models.kernel_layers import KernelLayers

    lm.layers = lm.layers._replace(run=KernelLayers(lm.model), name="kernels")
    lm.run_layers = lm.layers.run
    return lm


def launches(kind: str) -> dict[str, list[int]]:
    """Launches a layer, for one query a row and for many, by what runs the layers."""
    config = config_of(kind)
    model, _ = random_models(config, seed=0, dtype=torch.bfloat16, draft_noise=0.0)
    own, lean = (HuggingFaceLM(model, layers=layers) for layers in ("transformers", "lean"))
    found = {each.layers.name: [dispatched(each, q) for q in QUERIES] for each in (own, lean)}
    assert isinstance(lean.run_layers, LeanLayers)
    layer, dim = lean.run_layers.layers[0], lean.kv_shape.key_dim
    found["compiled"] = [compiled(layer, config.hidden_size, dim, q) for q in QUERIES]
    return found | {"kernels": [dispatched(with_kernels(lean), q) for q in QUERIES]}


def main() -> int:
    """Count and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    from torch.utils.cpp_extension import load_inline

    load_inline("no_guard", cpp_sources=GUARD, functions=["ready"])
    rows = [{"kind": kind, "queries": list(QUERIES), **launches(kind)} for kind in KINDS]
    meta = provenance(torch.device("cpu")) | {"rows": ROWS, "dtype": "bfloat16"}
    choices = [decisions(*rule) for rule in RULES]
    write_whole(given.output, [json.dumps({"rows": rows, "decisions": choices, "meta": meta}, indent=1)])
    for row in [*rows, *choices]:
        print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
