"""What a transformers model takes for its cache: entries go to the block of the pass, and nothing else is answered."""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models.cached_layers import CONV, RECURRENT, CachedLayers


def _refuse_use(*_: Any) -> Any:
    raise UnsupportedModelError("computes with the length of the cache, which differs from row to row")


class _UnknownLength:
    """Answers a model that asks the cache for its length: it may be passed on or added to, other uses are errors."""

    def __radd__(self, more: Any) -> Any:
        return self if isinstance(more, int) else _refuse_use()

    __add__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = _refuse_use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_use
    __bool__ = __int__ = __index__ = __float__ = __hash__ = _refuse_use  # type: ignore[assignment]


class _LengthsOfRows(_UnknownLength):
    """Answers a model that numbers the tokens of a packed pass and adds the length: then it has their positions."""

    def __init__(self, positions: Tensor):
        self._positions = positions

    def __radd__(self, numbers: Any) -> Any:
        if not isinstance(numbers, Tensor) or numbers.shape != self._positions.shape:
            _refuse_use()
        return self._positions


class _BlockCacheLayer(CacheLayerMixin):
    """Answers the questions that modeling code may ask of a layer; the storage itself is the layout's."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("BlockCache.update hands the entries to the block")

    def get_mask_sizes(self, query_length: int) -> Any:
        _refuse_use()  # masks are always explicit

    def get_seq_length(self) -> Any:
        return _UnknownLength()  # positions are always explicit

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class BlockCache(Cache):
    """A transformers cache without storage, for one pass: hands each layer's entries to the block.

    It has no length: every row has its own, and positions and mask are explicit. A model that computes with one is
    refused (UnsupportedModelError).

    Args:
        layers: what the model caches.
        block: of the pass.
    """

    def __init__(self, layers: CachedLayers, block: Block | PackedBlock):
        super().__init__(layers=[_BlockCacheLayer() for _ in range(layers.count)])
        self._cached, self._block = layers, block
        self._states: Any = None if isinstance(block, PackedBlock) else block.states

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's entries where the block says; return all that the block's queries may see."""
        entries = self._cached.entries[layer_idx]
        wide = entries.widened(key_states, value_states, self._cached.shape)
        return entries.own(*self._block.append(entries.index, *wide))

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The last inputs of a convolution, of each row."""
        return self._states.read(self._cached.states[layer_idx, CONV, state_idx])

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Append inputs, and return them behind those before."""
        part = self._cached.states[layer_idx, CONV, state_idx]
        inputs = torch.cat([self._states.latest(part), conv_states], dim=-1)
        self._states.write(part, inputs[..., -part.size[-1] :])
        return inputs

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The state of each row, which some models change in place."""
        return self._states.read(self._cached.states[layer_idx, RECURRENT, state_idx])

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """The state behind what a layer was fed."""
        self._states.write(self._cached.states[layer_idx, RECURRENT, state_idx], recurrent_states)
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Always: that of a row without tokens is zero."""
        return True

    def is_recording_past(self, layer_idx: int) -> bool:
        """Whether inputs of a convolution are appended by `update_conv_state`, those of a single token, too."""
        return True

    @property
    def steps(self) -> bool:
        """Whether recurrent layers take in one token at a time."""
        return self._states is not None and (self._states.step == 1 or self._cached.stepwise)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """No number: rows have lengths of their own."""
        packed = isinstance(self._block, PackedBlock)
        return _LengthsOfRows(self._block.position_ids[0]) if packed else _UnknownLength()


CACHE_NAMES = ("cache", "past_key_values")  # what models call it, since transformers 5.24 and before


def call_with_cache(model: nn.Module, cache: Cache, **inputs: Any) -> Any:
    """What a transformers model gives for these inputs behind those that the cache holds; it holds them, too, then."""
    return model(**{cache_argument(model): cache}, use_cache=True, **inputs)


def cache_argument(model: object) -> str:
    """How the forward pass of a model calls its cache."""
    kind: Any = type(model)
    return _cache_argument(kind)


@functools.cache
def _cache_argument(kind: Any) -> str:
    """Of all models of a class; one that hands on whatever it is given calls it as the class that it derives from."""
    passes = [vars(each)["forward"] for each in kind.__mro__ if "forward" in vars(each)]
    named = (name for each in passes for name in CACHE_NAMES if name in inspect.signature(each).parameters)
    return next(named, CACHE_NAMES[-1])
