"""Linear layers on a CPU whose weights are kept as oneDNN reads them fastest, too ("weight prepacking").

PyTorch multiplies matrices of 32 bits with the library that it was built with, usually MKL, which runs below the rate
of some processors, and reorders the weights in every call. oneDNN comes with PyTorch and can be given weights
in its own order. `torch.compile` does so when it freezes a model; here the same operators are called without it.
Norms become one call each, see `refimpl.models.norms`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from refimpl.core.errors import InputError, require
from refimpl.models.norms import fuse_norms_if_any
from refimpl.models.stand_ins import StandIn, has_stand_in, put_in

LEAST_MULTIPLICATIONS = 750_000  # of a product, for each thread; with fewer, the call costs more than it gains
TYPICAL_TOKENS = 64  # for which oneDNN chooses the order
TRIAL_TOLERANCE = 1e-4  # of the largest output; another order of additions differs by 1e-6


class PrepackedForward(StandIn):
    """Stands in for `forward` of a linear layer, whose own weights stay as they are, or are changed and then read anew.

    Args:
        linear: a layer of float32 weights on a CPU.
    """

    def __init__(self, linear: nn.Linear):
        self.linear = linear
        self._weight: Tensor | None = None
        self._read: tuple[int, int] | None = None  # the layer's weights as they were then

    def __call__(self, entries: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        """The layer's output; that of PyTorch's own product where it is small."""
        layer = self.linear
        if entries.numel() * layer.out_features < LEAST_MULTIPLICATIONS * torch.get_num_threads():
            return nn.functional.linear(entries, layer.weight, layer.bias)
        return self.product(entries)

    def product(self, entries: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        """The layer's output by oneDNN."""
        layer = self.linear
        if self._read != (now := _state_of(layer.weight)):
            self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TYPICAL_TOKENS)
            self._read = now
        output: Tensor = torch.ops.mkldnn._linear_pointwise(entries, self._weight, layer.bias, "none", [], "")
        return output

    def __getattr__(self, name: str) -> Any:
        """What else is asked of the layer, its weight for example."""
        if name == "linear":  # not there yet, while a copy is being made
            raise AttributeError(name)
        return getattr(self.linear, name)

    def __getstate__(self) -> dict[str, Any]:
        """What another process is handed: that order of the weights cannot be written down, and is made again."""
        return {"linear": self.linear, "_weight": None, "_read": None}


def _state_of(weight: Tensor) -> tuple[int, int]:
    """Another one after the numbers have changed.

    What is written through `.data` is not counted, nor are changes of weights that were made in inference mode.
    """
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


@torch.inference_mode()
def prepack(model: nn.Module) -> None:
    """Prepack all linear layers of a model; their weights take their memory twice. Norms become one call each.

    Every layer is tried on random entries before any is prepacked.

    Raises:
        InputError: the model is not on a CPU in float32, or this PyTorch has no such products, or they are wrong.
    """
    _refuse_other_numbers(model)
    generator = torch.Generator().manual_seed(0)
    forwards = [_tried(layer, generator) for layer in _plain_layers(model)]
    for forward in forwards:
        put_in(forward.linear, forward)
    fuse_norms_if_any(model)


def _tried(layer: nn.Linear, generator: torch.Generator) -> PrepackedForward:
    """What stands in for a layer, after its product was compared with PyTorch's.

    Raises:
        InputError: they differ, or there is none.
    """
    entries = torch.randn(TYPICAL_TOKENS, layer.in_features, generator=generator)
    expected, forward = layer(entries), PrepackedForward(layer)
    try:
        largest = float(expected.abs().max()) or 1.0  # of a layer of zeros nothing is a share
        error = float((forward.product(entries) - expected).abs().max()) / largest
    except (AttributeError, RuntimeError) as reason:
        raise InputError(f"prepack_weights needs oneDNN, which fails here: {str(reason).splitlines()[0]}") from None
    require(error <= TRIAL_TOLERANCE, f"prepack_weights: oneDNN's products differ from PyTorch's by {error:.1g}")
    return forward


def copied_bytes(model: nn.Module) -> int:
    """Bytes of the weights that a model keeps in oneDNN's order, too."""
    forwards = [vars(layer).get("forward") for layer in model.modules()]
    return sum(each.linear.weight.nbytes for each in forwards if isinstance(each, PrepackedForward))


def _refuse_other_numbers(model: nn.Module) -> None:
    found = next(model.parameters())
    number_format = str(found.dtype).removeprefix("torch.")
    wanted = found.dtype == torch.float32 and found.device.type == "cpu"
    require(wanted, f"prepack_weights needs float32 on a CPU, not {number_format} on {found.device.type}")


def _plain_layers(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if type(module) is nn.Linear and not has_stand_in(module)]
