"""Norms by the root of the mean square as a call or two of PyTorch's own, where transformers takes eight.

A GPU pays for every call, however little it does, and in a layer of Qwen3 more than half of them are of norms.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from refimpl.core.errors import require
from refimpl.models.stand_ins import StandIn, call_directly, put_in

TRIED = 64  # random entries that a norm is tried on
ROUNDINGS = {16: 2, 32: 8, 64: 8}  # of a number of so many bits, by which another order of additions may change it


class WholeNorm(StandIn):
    """Stands in for `forward` of a norm, whose weight is read in every call: another may take its place.

    Numbers of 16 bits are rounded before they are multiplied by the weight, as transformers does it.

    Args:
        norm: has the `weight` that it multiplies by.
        eps: that it adds to the mean of the squares.
    """

    def __init__(self, norm: nn.Module, eps: float):
        self.norm, self.eps = norm, eps

    @property
    def weight(self) -> Float[Tensor, " features"]:
        """That of the norm, as it is now."""
        weight = self.norm.weight
        assert isinstance(weight, Tensor)
        return weight

    def __call__(self, entries: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        """The norm's output."""
        weight = self.weight
        if weight.itemsize > 2:
            return torch.rms_norm(entries, weight.shape, weight, self.eps)
        return weight * torch.rms_norm(entries, weight.shape, None, self.eps)


@torch.inference_mode()
def fuse_norms(model: nn.Module) -> None:
    """Let a call or two of PyTorch's own stand in for every norm that they agree with.

    Raises:
        InputError: there is none.
    """
    fuse_norms_if_any(model)
    fused = any(isinstance(vars(module).get("forward"), WholeNorm) for module in model.modules())
    require(fused, f"fuse_norms: {type(model).__name__} has no norm that one call of PyTorch's own agrees with")


def fuse_norms_if_any(model: nn.Module) -> None:
    """As `fuse_norms`, of a model that may have none.

    Each is tried on random entries. On a CPU, one that gives other bits then stays as it is; elsewhere, where sums are
    added in another order, one that differs by more than rounding.
    """
    for norm, whole in _norms(model):
        weight, generator = whole.weight, torch.Generator().manual_seed(0)
        entries = torch.randn(TRIED, *weight.shape, generator=generator).to(weight)
        if _agree(whole(entries), norm(entries), 0 if weight.is_cpu else ROUNDINGS[8 * weight.itemsize]):
            put_in(norm, whole)
    call_directly(model)


def _agree(found: Tensor, expected: Tensor, roundings: int) -> bool:
    """Whether no number differs by more than so many roundings of it."""
    allowed = roundings * torch.finfo(expected.dtype).eps * expected.abs()
    return found.dtype == expected.dtype and bool(((found - expected).abs() <= allowed).all())


def _norms(model: nn.Module) -> list[tuple[nn.Module, WholeNorm]]:
    """What looks like a norm by the root of the mean square, in the model's number format, and what may stand in."""
    number_format = next(model.parameters()).dtype
    parts = [(m, getattr(m, "weight", None), getattr(m, "variance_epsilon", None)) for m in model.modules()]
    return [
        (norm, WholeNorm(norm, eps))
        for norm, weight, eps in parts
        if isinstance(weight, Tensor) and weight.dim() == 1 and weight.dtype == number_format and isinstance(eps, float)
    ]
