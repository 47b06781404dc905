"""The published pairs, with their architectures written out so that they can be built without a download.

The hyperparameters are those of the models' public configuration files.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """A hub id, and the configuration that builds the same architecture with random weights.

    Attributes:
        hub_id: name on the model hub.
        config_class: configuration class in transformers.
        settings: its arguments.
    """

    hub_id: str
    config_class: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PairPreset:
    """A target and the draft published with it."""

    target: ModelPreset
    draft: ModelPreset


def _qwen3(hub_id: str, hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> ModelPreset:
    settings = {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": tied,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    }
    return ModelPreset(hub_id, "Qwen3Config", settings)


def _vicuna(hub_id: str, hidden: int, intermediate: int, layers: int, heads: int) -> ModelPreset:
    settings = {
        "vocab_size": 32000,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return ModelPreset(hub_id, "LlamaConfig", settings)


_GLM4_9B = ModelPreset(
    "zai-org/GLM-4-9B-0414",
    "Glm4Config",
    {
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": 151329,
        "eos_token_id": [151329, 151336, 151338],
    },
)

# A Qwen-style 0.6 B model whose embedding table was transplanted to the GLM-4 vocabulary.
_GLM4_DRAFT = ModelPreset(
    "jukofyork/GLM-4.5-DRAFT-0.6B-v3.0",
    "Qwen2Config",
    {
        "vocab_size": 151552,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": 151329,
    },
)

PRESETS: dict[str, PairPreset] = {
    "vicuna": PairPreset(
        _vicuna("lmsys/vicuna-7b-v1.3", 4096, 11008, 32, 32), _vicuna("double7/vicuna-68m", 768, 3072, 2, 12)
    ),
    "qwen3": PairPreset(
        _qwen3("Qwen/Qwen3-8B", 4096, 12288, 36, 32, tied=False),
        _qwen3("Qwen/Qwen3-0.6B", 1024, 3072, 28, 16, tied=True),
    ),
    "glm4": PairPreset(_GLM4_9B, _GLM4_DRAFT),
}
