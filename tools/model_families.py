"""Tiny configurations of transformers' causal families, and what becomes of each: driven, or refused for a reason.

`tools/models_table.py` makes a table of them, and tests decode with those that are accepted.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel

from refimpl import InputError
from refimpl.models.adapter import Pair
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import random_models

WINDOW = 24  # tokens of a sliding window
CONTEXT = 40
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS = {"head_dim": 8}
EXPERTS = HEADS | {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {name: value for name, value in EXPERTS.items() if name not in HEADS} | {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}  # fmt: skip
DECODER = {"is_decoder": True}
SLIDING = HEADS | {"sliding_window": WINDOW}
MIXED = SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}
HALF = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
SCALED = EXPERTS | {"layer_types": ["full_attention"] * 2, "no_rope_layers": [1, 0], "intermediate_size_mlp": 48}
UNSCALED = SCALED | {"attn_temperature_tuning": False}
PER_LAYER = MIXED | {
    "vocab_size_per_layer_input": 61, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 4,
    "activation_sparsity_pattern": [0.0, 0.0],
}  # fmt: skip
GLYPHS = {
    "pronunciation_vocab_size": 8, "shape_vocab_size": 8, "pronunciation_embed_dim": 8, "shape_embed_dim": 8,
}  # fmt: skip
TWO_WIDTHS = PER_LAYER | {"global_head_dim": 16}
LOOPED = SLIDING | {"num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1}
SAME_HEADS = PER_LAYER | {"global_head_dim": 8}
SHARED = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": MIXED["layer_types"] * 2,
    "activation_sparsity_pattern": [0.0] * 4,
}  # fmt: skip
AS_RELEASED, IN_NO_RELEASE = "as released", "in no release"
WIDTHS = {"num_key_value_heads": 2, "head_dim": 8}  # of vision
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "vision_output_dim": 32,
}  # fmt: skip

PIXTRAL = {"num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 1, "num_heads": 2, "out_hidden_size": 32}
DEEP = {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
KIMI_VISION = {"num_hidden_layers": 1, "num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
SCALED_BY_POSITION = {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.5} | SCALED_BY_POSITION
MINISTRAL = HEADS | {"model_type": "ministral3", "rope_parameters": YARN}
KIMI = LATENT | {"model_type": "deepseek_v3"}
MIXERS = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1,
    "ssm_state_size": 8,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "shared_intermediate_size": 48, "num_local_experts": 0, "position_embedding_type": "rope"}


@dataclass(frozen=True)
class Family:
    """A tiny configuration.

    Attributes:
        kind: transformers' ``model_type``.
        settings: beyond `SMALL`.
        variant: what sets it apart from others of its kind.
        partly_float32: it computes a part in float32 whatever its format, so that entries of the cache agree no better.
        release: whether published checkpoints are set so, where some settings of the kind are driven and others not.
    """

    kind: str
    settings: dict[str, Any]
    variant: str = ""
    partly_float32: bool = False
    release: str = ""

    @property
    def name(self) -> str:
        """Kind and variant."""
        return f"{self.kind}, {self.variant}" if self.variant else self.kind

    def config(self) -> PretrainedConfig:
        """The configuration; tokens end no sequence."""
        small = {} if "text_config" in self.settings else SMALL
        return CONFIG_MAPPING[self.kind](**copy.deepcopy(small | self.settings))

    def models(self, **settings: Any) -> tuple[PreTrainedModel, PreTrainedModel]:
        """A target and a draft in float64, always of the same weights."""
        chosen = {"experts_implementation": "eager", "attn_implementation": None} | settings  # others know no float64
        return random_models(self.config(), seed=3, dtype=torch.float64, draft_noise=0.02, **chosen)


def plain(settings: dict[str, Any], *kinds: str, **more: Any) -> list[Family]:
    """Families that differ in their kind alone."""
    return [Family(kind, settings, **more) for kind in kinds]


def with_images(
    kind: str,
    text: dict[str, Any],
    variant: str = "",
    *,
    partly_float32: bool = False,
    release: str = "",
    **vision: Any,
) -> Family:
    """A family that reads images, too; prompts here are of text alone."""
    settings = {"text_config": SMALL | text, "vision_config": VISION | vision}
    variant = ", ".join(filter(None, ("reads images", variant)))
    return Family(kind, settings, variant, partly_float32, release)


def with_class(name: str, kind: str, text: dict[str, Any], *, variant: str = "reads images", **more: Any) -> Family:
    """A family that no mapping of causal models has: its class is the one that its checkpoints name."""
    vision = {"hidden_size": 16, "intermediate_size": 16} | more.pop("vision")
    return Family(kind, {"architectures": [name], "text_config": SMALL | text, "vision_config": vision} | more, variant)


FAMILIES = [
    *plain({}, "biogpt", "bitnet", "ctrl", "falcon", "fuyu", "gpt2", "gpt-sw3", "gpt_bigcode", "gpt_neox", "granite"),
    *plain({}, "hyperclovax", "jais2", "moshi", "nanochat", "nemotron", "olmo", "olmo2", "opt", "persimmon", "phi"),
    *plain({}, "smollm3", "stablelm", "apertus", "apertus1p5_text", "arcee", "cohere", "diffllama", "exaone"),
    *plain(HEADS, "ernie4_5", "gemma", "glm", "glm4", "helium", "hrm_text", "hunyuan_v1_dense", "internlm3"),
    *plain(HEADS, "iquestcoder", "llama", "ministral3", "qwen3", "seed_oss"),
    *plain(EXPERTS, "aria_text", "cohere2_moe", "dots1", "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe"),
    *plain(EXPERTS, "granitemoe", "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "mellum", "mixtral", "olmoe"),
    *plain(EXPERTS, "phimoe", "qwen2_moe", "qwen3_moe", "sarvam_moe"),
    *plain(EXPERTS, "laguna", "minimax_m2", "minimax_m3_vl_text", "solar_open", partly_float32=True),
    Family("afmoe", EXPERTS | {"sliding_window": WINDOW}, "sliding window"),
    Family("jetmoe", EXPERTS | {"kv_channels": 8}),
    *plain(LATENT, "axk1", "deepseek_v3", "glm4_moe_lite", "minicpm3", "sarvam_mla", "youtu"),
    Family("longcat_flash", LATENT | {"head_dim": 4}),
    Family("deepseek_v2", LATENT, partly_float32=True),
    Family("cwm", MIXED, "mixed windows"),
    Family("gemma3_text", MIXED, "mixed windows"),
    Family("exaone4", MIXED, "mixed windows"),
    Family("olmo3", MIXED, "mixed windows"),
    Family("cohere2", MIXED, "mixed windows"),
    Family("modernbert-decoder", {"local_attention": 2 * WINDOW}, "mixed windows"),
    Family("qwen2", {}, "full attention"),
    Family("qwen2", SLIDING | {"use_sliding_window": True, "max_window_layers": 1}, "mixed windows"),
    Family("mistral", HEADS | {"sliding_window": None}, "full attention"),
    Family("mistral", SLIDING, "sliding window"),
    Family("ministral", SLIDING, "sliding window"),
    Family("phi3", {"sliding_window": None}, "full attention"),
    Family("phi3", {"sliding_window": WINDOW}, "sliding window"),
    Family("starcoder2", {"sliding_window": WINDOW}, "sliding window"),
    Family("beam", SLIDING, "sliding window", partly_float32=True),
    Family("llama4_text", UNSCALED, "attention not scaled", partly_float32=True, release=IN_NO_RELEASE),
    Family("llama4_text", SCALED | {"floor_scale": 4}, "attention scaled by position", True, AS_RELEASED),
    Family("kolibri1", EXPERTS, partly_float32=True),
    Family("gemma3n_text", PER_LAYER, "mixed windows", release=IN_NO_RELEASE),
    Family("gemma3n_text", PER_LAYER | SHARED, "layers that share K/V", release=AS_RELEASED),
    Family("gemma4_text", SAME_HEADS, "mixed windows", release=IN_NO_RELEASE),
    Family("gemma4_text", TWO_WIDTHS, "heads of two widths", release=AS_RELEASED),
    Family("gemma4_text", TWO_WIDTHS | SHARED, "layers that share K/V", release=AS_RELEASED),
    Family("gemma4_unified_text", SAME_HEADS, "mixed windows", release=IN_NO_RELEASE),
    Family("gemma4_unified_text", TWO_WIDTHS, "heads of two widths", release=AS_RELEASED),
    Family("dory", LOOPED, "a cache for each loop"),
    Family("dory", LOOPED | {"recurrent_kv_cache_mode": "last_loop"}, "a cache for the last loop"),
    with_images("gemma3", MIXED),
    with_images("gemma4", SAME_HEADS, global_head_dim=8, release=IN_NO_RELEASE, **WIDTHS),
    with_images("gemma4", TWO_WIDTHS, "heads of two widths", global_head_dim=8, release=AS_RELEASED, **WIDTHS),
    with_images("llama4", UNSCALED, partly_float32=True, release=IN_NO_RELEASE),
    with_images(
        "llama4", SCALED | {"floor_scale": 4}, "attention scaled by position", partly_float32=True, release=AS_RELEASED
    ),
    with_class("Mistral3ForConditionalGeneration", "mistral3", HEADS, variant="Mistral Small 3", vision=PIXTRAL),
    with_class("Mistral3ForConditionalGeneration", "mistral3", MINISTRAL, variant="Ministral 3", vision=PIXTRAL),
    with_class("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", SECTIONS, vision=QWEN_VISION),
    with_class("Qwen3VLForConditionalGeneration", "qwen3_vl", HEADS | SECTIONS, vision=QWEN_VISION | DEEP),
    with_class("Kimi_K25ForConditionalGeneration", "kimi_k25", KIMI, vision=KIMI_VISION, projection_hidden_size=16),
    with_images("mllama", {"cross_attention_layers": [1]}, attention_heads=2, num_global_layers=1),
    *plain(DECODER, "bert", "bert-generation", "electra", "ernie"),
    Family("bert", {}, "not as a decoder"),
    Family("roc_bert", DECODER | GLYPHS),
    *plain(DECODER, "roberta", "camembert", "data2vec-text", "xlm-roberta"),
    *plain(DECODER, "roberta-prelayernorm", "xlm-roberta-xl", "xmod"),
    *plain({}, "bloom", partly_float32=True),
    *plain({}, "doge", "gpt_neox_japanese", "mpt", "openai-gpt"),
    *plain(SLIDING, "gemma2", "vaultgemma", partly_float32=True),
    *plain({"rotary_dim": 4}, "codegen", "gptj"),
    *plain({}, "big_bird", "cpmant", "xglm", "xlm"),
    *plain(DECODER, "megatron-bert", "rembert", "roformer"),
    Family("falcon", {"alibi": True}, "with ALiBi"),
    Family("gpt_neo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}),
    *plain(EXPERTS | {"sliding_window": WINDOW}, "gpt_oss", "mimo_v2_flash"),
    *plain(EXPERTS | {"sliding_window": WINDOW}, "granite_swa", "granitemoe_swa", "flint", partly_float32=True),
    *plain(EXPERTS, "inkling_text"),
    *plain(HALF, "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus"),
    *plain(HALF, "plbart", "trocr", "whisper"),
    *plain({}, "mamba", "falcon_mamba", "rwkv", "xlstm"),
    *plain(EXPERTS | MIXERS, "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", partly_float32=True),
    Family("jamba", EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1}, partly_float32=True),
    *plain(EXPERTS, "minimax", "qwen4_exp_text", "inkling2_loop_text"),
    Family("bailing_hybrid", EXPERTS | {"num_hidden_layers": 6, "num_key_value_heads": 4}),
    Family("granitemoehybrid", MAMBA | {"layer_types": ["full_attention"] * 2}, "attention only"),
    Family("granitemoehybrid", MAMBA | {"layer_types": ["linear_attention", "full_attention"]}, partly_float32=True),
    Family("falcon_h1", HEADS | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8}, partly_float32=True),
    Family("olmo_hybrid", HEADS | {"layer_types": ["linear_attention", "full_attention"]}, partly_float32=True),
    *plain(HEADS, "lara_mini"),
    Family("recurrent_gemma", {"num_hidden_layers": 3, "attention_window_size": WINDOW}),
    Family("mamba2", {"num_heads": 4, "head_dim": 16, "n_groups": 1}),
    *plain(LATENT, "axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa", "hy_v4"),
    Family("lfm2", {"full_attn_idxs": [1]}, "with convolutions"),
    Family("lfm2_moe", EXPERTS | {"layer_types": ["conv", "full_attention"]}, "with convolutions"),
    Family("lfm3", HEADS | {"num_hidden_layers": 6}, "with convolutions"),
]  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}


@dataclass(frozen=True)
class Verdict:
    """Whether a family is driven.

    Attributes:
        pair: None where it is refused.
        text: the context, or the reason.
    """

    pair: Pair | None
    text: str


def judge(family: Family) -> Verdict:
    """Try to make a pair of a family."""
    models = family.models()
    name = type(models[0]).__name__
    try:
        pair = make_pair(*models, stop_token_ids=())
    except InputError as error:
        start, end = f"target pair: {name} ", ": choose another model, see docs/models.md"
        return Verdict(None, str(error).removeprefix(start).removesuffix(end))
    shape, positions = pair.target.kv_shape, pair.target.max_positions
    notes = [f"context capped at {positions}"] if positions < CONTEXT else []
    if shape.key_dim != shape.value_width:
        notes.append(f"keys and values differ in width ({shape.key_dim} and {shape.value_width})")
    if shape.states:
        notes.append("keeps a recurrent state")
    if family.partly_float32:
        notes.append("computes a part in float32")
    return Verdict(pair, "; ".join(notes))
