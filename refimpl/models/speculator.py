"""What EAGLE-3 and DFlash heads share: embedding, inner states of the target mixed to one, and their own vocabulary.

Modules are named as the tensors of the format that the speculators library writes.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig

FAMILIES = {"llama": "Llama", "qwen3": "Qwen3"}  # model types of the layers


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorSettings:
    """What a head's configuration says.

    Attributes:
        config: of its layers; their vocabulary is the target's.
        layers: see `Reads`.
        draft_vocab_size: tokens that it can propose.
        target_hidden_size: of each inner state.
    """

    config: PretrainedConfig
    layers: tuple[int, ...]
    draft_vocab_size: int
    target_hidden_size: int

    def part(self, name: str) -> Any:
        """A class of the layers' family."""
        kind = self.config.model_type
        return getattr(import_module(f"transformers.models.{kind}.modeling_{kind}"), FAMILIES[kind] + name)

    def norm(self, size: int | None = None) -> nn.Module:
        """A new norm, by default of states."""
        norm: nn.Module = self.part("RMSNorm")(size or self.config.hidden_size, eps=self.config.rms_norm_eps)
        return norm


class Speculator(nn.Module):
    """The weights of a head.

    Args:
        settings: its sizes.
    """

    d2t: Int[Tensor, " drafts"]

    def __init__(self, settings: SpeculatorSettings):
        super().__init__()
        config, hidden = settings.config, settings.config.hidden_size
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.fc = nn.Linear(len(settings.layers) * settings.target_hidden_size, hidden, bias=False)
        layer_class = settings.part("DecoderLayer")
        self.layers = nn.ModuleList([layer_class(config, i) for i in range(config.num_hidden_layers)])
        self.norm = settings.norm()
        self.lm_head = nn.Linear(hidden, settings.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(settings.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def logits(self, states: Float[Tensor, "batch q hidden"]) -> Float[Tensor, "batch q vocab"]:
        """Over the target's vocabulary; -inf for tokens that the head cannot propose."""
        drafts = self.lm_head(self.norm(states))
        impossible = drafts.new_full((*drafts.shape[:-1], self.vocab_size), float("-inf"))
        return impossible.index_copy(-1, torch.arange(len(self.d2t), device=drafts.device) + self.d2t, drafts)
