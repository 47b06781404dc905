"""What a transformers model takes for its cache: entries go to the block of the pass, and nothing else is answered."""

import functools
import inspect
from typing import Any, NoReturn

from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block


def _refuse_use(*_: Any) -> NoReturn:
    raise UnsupportedModelError("computes with the length of the cache, which differs from row to row")


class _UnknownLength:
    """Answers a model that asks the cache for its length: it may be passed on, but any use of it is an error."""

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = _refuse_use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_use
    __bool__ = __int__ = __index__ = __float__ = __hash__ = _refuse_use  # type: ignore[assignment]


class _BlockCacheLayer(CacheLayerMixin):
    """Answers the questions that modeling code may ask of a layer; the storage itself is the layout's."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("BlockCache.update hands the entries to the block")

    def get_mask_sizes(self, query_length: int) -> NoReturn:
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
    """

    def __init__(self, num_layers: int, block: Block | PackedBlock):
        super().__init__(layers=[_BlockCacheLayer() for _ in range(num_layers)])
        self._block = block

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's entries where the block says; return all that the block's queries may see."""
        return self._block.append(layer_idx, key_states, value_states)


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
