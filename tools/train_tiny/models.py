"""The two shapes of model, and their loss on text."""

import re
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from tools.train_tiny.corpus import windows
from tools.train_tiny.settings import EOS_ID, PAD_ID, Config


def target_config(config: Config, num_layers: int) -> Qwen3Config:
    """Deep and thin: at 24 layers 9.8 M parameters."""
    return _qwen3(config, num_layers, hidden_size=192, intermediate_size=512, num_attention_heads=6)


def draft_config(config: Config) -> Qwen3Config:
    """One layer; 256 wide just under 1 M parameters, over half of them the tied embedding."""
    width = config.draft_width
    heads = max(2, width // 32)
    return _qwen3(config, 1, hidden_size=width, intermediate_size=width * 3 // 2, num_attention_heads=heads)


def _qwen3(config: Config, num_layers: int, **shape: Any) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=config.vocab_size,
        num_hidden_layers=num_layers,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        **shape,
    )


def build(config: Qwen3Config, seed: int, compiled: bool) -> Qwen3ForCausalLM:
    """A freshly initialised model; with `compiled` its layers share one compiled graph (needs a C++ compiler)."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.set_attn_implementation("eager")  # compiled, it trains faster on a CPU than the fused kernel
    for layer in model.model.layers if compiled else ():
        layer.compile()
    return model


def grow(state: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Stack the trained block of layers on itself: layer i of the deeper model is layer i mod depth."""
    pattern = re.compile(r"model\.layers\.(\d+)\.")
    depth = 1 + max(int(m.group(1)) for m in map(pattern.match, state) if m)
    grown = {name: tensor for name, tensor in state.items() if not pattern.match(name)}
    for i in range(num_layers):
        prefix = f"model.layers.{i % depth}."
        grown |= {f"model.layers.{i}." + n[len(prefix) :]: t for n, t in state.items() if n.startswith(prefix)}
    return grown


def logits_of(model: Qwen3ForCausalLM, ids: Tensor) -> Tensor:
    """float32 logits computed under bfloat16 autocast.  # [batch, time] → [batch, time, vocab]"""
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=ids, use_cache=False).logits.float()


def text_loss(model: Qwen3ForCausalLM, batch: Tensor) -> Tensor:
    """Mean next-token cross-entropy in nats.  # [batch, time + 1]"""
    return F.cross_entropy(logits_of(model, batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Qwen3ForCausalLM, stream: Tensor, batches: int = 8) -> float:
    """`text_loss` over fixed random windows of 16 × 256 tokens."""
    return sum(text_loss(model, windows(stream, 16, 256, -1, i)).item() for i in range(batches)) / batches


def progress(label: str, loss: float, note: str = "") -> None:
    """One line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {label} loss {loss:.3f} {note}", flush=True)
