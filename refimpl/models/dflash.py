"""DFlash draft heads: all drafts of a round in one pass of masks, on K/V that inner states of the target become."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from refimpl.models.head import Reads
from refimpl.models.head_rows import HeadRows
from refimpl.models.speculator import Speculator, SpeculatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashSettings(SpeculatorSettings):
    """What a head's configuration says.

    Attributes:
        block_size: tokens of a pass: the last committed one and the masks.
        mask_token_id: stands for a draft.
    """

    block_size: int
    mask_token_id: int


class DFlash(Speculator):
    """The weights of a head, whose layers are those of Qwen3.

    Args:
        settings: its sizes.
    """

    def __init__(self, settings: DFlashSettings):
        super().__init__(settings)
        self.hidden_norm = settings.norm()


class DFlashHead:
    """A head with its weights.

    Args:
        weights: on the target's device, in its number format.
        settings: of the head.
        rotary: RoPE of its layers.
    """

    def __init__(self, weights: DFlash, settings: DFlashSettings, rotary: nn.Module):
        self.weights, self._settings, self._rotary = weights.eval(), settings, rotary
        self.reads = Reads(settings.layers, whole=True, most=settings.block_size - 1)

    def begin(self, rows: HeadRows) -> "_Masks":
        """See `DraftHead`."""
        return _Masks(self, rows)

    def run(self, last: Int[Tensor, "batch 1"], rows: HeadRows) -> Float[Tensor, "batch masks vocab"]:
        """Logits of all masks behind the last committed token; K/V of new states are added to `rows`."""
        masks = last.new_full((len(last), self._settings.block_size - 1), self._settings.mask_token_id)
        x = self.weights.embed_tokens(torch.cat([last, masks], dim=1))
        states, count = self.weights.hidden_norm(self.weights.fc(rows.states)), x.shape[1]
        block = rows.positions[:, -1:] + torch.arange(count, device=x.device)
        turns = self._rotary(x, torch.cat([rows.positions - 1, block], dim=1))
        mask = rows.mask(rows.end + count, count, x.dtype, causal=False)
        layers: Any = self.weights.layers
        for i, layer in enumerate(layers):
            x = x + self._attended(layer, i, states, x, turns, mask, rows)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.weights.logits(x[:, 1:])

    def _attended(
        self,
        layer: Any,
        index: int,
        states: Float[Tensor, "batch n hidden"],
        x: Float[Tensor, "batch q hidden"],
        turns: tuple[Tensor, Tensor],
        mask: Tensor,
        rows: HeadRows,
    ) -> Float[Tensor, "batch q hidden"]:
        """What the block takes from kept entries, new states and itself."""
        attention, q = layer.self_attn, layer.input_layernorm(x)
        read = torch.cat([states, q], dim=1)
        query, key, value = (
            project(entries).unflatten(-1, (-1, attention.head_dim))
            for project, entries in ((attention.q_proj, q), (attention.k_proj, read), (attention.v_proj, read))
        )
        cos, sin = (each[:, :, None] for each in turns)
        key = _turned(attention.k_norm(key), cos, sin).transpose(1, 2)
        query = _turned(attention.q_norm(query), cos[:, -q.shape[1] :], sin[:, -q.shape[1] :]).transpose(1, 2)
        seen = rows.cache.update(key, value.transpose(1, 2), index)
        mixed = functional.scaled_dot_product_attention(query, *seen, mask, enable_gqa=True)
        attended: Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return attended


@dataclass
class _Masks:
    head: DFlashHead
    rows: HeadRows
    steps: int = 0
    found: Tensor = field(init=False)

    def feed(self, tokens: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch 1 vocab"]:
        """See `Chain`; drafts are not read."""
        if self.steps == 0:
            self.found = self.head.run(tokens, self.rows)
        self.steps += 1
        return self.found[:, self.steps - 1 : self.steps]

    def finish(self) -> None:
        """All is cached."""


def _turned(
    entries: Float[Tensor, "batch n heads dim"],
    cos: Float[Tensor, "batch n 1 dim"],
    sin: Float[Tensor, "batch n 1 dim"],
) -> Float[Tensor, "batch n heads dim"]:
    first, second = entries.chunk(2, dim=-1)
    return entries * cos + torch.cat([-second, first], dim=-1) * sin
