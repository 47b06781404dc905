"""Attention that is not what a family of models defines: windows, sinks, softcaps, and K/V that layers share."""

from typing import Any
from unittest.mock import patch

import torch

from refimpl.core import kernels
from refimpl.core.config import LAYOUTS
from refimpl.faults.base import fault
from refimpl.layouts.spans import Span
from refimpl.models import attention
from refimpl.models.cached_layers import LayerEntries

WINDOWED: dict[str, Any] = {"layouts": LAYOUTS, "settings": {"sliding_window": 3}}


def of(architecture: str) -> dict[str, Any]:
    """Where a fault is looked for that only some models know."""
    return {"layouts": LAYOUTS, "settings": {"architecture": architecture}}


@fault(kernels, "in_window", "output", "INV-3", **WINDOWED)
def window_keeps_one_too_many(original: Any) -> Any:
    """A sliding window holds one position more than the model's.

    Long rows say something else than plain generation; short ones are right.
    """
    return lambda slot, query, size: original(slot, query, size + 1)


@fault(kernels, "in_window", "output", "INV-3", **WINDOWED)
def window_evicts_one_too_many(original: Any) -> Any:
    """A sliding window has lost the position at its far end.

    Long rows lose a word too early, and say something else than plain generation.
    """
    return lambda slot, query, size: original(slot, query, size - 1)


@fault(Span, "reaches", "output", "INV-3", **WINDOWED, sources=("ml-explore/mlx-lm#1914",))
def window_does_not_evict(original: Any) -> Any:
    """In passes of several tokens a sliding window keeps what it holds.

    Rows that outgrow the window drift as soon as speculation is on.
    """
    return lambda self, slot, query: original(self, slot, query) | (query.shape[-2] > 1)


@fault(attention, "own_attention", "output", "INV-4", **of("gpt_oss"))
def sink_dropped(original: Any) -> Any:
    """In passes of several rows the sinks take no part of the attention.

    A batch says something else than each of its rows by itself.
    """

    def own_attention(module: Any, query: Any, *rest: Any, **settings: Any) -> Any:
        if query.shape[0] == 1:
            return original(module, query, *rest, **settings)
        with patch.dict(module._parameters, sinks=torch.full_like(module.sinks, float("-inf"))):
            return original(module, query, *rest, **settings)

    return own_attention


@fault(attention, "own_attention", "output", "INV-4", **of("gemma2"))
def softcap_dropped(original: Any) -> Any:
    """In passes of several rows the scores of attention are not capped.

    A batch says something else than each of its rows by itself.
    """

    def own_attention(module: Any, query: Any, *rest: Any, **settings: Any) -> Any:
        return original(module, query, *rest, **settings | ({"softcap": None} if query.shape[0] > 1 else {}))

    return own_attention


@fault(LayerEntries, "own", "output", None, layouts=("paged",), settings={"architecture": "gemma4"})
def shared_kv_of_the_latest_layer(original: Any) -> Any:
    """Layers without K/V of their own read what lies in the memory of the layer that they want: another layer's.

    Text is fluent and wrong, with blocks only.
    """

    def own(self: LayerEntries, keys: Any, values: Any) -> Any:
        return keys[:, : self.num_heads, :, : self.key_dim], values[:, : self.num_heads, :, : self.value_dim]

    return own
