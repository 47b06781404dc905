"""Recurrent layers of a transformers model, fed token by token where the state behind each token is wanted.

A verify pass feeds a row more tokens than it may keep. Attention, MLP and experts take them in together; the modules
with a state, one after the other, so that there is a state behind each of them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from refimpl.models.block_cache import BlockCache


def step_mixers(model: PreTrainedModel) -> None:
    """Let a model's recurrent modules take in the tokens of a pass one by one where its cache asks for that.

    They are the modules of a layer that have a causal convolution.
    """
    for module in model.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "conv_kernel_size"):
            module.forward = _stepwise(module.forward)


def _stepwise(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def run(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        caches = (each for each in (*args, *kwargs.values()) if isinstance(each, BlockCache))
        if not any(cache.steps for cache in caches):
            return forward(hidden_states, *args, **kwargs)
        return torch.cat([forward(token, *args, **kwargs) for token in hidden_states.split(1, dim=1)], dim=1)

    return run
