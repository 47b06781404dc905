"""ALiBi by position: transformers counts the columns of a 2-D mask, where a row may have its own under a 4-D one.

Attention adds slope · position of the key to its scores; the query's own position cancels in the softmax. Keys that a
row sees are in order of position, whichever columns they are in, so that a key's rank among them is its position.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

BUILDER = "build_alibi_tensor"  # of modules of transformers: 2-D mask, number of heads, dtype -> biases of keys


def biases_by_rank(model: PreTrainedModel) -> bool:
    """Whether a model biases attention by the ranks of keys in a mask (Bloom, and Falcon if it says so)."""
    return hasattr(_module_of(model), BUILDER) and getattr(model.config, "alibi", True)


def count_by_position(model: PreTrainedModel) -> None:
    """Let such a model take a 4-D mask, too; what it makes of a 2-D one stays."""
    module = _module_of(model)
    if biases_by_rank(model) and not hasattr(getattr(module, BUILDER), "__wrapped__"):
        setattr(module, BUILDER, _of_any_mask(getattr(module, BUILDER)))


def _of_any_mask(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(build)
    def built(attention_mask: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return build(seen_keys(attention_mask) if attention_mask.dim() == 4 else attention_mask, *args, **kwargs)

    return built


def seen_keys(mask: Float[Tensor, "batch 1 q width"]) -> Int[Tensor, "batch width"]:
    """1 for keys that a row's last query sees, by an additive mask.

    It is the last of those that see most: pads see one key.
    """
    seen = (mask[:, 0] == 0).long().flip(1)
    return seen[torch.arange(len(seen), device=mask.device), seen.sum(dim=2).argmax(dim=1)]


def _module_of(model: PreTrainedModel) -> Any:
    return sys.modules[type(model).__module__]
