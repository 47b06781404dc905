"""EAGLE-3 draft heads (2503.01840): one layer or more on three inner states of the target and the next token.

Modules are named as the tensors of the format that the speculators library writes.
"""

import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig

from refimpl.models.attending_head import AttendingHead
from refimpl.models.block_cache import cache_argument
from refimpl.models.head_rows import HeadRows

FAMILIES = {"llama": "Llama", "qwen3": "Qwen3"}  # model types of the layers


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    """What a head's configuration says.

    Attributes:
        config: of its layers; their vocabulary is the target's.
        layers: see `Reads`.
        draft_vocab_size: tokens that it can propose.
        norm_before_residual: whether the state is normed before it is added to what the first layer gives.
        norm_before_fc: whether inner states are normed before they are mixed.
        target_hidden_size: of each inner state.
    """

    config: PretrainedConfig
    layers: tuple[int, ...]
    draft_vocab_size: int
    norm_before_residual: bool
    norm_before_fc: bool
    target_hidden_size: int


class Eagle3(nn.Module):
    """The weights of a head. Its first layer attends to the token and the state side by side.

    Args:
        settings: its sizes.
    """

    d2t: Int[Tensor, " drafts"]

    def __init__(self, settings: Eagle3Settings):
        super().__init__()
        config, read = settings.config, len(settings.layers) * settings.target_hidden_size
        family = FAMILIES[config.model_type]
        room: Any = import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
        layer_class, norm_class = getattr(room, f"{family}DecoderLayer"), getattr(room, f"{family}RMSNorm")
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.input_norm = norm_class(read, eps=eps) if settings.norm_before_fc else None
        self.fc = nn.Linear(read, hidden, bias=False)
        self.layers = nn.ModuleList([layer_class(config, i) for i in range(config.num_hidden_layers)])
        first: Any = self.layers[0]
        first.hidden_norm = norm_class(hidden, eps=eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(first.self_attn, name)
            setattr(first.self_attn, name, nn.Linear(2 * hidden, narrow.out_features, bias=narrow.bias is not None))
        self.norm = norm_class(hidden, eps=eps)
        self.lm_head = nn.Linear(hidden, settings.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(settings.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))


class Eagle3Head(AttendingHead):
    """A head with its weights.

    Args:
        weights: on the target's device, in its number format.
        settings: of the head.
        rotary: RoPE of its layers.
    """

    def __init__(self, weights: Eagle3, settings: Eagle3Settings, rotary: nn.Module):
        super().__init__(settings.layers)
        self.weights, self._settings, self._rotary = weights.eval(), settings, rotary
        self._ids = torch.arange(settings.draft_vocab_size, device=weights.d2t.device) + weights.d2t

    def entered(self, states: Float[Tensor, "batch q read"]) -> Float[Tensor, "batch q hidden"]:
        """Inner states, mixed to one."""
        norm = self.weights.input_norm
        mixed: Tensor = self.weights.fc(norm(states) if norm else states)
        return mixed

    def advance(
        self,
        index: int,
        tokens: Int[Tensor, "batch q"],
        positions: Int[Tensor, "batch q"],
        states: Float[Tensor, "batch q hidden"],
        rows: HeadRows,
    ) -> Float[Tensor, "batch q hidden"]:
        """All layers, before the last norm."""
        width = rows.cache.get_seq_length() + tokens.shape[1]
        shared = {
            "position_embeddings": self._rotary(states, positions),
            "attention_mask": rows.mask(width, tokens.shape[1], states.dtype),
            cache_argument(self.weights.layers[-1]): rows.cache,
        }
        states = self._first(tokens, states, shared)
        for layer in self.weights.layers[1:]:
            states = layer(states, **shared)
        return states

    def _first(self, tokens: Tensor, states: Tensor, shared: dict[str, Any]) -> Float[Tensor, "batch q hidden"]:
        layer: Any = self.weights.layers[0]
        normed = layer.hidden_norm(states)
        both = torch.cat([layer.input_layernorm(self.weights.embed_tokens(tokens)), normed], dim=-1)
        attended, _ = layer.self_attn(both, **shared)
        residual = (normed if self._settings.norm_before_residual else states) + attended
        return residual + layer.mlp(layer.post_attention_layernorm(residual))

    def logits(self, states: Float[Tensor, "batch 1 hidden"]) -> Float[Tensor, "batch 1 vocab"]:
        """-inf for tokens that it cannot propose."""
        drafts = self.weights.lm_head(self.weights.norm(states))
        impossible = drafts.new_full((*drafts.shape[:-1], self._settings.config.vocab_size), float("-inf"))
        return impossible.index_copy(-1, self._ids, drafts)


def rotary_of(config: PretrainedConfig) -> Any:
    """RoPE of the layers of a configuration."""
    room: Any = import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    return getattr(room, f"{FAMILIES[config.model_type]}RotaryEmbedding")(copy.copy(config))
