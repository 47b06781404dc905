"""Which transformers models the engine can drive, as far as a model and its configuration declare it.

What a model declares is read before anything is computed, so weights need not be loaded to refuse it. The rest is
found by running it, see `refimpl.models.probe`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from refimpl.core.errors import InputError, UnsupportedModelError
from refimpl.models.alibi import biases_by_rank

ROPES_OF_BATCHES = ("longrope", "dynamic")
KNOWN_LAYERS = {  # as configurations call them
    "full_attention", "global", "sliding_attention", "chunked_attention", "linear_attention", "conv", "hybrid", "moe",
    "mlp",
}  # fmt: skip
KNOWN_CACHES = {
    "DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer", "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
}  # fmt: skip
UNKNOWN_CONTEXT = 1 << 20  # positions of a model that declares no bound
LONGEST_REASON = 200  # characters of another library's message


@contextmanager
def refusing_what_fails(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Turn whatever a model's own code raises into one line that names the model."""
    label = f"{name}: {type(model).__name__}"
    try:
        yield
    except UnsupportedModelError as error:
        raise InputError(f"{label} {error}") from error
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        failed = UnsupportedModelError(f"cannot be driven: {type(error).__name__}: {reason}")
        raise InputError(f"{label} {failed}") from error


def refuse_what_is_declared(model: PreTrainedModel) -> None:
    """Raise UnsupportedModelError for the first reason that a model or its configuration gives."""
    reason = next(_reasons(model, model.config.get_text_config(decoder=True)), None)
    if reason is not None:
        raise UnsupportedModelError(reason)


def _reasons(model: PreTrainedModel, config: PretrainedConfig) -> Iterator[str]:
    """Why a model cannot be driven, in words that follow its name."""
    if not model.can_generate():
        yield "is no causal language model, as it cannot generate"
    if _is_half(model):
        yield "is an encoder-decoder model, or the decoder of one, with cross-attention"
    if getattr(model, "_is_stateful", False) and not getattr(config, "layer_types", None):
        yield "keeps a recurrent state in a cache of its own"
    if getattr(getattr(config, "attn_config", None), "alibi", False):
        yield "biases attention by the columns of keys (attn_config.alibi = True), whichever positions they hold"
    offset = _first_position(model)
    if offset:
        yield f"counts positions from {offset}, behind its padding id, and not from 0"
    window = getattr(config, "keep_window_size", None)
    if window is not None:
        yield f"attends only to the {window} strongest keys of a longer row (keep_window_size)"
    shared = getattr(config, "num_kv_shared_layers", None)
    if shared and not hasattr(config, "kv_sharing_modes"):
        yield f"has layers that read the K/V of others (num_kv_shared_layers = {shared}), and does not say which"
    kinds = _layers_of_other_kinds(config)
    if kinds:
        yield f"has layers that are neither attention nor recurrent in a known way ({', '.join(kinds)})"


def _is_half(model: PreTrainedModel) -> bool:
    """Whether a model has an encoder, or layers that attend to the output of one."""
    declared = (model.config, type(model.config))
    if any(
        getattr(source, name, False) for source in declared for name in ("is_encoder_decoder", "add_cross_attention")
    ):
        return True
    return any(getattr(module, "encoder_attn", None) is not None for module in model.modules())


def _first_position(model: PreTrainedModel) -> int:
    """Position of the first token: not 0 where the table of positions keeps a row for padding, as RoBERTa's does."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    paddings = [getattr(table, "padding_idx", None) for table in tables]
    return max([0, *(padding + 1 for padding in paddings if padding is not None)])


def _layers_of_other_kinds(config: PretrainedConfig) -> list[str]:
    """Kinds of layers whose cache is neither one entry for each token nor a state of known parts."""
    caches = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - KNOWN_CACHES
    names = ("layer_types", "attention_layers")
    declared = {kind for name in names for kind in getattr(config, name, None) or []} - KNOWN_LAYERS
    return sorted(declared or caches)


def attends(model: PreTrainedModel) -> bool:
    """Whether any layer caches keys and values."""
    config = model.config.get_text_config(decoder=True)
    return any(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=config).layers)


def attends_by_itself(model: PreTrainedModel) -> bool:
    """Whether a model has attention of its own, which cannot be set, and is not one that takes our masks as it is."""
    return attends(model) and not model._supports_sdpa and not biases_by_rank(model)


def experts_of(model: PreTrainedModel) -> str:
    """How transformers computes a model's experts; empty for a model that has none, or computes them by itself."""
    if not any(getattr(part, "_can_set_experts_implementation", bool)() for part in model.modules()):
        return ""  # a model that also reads images has its experts in a part of another class
    config = model.config.get_text_config(decoder=True)
    return getattr(config, "_experts_implementation", None) or ""


def mixes_rows(model: PreTrainedModel) -> bool:
    """Whether tokens of one expert, of whichever rows, are one product, whose size no shape of a pass fixes."""
    return experts_of(model) not in ("", "batched_mm")


def ropes_of_batches(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Parameters of RoPEs whose frequencies change with the longest row of the batch, which they ask of every pass."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one, or one for each type of layer
    return [kind for kind in kinds if kind.get("rope_type") in ROPES_OF_BATCHES]


def steady_positions(config: PretrainedConfig) -> int:
    """Positions within which a row is computed independently of other rows.

    They end where the model does, and where a RoPE that adapts to the longest row leaves the context of pretraining.
    """
    known = getattr(config, "max_position_embeddings", None) or UNKNOWN_CONTEXT
    steady = [rope.get("original_max_position_embeddings") for rope in ropes_of_batches(config)]
    return min([known, *filter(None, steady)])
