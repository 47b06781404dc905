"""Which code runs a model's layers: transformers' own, or lean ones after a trial against it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from refimpl.core.engine_settings import LayersName
from refimpl.core.errors import InputError
from refimpl.models.checks import LONGEST_REASON
from refimpl.models.lean import LeanLayers
from refimpl.models.lean_trial import allowed_error
from refimpl.models.module_layers import ModuleLayers
from refimpl.models.varlen import NotOfferedError

KERNEL_DEVICE = "cuda"
MOST_PACKED_BYTES = 1 << 30  # of weights that are copied without being asked for


class Layers(NamedTuple):
    """What runs a model's layers.

    Attributes:
        run: a pass.
        name: its value of `layers`, never "auto".
        about: why it is not another one, or how far it is from transformers' own.
    """

    run: ModuleLayers | LeanLayers
    name: LayersName
    about: str

    def describe(self) -> str:
        """For the environment of a run."""
        return f"{self.name}: {self.about}" if self.about else self.name


def choose_layers(
    wanted: LayersName, own: ModuleLayers, model: PreTrainedModel, error_of: Callable[[LeanLayers], float]
) -> Layers:
    """What runs a model's layers.

    Args:
        wanted: "transformers" for its own modules; "lean" for few operations a layer; "packed" for these and a copy of
            the weights in oneDNN's order (float32 on a CPU); "compiled" to have `torch.compile` fuse them; "kernels"
            for Triton kernels between the products (on a GPU); "auto" for compiled on a GPU, packed for models of up to
            1 GiB where that is possible, else lean, but transformers' own in float64, and where a class of models is
            not known or the trial fails.
        own: transformers' own.
        model: whose layers they are.
        error_of: the largest error of others, as of `lean_trial.largest_error`.

    Raises:
        InputError: lean layers were asked for and cannot be had.
    """
    if wanted == "transformers":
        return Layers(own, wanted, "")
    if wanted == "auto" and model.dtype == torch.float64:
        return Layers(own, "transformers", "in float64, norms are rounded to float32")
    why = ""
    for name in _best_first(model) if wanted == "auto" else [wanted]:
        try:
            return _tried(model, name, error_of)
        except Exception as reason:  # a compiler that is missing, or whatever a checkpoint has that its class has not
            why = " ".join(str(reason).split())[:LONGEST_REASON]
    if wanted != "auto":
        raise InputError(f"layers cannot be {wanted}: {why}")
    return Layers(own, "transformers", why)


def _tried(model: PreTrainedModel, name: LayersName, error_of: Callable[[LeanLayers], float]) -> Layers:
    """Lean layers of this name; raises an error that says why where they are not right, or cannot be had."""
    lean = _made(model, name)
    error = error_of(lean)
    if not error <= allowed_error(model.dtype):
        raise NotOfferedError(f"its numbers are off by {error:.1g}")
    return Layers(lean, name, "equal bits" if error == 0 else f"within {error:.1g} of transformers'")


def _made(model: PreTrainedModel, name: LayersName) -> LeanLayers:
    if name != "kernels":
        return LeanLayers(model, name)
    if model.device.type != KERNEL_DEVICE:
        raise NotOfferedError("kernels need a CUDA device")
    from refimpl.models.kernel_layers import KernelLayers  # with Triton, which comes with PyTorch for CUDA

    return KernelLayers(model)


def _best_first(model: PreTrainedModel) -> list[LayersName]:
    """What is tried on this device, the fastest first."""
    if model.device.type == "cuda":
        return ["compiled", "lean"]
    size = sum(parameter.nbytes for parameter in model.parameters())
    packs = model.device.type == "cpu" and model.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return ["packed", "lean"] if packs and size <= MOST_PACKED_BYTES else ["lean"]
