"""What the engine asks of a language model, and the adapter that makes a Hugging Face model answer.

Only this file and `refimpl.attention` know transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from refimpl import attention
from refimpl.errors import InputError
from refimpl.kvstore import Block, KVShape, KVStore

ROPES_OF_BATCHES = ("longrope", "dynamic")
FeedRow = Callable[[list[int]], Tensor]


@runtime_checkable
class CausalLM(Protocol):
    """A decoder-only model with full attention.

    Attributes:
        vocab_size: width of its logits.
        max_positions: positions it knows; `position_ids` stay below.
        recordable: whether its passes only launch work, so that they can be recorded and replayed.
        kv_shape: what it caches per token.
    """

    vocab_size: int
    max_positions: int
    recordable: bool
    kv_shape: KVShape

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block, hand its K/V to ``block.append`` layer by layer, return the last `num_logits` logits."""

    def fresh_row(self) -> FeedRow:
        """Start one sequence on the model's own ordinary cache, for the oracle.

        The returned function takes the next tokens and gives the logits ``[vocab]`` after the last of them.
        """

    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """K/V of one row computed from nothing ``[layers, 2, kv_heads, len(tokens), head_dim]``, to compare with."""


class _BlockCacheLayer(CacheLayerMixin):
    """Answers the questions that modeling code may ask of a layer; the storage itself is the layout's."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("BlockCache.update hands the entries to the block")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0  # positions and mask are always explicit

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class BlockCache(Cache):
    """A transformers cache without storage, for one pass: hands each layer's entries to the block."""

    def __init__(self, num_layers: int, block: Block):
        super().__init__(layers=[_BlockCacheLayer() for _ in range(num_layers)])
        self._block = block

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's entries where the block says; return all that the block's queries may see."""
        return self._block.append(layer_idx, key_states, value_states)


class HuggingFaceLM:
    """Adapter of a transformers model with full attention in every layer.

    With a model on a CUDA device, cuDNN's attention is off for the whole process (see `refimpl.attention`).

    Args:
        model: a causal model, already on its device and in its dtype.
        name: how errors call it.

    Raises:
        InputError: the model has a layer that is not full attention, or does not honour explicit positions and
            masks; the message names the reason.
    """

    def __init__(self, model: PreTrainedModel, name: str = "model"):
        refuse_unless_full_attention(model, name)
        if model.device.type == "cuda":
            attention.leave_out_cudnn()
        implementation = attention.NAME if model._supports_attention_backend else "sdpa"
        model.set_attn_implementation(implementation)
        self.model, self.name = model.eval(), name
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_positions = steady_positions(config)
        self.recordable = not ropes_of_batches(config)
        self.kv_shape = _probe_kv_shape(model)
        heads = getattr(config, "num_attention_heads", self.kv_shape.num_kv_heads)
        self._groups = heads // self.kv_shape.num_kv_heads if implementation == attention.NAME else 1
        refuse_unless_positions_and_mask_count(self)

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block through the model with explicit positions and an explicit 4-D mask."""
        return self.model(
            input_ids=block.tokens,
            position_ids=block.position_ids,
            attention_mask=attention.additive_mask(block.mask, self.kv_shape.dtype, self._groups),
            past_key_values=BlockCache(self.kv_shape.num_layers, block),
            use_cache=True,
            logits_to_keep=num_logits,
        ).logits

    def fresh_row(self) -> FeedRow:
        """Start one row on transformers' own DynamicCache, positions and mask left to the model."""
        cache = DynamicCache(config=self.model.config)

        @torch.inference_mode()
        def feed(tokens: list[int]) -> Tensor:
            ids = torch.tensor([tokens], device=self.model.device)
            return self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1]

        return feed

    @torch.inference_mode()
    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """Fill a DynamicCache with the row and stack its layers."""
        cache = DynamicCache(config=self.model.config)
        self.model(input_ids=torch.tensor([tokens], device=self.model.device), past_key_values=cache, use_cache=True)
        return torch.stack([torch.stack([keys[0], values[0]]) for keys, values in _entries(cache)])


def refuse_unless_full_attention(model: PreTrainedModel, name: str) -> None:
    """Raise InputError for sliding-window, recurrent and other layers whose cache is not one entry per token."""
    if getattr(model, "_is_stateful", False):
        raise InputError(f"{name}: {type(model).__name__} keeps a recurrent state, which cannot be rolled back")
    config = model.config.get_text_config()
    layers = DynamicCache(config=config).layers
    kinds = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
    declared = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if kinds or declared:
        reason = ", ".join(sorted(declared or kinds))
        raise InputError(f"{name}: {type(model).__name__} has layers that are not full attention ({reason})")


