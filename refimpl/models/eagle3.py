"""EAGLE-3 draft heads (2503.01840): one layer or more on three inner states of the target and the next token."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from refimpl.models.attending_head import AttendingHead
from refimpl.models.block_cache import cache_argument
from refimpl.models.head_rows import HeadRows
from refimpl.models.speculator import Speculator, SpeculatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Settings(SpeculatorSettings):
    """What a head's configuration says.

    Attributes:
        norm_before_residual: whether the state is normed before it is added to what the first layer gives.
        norm_before_fc: whether inner states are normed before they are mixed.
    """

    norm_before_residual: bool
    norm_before_fc: bool


class Eagle3(Speculator):
    """The weights of a head. Its first layer attends to the token and the state side by side.

    Args:
        settings: its sizes.
    """

    def __init__(self, settings: Eagle3Settings):
        super().__init__(settings)
        hidden = settings.config.hidden_size
        self.input_norm = settings.norm(self.fc.in_features) if settings.norm_before_fc else None
        first: Any = self.layers[0]
        first.hidden_norm = settings.norm()
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(first.self_attn, name)
            setattr(first.self_attn, name, nn.Linear(2 * hidden, narrow.out_features, bias=narrow.bias is not None))


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
        return self.weights.logits(states)
