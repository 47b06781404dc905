"""Tiny random pairs of many architectures, for tests and conformance cases."""

from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig

from refimpl.core.errors import InputError
from refimpl.models.adapter import Pair
from refimpl.models.head import RegressiveBlock, RegressiveHead
from refimpl.pairs.classes import build
from refimpl.pairs.loading import make_pair

_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SMALL),
    "qwen3": ("Qwen3Config", _SMALL | {"head_dim": 8}),
    "glm4": ("Glm4Config", _SMALL | {"head_dim": 8, "partial_rotary_factor": 0.5}),
    "mistral": ("MistralConfig", _SMALL | {"sliding_window": None}),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "word_embed_proj_dim": 32,
            "dropout": 0.0,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2},
    ),
}
_WINDOWED = _SMALL | {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
_WINDOWED |= {"num_hidden_layers": 4}
ODD_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {  # layers that differ, and attention that SDPA has not
    "gemma2": ("Gemma2Config", _WINDOWED | {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 8}),
    "gpt_oss": ("GptOssConfig", _WINDOWED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma4": (
        "Gemma4TextConfig",
        _WINDOWED
        | {
            "global_head_dim": 16,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 61,
            "hidden_size_per_layer_input": 8,
        },
    ),
}
HEAD_WIDTH = 8
LEARNED_POSITIONS = ("gpt2", "opt")  # the others' rotary embeddings see differences of positions alone


def random_pair(
    kind: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    vocab_size: int = 61,
    draft_noise: float = 0.02,
) -> Pair:
    """Build a tiny random pair of an architecture, for tests: hundreds of parameters, made in milliseconds.

    Args:
        kind: one of `TINY_ARCHITECTURES` or `ODD_ARCHITECTURES`.
        seed: of the weights; the draft is a perturbed copy of the target, so that some drafts are accepted.
        dtype: float64 makes ties between shapes practically impossible.
        device: the weights are the same on any.
        vocab_size: token ids.
        draft_noise: 0 copies the target; large is adversarial.
    """
    known = TINY_ARCHITECTURES | ODD_ARCHITECTURES
    if kind not in known:
        raise InputError(f"unknown architecture {kind!r}: choose {', '.join(known)}")
    class_name, arguments = known[kind]
    config = getattr(transformers, class_name)(vocab_size=vocab_size, **arguments)
    own = {"attn_implementation": None, "experts_implementation": "eager"} if kind in ODD_ARCHITECTURES else {}
    models = random_models(config, seed=seed, dtype=dtype, draft_noise=draft_noise, **own)
    pair = make_pair(*(model.to(device) for model in models), stop_token_ids=(), name=f"random {kind}")
    return replace(pair, head=random_head(models[0].get_output_embeddings(), seed))


def random_head(lm_head: nn.Linear, seed: int) -> RegressiveHead:
    """A head with random weights on the LM head of a target."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        block = RegressiveBlock(lm_head.weight.shape[1], HEAD_WIDTH)
    return RegressiveHead(block.to(lm_head.weight), lm_head)


def random_models(
    config: PretrainedConfig, *, seed: int, dtype: torch.dtype, draft_noise: float, **settings: Any
) -> tuple[Any, Any]:
    """A random model of a configuration and a perturbed copy, on the CPU; `settings` go to transformers."""
    models = []
    with torch.random.fork_rng(devices=[]):  # everything is drawn on the CPU
        for scale in (0.0, draft_noise):
            torch.default_generator.manual_seed(seed)
            model = build(config, **{"attn_implementation": "sdpa"} | settings)
            model = model.to(dtype).eval()
            for parameter in model.parameters():
                if parameter.dim() > 1 and parameter.std() < 0.1:
                    parameter.data.mul_(6.0)
            torch.default_generator.manual_seed(seed + 1)
            for parameter in model.parameters():
                parameter.data.add_(scale * torch.randn_like(parameter))
            models.append(model)
    return models[0], models[1]
