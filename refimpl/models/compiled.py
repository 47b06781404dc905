"""Decoder layers whose small operations `torch.compile` fuses: a GPU pays for each of them, however little it does.

A layer is compiled by itself, once for all layers of a model, any number of rows and any width of the context. What
differs from layer to layer stays out of it: where K/V go, and attention, which reads them there.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import Lock

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from refimpl.core.errors import require
from refimpl.models import attention
from refimpl.models.block_cache import BlockCache

GRAPHS_OF_A_FUNCTION = 64  # one for each kind of shape: of one row, of one token, packed, of each model


def compile_layers(model: nn.Module) -> None:
    """Have `torch.compile` fuse what a decoder layer does before its attention and after it, in the engine's passes.

    The first passes take long. A CPU needs a C++ compiler. Two settings of PyTorch change for the whole process: a
    function may have more than 8 graphs, as the layers of all models of one kind are one function, and what comes after
    the limit would run uncompiled; and the number of a layer is no constant of its graph.

    Raises:
        InputError: the model has no decoder layers that transformers knows as such.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    require(bool(layers), f"compile_modules: {type(model).__name__} has no decoder layers that can be told")
    _keep_out_of_graphs()
    for layer in layers:
        layer.compile(dynamic=True)


def is_compiled(model: nn.Module) -> bool:
    """Whether layers are compiled; copies that other processes get are not."""
    return any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())


class _Compiler:
    """PyTorch's compiler, of which a process has one: it comes back when the last thread that needs it off is done."""

    def __init__(self) -> None:
        self._lock, self._inside, self._off = Lock(), 0, ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._off.enter_context(torch.compiler.set_stance("force_eager"))
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._off.close()


_compiler = _Compiler()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Have compiled layers run as they were loaded, those of other threads, too, while the body runs.

    On a cache of transformers' own, every layer would have graphs.
    """
    _compiler.enter()
    try:
        yield
    finally:
        _compiler.leave()


@cache
def _keep_out_of_graphs() -> None:
    """Have graphs end where a layer's K/V go to the block, and at its attention."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, GRAPHS_OF_A_FUNCTION)
    limits.allow_unspec_int_on_nn_module = True
    BlockCache.update = torch.compiler.disable(BlockCache.update)  # type: ignore[method-assign]
    AttentionInterface.register(attention.NAME, torch.compiler.disable(attention.grouped_attention))
