"""What the engine asks of a language model, and the adapter that makes a Hugging Face model answer.

Only this file and `refimpl.attention` know transformers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
FULL_ATTENTION = {"full_attention", "global"}  # as configurations call it
LONGEST_REASON = 200  # characters of another library's message
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

    The model itself is changed for good: its attention implementation is set, and it is put in evaluation mode. With a
    model on a CUDA device, cuDNN's attention is off for the whole process (see `refimpl.attention`).

    Args:
        model: a causal model, already on its device and in its dtype.
        name: how errors call it.

    Raises:
        InputError: the model has a layer that is not full attention, attention of its own that cannot be set, does not
            honour explicit positions and masks, or fails in another way; the message names the reason.
    """

    def __init__(self, model: PreTrainedModel, name: str = "model"):
        self.model, self.name = model.eval(), name
        with _refusing_what_fails(model, name):
            refuse_unless_full_attention(model, name)
            implementation = _set_attention(model, name)
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
            return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]

        return feed

    @torch.inference_mode()
    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """Fill a DynamicCache with the row and stack its layers."""
        cache = DynamicCache(config=self.model.config)
        ids = torch.tensor([tokens], device=self.model.device)
        self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return torch.stack([torch.stack([keys[0], values[0]]) for keys, values in _entries(cache)])


@contextmanager
def _refusing_what_fails(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Turn whatever a model's own code raises into one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise InputError(
            f"{name}: {type(model).__name__} cannot be driven: {type(error).__name__}: {reason}"
        ) from error


def _set_attention(model: PreTrainedModel, name: str) -> str:
    """Have a model attend as the engine needs it, and return the name of that implementation.

    Raises:
        InputError: it cannot be set, as attention classes of the model's own choose their keys and masks themselves.
    """
    if model.device.type == "cuda":
        attention.leave_out_cudnn()
    wanted = attention.NAME if model._supports_attention_backend else "sdpa"
    model.set_attn_implementation(wanted)
    found = model.config.get_text_config()._attn_implementation
    if found != wanted:
        advice = ": build it with attn_implementation='sdpa'" if model._supports_sdpa else ""
        raise InputError(
            f"{name}: {type(model).__name__} has attention of its own ({found}) that cannot be set to {wanted}{advice}"
        )
    return wanted


def refuse_unless_full_attention(model: PreTrainedModel, name: str) -> None:
    """Raise InputError for sliding-window, recurrent and other layers whose cache is not one entry per token."""
    if getattr(model, "_is_stateful", False):
        raise InputError(f"{name}: {type(model).__name__} keeps a recurrent state, which cannot be rolled back")
    config = model.config.get_text_config()
    layers = DynamicCache(config=config).layers
    kinds = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
    names = ("layer_types", "attention_layers")
    declared = {kind for name in names for kind in getattr(config, name, None) or []} - FULL_ATTENTION
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


PROBE_ROWS = ((1, 2, 3, 4), (4, 3, 2, 1))
PROBE_HIDDEN = (2, 0)  # column of each row that nothing may see
PROBE_UNUSED = 4  # columns behind the last token
PROBE_TOLERANCE = 16  # roundings of the number format


@torch.inference_mode()
def refuse_unless_positions_and_mask_count(lm: HuggingFaceLM) -> None:
    """Raise InputError unless two rows with a hidden slot each give the logits of the plain rows.

    The rows are fed in two blocks. In one row a token that nothing may see stands in the middle, in the other in front;
    behind the last token there are columns without any. A model that counts positions by itself, ignores the mask or
    reckons with the number of columns gives other logits.
    """
    half, count = len(PROBE_ROWS[0]) // 2, len(PROBE_ROWS[0])
    expected = torch.stack([lm.fresh_row()(list(tokens)) for tokens in PROBE_ROWS]).float()
    if not expected.isfinite().all():
        raise InputError(f"{lm.name}: {type(lm.model).__name__} gives logits that are not finite")
    store = KVStore.empty(lm.kv_shape, len(PROBE_ROWS), count + 1 + PROBE_UNUSED, tagged=False)
    tokens, positions = _probe_columns()
    lm.forward(_probe_block(store, tokens[:, : half + 1], positions[:, : half + 1], 0), 1)
    found = lm.forward(_probe_block(store, tokens[:, half + 1 :], positions[:, half + 1 :], half + 1), 1)[:, -1].float()
    tolerance = max(1e-4, PROBE_TOLERANCE * torch.finfo(lm.kv_shape.dtype).eps)
    if not (found - expected).abs().max() <= tolerance * expected.abs().max():
        raise InputError(f"{lm.name}: {type(lm.model).__name__} does not honour explicit positions and a 4-D mask")


def _probe_columns() -> tuple[Tensor, Tensor]:
    """Token and position of each row's columns; a hidden column holds token 0 at position 0."""
    rows = [list(tokens) for tokens in PROBE_ROWS]
    positions = [list(range(len(row))) for row in rows]
    for row, numbers, hidden in zip(rows, positions, PROBE_HIDDEN, strict=True):
        row.insert(hidden, 0)
        numbers.insert(hidden, 0)
    return torch.tensor(rows), torch.tensor(positions)


def _probe_block(store: KVStore, tokens: Tensor, positions: Tensor, start: int) -> Block:
    """Both rows' tokens at columns from `start`, each seeing itself and the columns before it but the hidden one."""
    device = store.shape.device
    columns = torch.arange(store.columns, device=device)
    own = columns[start : start + tokens.shape[1], None]
    hidden = torch.tensor(PROBE_HIDDEN, device=device)[:, None, None]
    visible = (columns == own) | ((columns < own) & (columns != hidden))

    def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        store.write_columns(layer, start, keys, values)
        return store.view(layer, store.columns)

    return Block(tokens.to(device), positions.to(device), visible[:, None], append)


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
