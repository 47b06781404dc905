"""What each layer of a transformers model caches and sees, and where it is in a store of layers of one shape."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.spans import FULL, Span
from refimpl.layouts.store import KVShape, StatePart

CONV, RECURRENT = "conv", "recurrent"  # names of states, as transformers' caches have them
Entries = tuple[Float[Tensor, "batch heads q key_dim"], Float[Tensor, "batch heads q value_dim"]]


@dataclass(frozen=True, slots=True)
class LayerEntries:
    """Keys and values of one layer, in a store whose layers are all as wide as the widest.

    Attributes:
        index: layer of the store.
        num_heads, key_dim, value_dim: of the layer itself.
        read_later: whether later layers read them, too.
    """

    index: int
    num_heads: int
    key_dim: int
    value_dim: int
    read_later: bool = False

    def widened(self, keys: Tensor, values: Tensor, shape: KVShape) -> Entries:
        """Entries as the store takes them: zeros in heads and numbers that the layer does not have."""
        return self._padded(keys, shape.num_kv_heads, shape.key_dim), self._padded(
            values, shape.num_kv_heads, shape.value_width
        )

    def own(self, keys: Tensor, values: Tensor) -> Entries:
        """What of the store is the layer's."""
        keys, values = keys[:, : self.num_heads, :, : self.key_dim], values[:, : self.num_heads, :, : self.value_dim]
        return (keys.clone(), values.clone()) if self.read_later else (keys, values)

    def _padded(self, entries: Tensor, heads: int, width: int) -> Tensor:
        more = (0, width - entries.shape[3], 0, 0, 0, heads - entries.shape[1])
        return pad(entries, more) if any(more) else entries


@dataclass(frozen=True)
class CachedLayers:
    """What the layers of a model cache and see.

    Attributes:
        shape: of the store.
        count: layers of the model, those without entries of their own included.
        entries: of the layers that have any, by their place in the model.
        spans: how far back layers look, by the names that the model gives to kinds of them; None for those without
            attention. One where all look equally far.
        states: parts of recurrent states, by layer, name and number.
        stepwise: whether recurrent layers go on from a state with one token at a time only, and begin anew with more.
    """

    shape: KVShape
    count: int
    entries: dict[int, LayerEntries]
    spans: dict[str, Span | None]
    states: dict[tuple[int, str, int], StatePart]
    stepwise: bool = False

    @classmethod
    def of(cls, config: PretrainedConfig, cache: Cache, max_positions: int) -> "CachedLayers":
        """Of a cache that a model has filled, and what its configuration says of layers.

        Raises:
            UnsupportedModelError: a layer's keys and values differ in their number of heads, or kinds of layers that
                look back differently far have no names.
        """
        modes = getattr(config, "kv_sharing_modes", None) or [None] * len(cache.layers)
        filled = {place: layer for place, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is not None}
        entries = {
            place: _entries_of(layer, index, modes[place] == "store")
            for index, (place, layer) in enumerate(filled.items())
        }
        by_place = _spans(config, max_positions)
        spans = tuple(by_place.get(place, FULL) for place in filled)
        found = dict(states_in(cache))
        states = {part[:3]: part for part in found}
        values: list[Any] = [*(getattr(layer, "values", None) for layer in filled.values()), *found.values()]
        shape = _store_shape([*filled.values()], values[0], spans if set(spans) - {FULL} else (), tuple(found))
        shape = replace(shape, float32_softmax=getattr(config, "attn_logit_softcapping", None) is not None)
        count = max(len(DynamicCache(config=config).layers), len(cache.layers))
        return cls(shape, count, entries, _by_kind(config, by_place), states)

    @property
    def uniform(self) -> bool:
        """Whether layers have nothing but entries of their own, all of one shape."""
        shapes = {(each.num_heads, each.key_dim, each.value_dim, each.read_later) for each in self.entries.values()}
        return len(shapes) == 1 and not self.states and not any(each.read_later for each in self.entries.values())

    @property
    def least_heads(self) -> int:
        """Key heads of the layer that has fewest."""
        return min([each.num_heads for each in self.entries.values()], default=1)

    def joined(self, cache: Cache) -> Float[Tensor, "layers planes heads n plane_dim"]:
        """Entries of the only row of a filled cache, as a store holds them."""
        filled: list[tuple[LayerEntries, Any]] = [(each, cache.layers[place]) for place, each in self.entries.items()]
        wide = [entries.widened(layer.keys, layer.values, self.shape) for entries, layer in filled]
        return torch.stack([self.shape.joined(keys[0], values[0]) for keys, values in wide])


def keeping_cache(config: PretrainedConfig) -> Cache:
    """An ordinary cache that keeps all entries, those that a window hides included."""
    layers = DynamicCache(config=config).layers
    if not any(hasattr(layer, f"{CONV}_states") for layer in layers):
        return DynamicCache()  # without the configuration, which tells of windows
    return Cache(layers=[DynamicLayer() if type(each) is DynamicSlidingWindowLayer else each for each in layers])


def states_in(cache: Cache) -> Iterator[tuple[StatePart, Tensor]]:
    """Recurrent states of the only row of a filled cache."""
    for place, layer in enumerate(cache.layers):
        for name in (CONV, RECURRENT):
            for number, values in getattr(layer, f"{name}_states", {}).items():
                if values is not None:
                    yield StatePart(place, name, number, tuple(values.shape[1:]), values.dtype), values[0]


def _store_shape(layers: list[Any], like: Tensor, spans: tuple[Span, ...], states: tuple[StatePart, ...]) -> KVShape:
    """As wide as the widest of filled layers; without any layer where none attends."""
    widths = [(*each.keys.shape[1:4:2], each.values.shape[3]) for each in layers] or [(1, 1, 1)]
    heads, key_dim, value_dim = (max(each) for each in zip(*widths, strict=True))
    return KVShape(len(layers), heads, key_dim, like.dtype, like.device, value_dim, spans, states)


def _entries_of(layer: Any, index: int, read_later: bool) -> LayerEntries:
    heads, other = layer.keys.shape[1], layer.values.shape[1]
    if heads != other:
        raise UnsupportedModelError(f"caches keys of {heads} heads and values of {other}")
    return LayerEntries(index, heads, layer.keys.shape[3], layer.values.shape[3], read_later)


def _spans(config: PretrainedConfig, max_positions: int) -> dict[int, Span]:
    """How far back each layer with entries of its own looks, by its place; a window that holds every row is none."""
    kinds = getattr(config, "layer_types", None)
    alone = "chunked_attention" if getattr(config, "sliding_window", None) is None else "sliding_attention"
    found = {}
    for place, layer in enumerate(DynamicCache(config=config).layers):
        size = getattr(layer, "sliding_window", None) or max_positions
        kind = kinds[place] if kinds else alone
        if isinstance(layer, DynamicLayer):
            found[place] = FULL if size >= max_positions else Span("chunk" if "chunk" in kind else "window", size)
    return found


def _by_kind(config: PretrainedConfig, spans: dict[int, Span]) -> dict[str, Span | None]:
    """The same, by the names of kinds of layers; raises UnsupportedModelError where different ones have no names."""
    kinds = getattr(config, "layer_types", None) or []
    if len(set(spans.values())) <= 1:
        return {"full_attention": next(iter(spans.values()), FULL)}
    named = {(kinds[place], span) for place, span in spans.items()} if kinds else set()
    if not named or len(dict(named)) < len(named):
        raise UnsupportedModelError("has layers that look back differently far, and no names for them")
    return dict.fromkeys(kinds) | dict(named)