def ropes_of_batches(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Parameters of RoPEs whose frequencies change with the longest row of the batch, which they ask of every pass."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one, or one for each type of layer
    return [kind for kind in kinds if kind.get("rope_type") in ROPES_OF_BATCHES]


def steady_positions(config: PretrainedConfig) -> int:
    """Positions that a model knows, and within which no row's RoPE depends on another row.

    Such RoPEs keep their frequencies as long as no row is longer than the context of pretraining.
    """
    known = getattr(config, "max_position_embeddings", None) or 1 << 20
    steady = [rope.get("original_max_position_embeddings") for rope in ropes_of_batches(config)]
    return min([known, *filter(None, steady)])


PROBE_TOKENS, PROBE_TOLERANCE = (1, 2, 3, 4), 16  # tolerance in roundings of the number format


@torch.inference_mode()
def refuse_unless_positions_and_mask_count(lm: HuggingFaceLM) -> None:
    """Raise InputError unless a row with a hidden slot in its middle gives the logits of the plain row.

    The row's tokens are fed in two blocks; between them stands one more token, which nothing may see. A model that
    counts positions by itself, or ignores the mask, gives other logits.
    """
    tokens, half = list(PROBE_TOKENS), len(PROBE_TOKENS) // 2
    expected = lm.fresh_row()(tokens).float()
    if not expected.isfinite().all():
        raise InputError(f"{lm.name}: {type(lm.model).__name__} gives logits that are not finite")
    store = KVStore.empty(lm.kv_shape, 1, len(tokens) + 1, tagged=False)
    lm.forward(_probe_block(store, [*tokens[:half], 0], list(range(half + 1)), 0, hidden=None), 1)
    block = _probe_block(store, tokens[half:], list(range(half, len(tokens))), half + 1, hidden=half)
    found = lm.forward(block, 1)[0, -1].float()
    tolerance = max(1e-4, PROBE_TOLERANCE * torch.finfo(lm.kv_shape.dtype).eps)
    if not (found - expected).abs().max() <= tolerance * expected.abs().max():
        raise InputError(f"{lm.name}: {type(lm.model).__name__} does not honour explicit positions and a 4-D mask")


def _probe_block(store: KVStore, tokens: list[int], positions: list[int], start: int, hidden: int | None) -> Block:
    """One row's tokens at columns from `start`, each seeing the columns up to its own but the hidden one."""
    device, width = store.shape.device, start + len(tokens)
    columns = torch.arange(width, device=device)
    visible = columns <= columns[start:, None]
    if hidden is not None:
        visible[:, hidden] = False

    def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        store.write_columns(layer, start, keys, values)
        return store.view(layer, width)

    return Block(
        torch.tensor([tokens], device=device), torch.tensor([positions], device=device), visible[None, None], append
    )


@torch.inference_mode()
def _probe_kv_shape(model: PreTrainedModel) -> KVShape:
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    entries = _entries(cache)
    keys, values = entries[0]
    shapes = {tuple(tensor.shape) for layer in entries for tensor in layer}
    if len(shapes) != 1:
        raise InputError(f"{type(model).__name__} caches keys and values of different shapes ({sorted(shapes)})")
    _, heads, _, dim = keys.shape
    return KVShape(len(entries), heads, dim, values.dtype, values.device)


def _entries(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer of a filled DynamicCache."""
    return [(layer.keys, layer.values) for layer in cache.layers]


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, a draft that proposes for it, and what they share.

    Attributes:
        target, draft: the models.
        tokenizer: turns text into ids and back; None for models that know only ids.
        stop_token_ids: end a sequence unless the caller says otherwise.
        vocab_size: ids that both models know; logits beyond it are padding rows.
        name: preset or path.
    """

    target: CausalLM
    draft: CausalLM
    tokenizer: Any = None
    stop_token_ids: frozenset[int] = frozenset()
    vocab_size: int = 0
    name: str = "pair"

    @property
    def device(self) -> torch.device:
        """Where the target lives."""
        return self.target.kv_shape.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the target's cache."""
        return self.target.kv_shape.dtype

    def decode(self, token_ids: list[int]) -> str:
        """Text of generated tokens, without special ones; for a pair with a tokenizer."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))
