"""What stands in for the forward pass of a module, and how a model gets it, and does without it for a while.

What holds such a module calls the stand-in without the detour of a module's own call, which would look for hooks first.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class StandIn:
    """Computes what a module computes, in its place."""

    __call__: Callable[[Tensor], Tensor]


def has_stand_in(module: nn.Module) -> bool:
    """Whether something stands in for the module's own forward pass."""
    return isinstance(vars(module).get("forward"), StandIn)


def put_in(module: nn.Module, stand_in: StandIn) -> None:
    """Have it stand in for the module; `call_directly` has what holds the module find it."""
    vars(module)["forward"] = stand_in


def call_directly(model: nn.Module) -> None:
    """Let what holds a module find its stand-in under the module's name; the modules are listed as before."""
    for parent, name, module in _held(model):
        vars(parent)[name] = vars(module)["forward"]


@contextmanager
def as_loaded(model: nn.Module) -> Iterator[None]:
    """Have a model run as it was loaded, then as before."""
    replaced = [(module, vars(module)["forward"]) for module in model.modules() if has_stand_in(module)]
    for parent, name, _ in _held(model):
        vars(parent).pop(name, None)
    for module, _ in replaced:
        del vars(module)["forward"]
    try:
        yield
    finally:
        for module, stand_in in replaced:
            put_in(module, stand_in)
        call_directly(model)


def _held(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Modules with stand-ins, and what holds them; not the LM head, to which hooks may listen."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    held = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    return [(parent, name, child) for parent, name, child in held if has_stand_in(child) and child is not head]
