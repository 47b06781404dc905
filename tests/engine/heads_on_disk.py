"""Checkpoints with draft heads, tiny and random, in the layouts that are published."""

import json

import torch
import transformers
from safetensors.torch import load_file, save_file

HIDDEN, VOCAB_SIZE = 32, 11
SMALL = {
    "vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
ROUTED = SMALL | EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_experts": 4, "shared_expert_intermediate_size": 16, "head_dim": 8,
}  # fmt: skip
CONFIGURATIONS = {  # class, layers of the target, MTP layers, and the rest
    "deepseek": ("DeepseekV3Config", 2, 1, ROUTED | LATENT | {"num_key_value_heads": 4}),
    "deepseek, two": ("DeepseekV3Config", 2, 2, ROUTED | LATENT | {"num_key_value_heads": 4}),
    "glm": ("Glm4MoeConfig", 2, 1, ROUTED | {"head_dim": 8}),
    "qwen3_next": ("Qwen3NextConfig", 2, 1, SMALL | EXPERTS | DELTA),
}
QWEN3_NEXT = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "eh_proj": "fc",
    "shared_head.norm": "norm",
}


def write_checkpoint(kind, folder, seed=0):
    """A checkpoint with MTP layers: the last layers of a longer model, and what MTP layers have beside one."""
    name, num_layers, depth, settings = CONFIGURATIONS[kind]
    layers = {"num_hidden_layers": num_layers + depth}
    if kind == "qwen3_next":
        layers["layer_types"] = ["linear_attention", "full_attention", "full_attention"]
    longer = _random(getattr(transformers, name)(**settings, **layers), seed)
    longer.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for number in range(num_layers, num_layers + depth):
        like = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)  # so that drafts are often right
        norm = torch.zeros(HIDDEN) if kind == "qwen3_next" else torch.ones(HIDDEN)
        for part, about in {"enorm": norm, "hnorm": norm, "shared_head.norm": norm, "eh_proj": like}.items():
            tensors[f"model.layers.{number}.{part}.weight"] = (about + 0.1 * torch.randn_like(about)).double()
    if kind == "qwen3_next":
        tensors = {_as_qwen3_next(name, num_layers): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = num_layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:num_layers]
    if name != "Qwen3NextConfig":
        config["num_nextn_predict_layers"] = depth
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _random(config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(50.0 if "embed" in name else 6.0)
    return model


def _as_qwen3_next(name, num_layers):
    prefix = f"model.layers.{num_layers}."
    if not name.startswith(prefix):
        return name
    part = name.removeprefix(prefix)
    own = QWEN3_NEXT.get(part.removesuffix(".weight"))
    return f"mtp.{own}.weight" if own else f"mtp.layers.0.{part}"


def write_eagle3(folder, target, family="llama", drafts=8, num_layers=1, **fields):
    """An EAGLE-3 head in the format of the speculators library, which can propose `drafts` of the target's tokens."""
    own = {
        "norm_before_residual": True,
        "norm_before_fc": False,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    } | fields
    shapes = {"layers.0.hidden_norm": (HIDDEN,)} | ({"input_norm": (3 * HIDDEN,)} if own["norm_before_fc"] else {})
    return _write_speculator(folder, target, "eagle3", family, drafts, num_layers, own, shapes, 2 * HIDDEN)


def write_dflash(folder, target, drafts=8, num_layers=2, **fields):
    """A DFlash head in the same format."""
    own = {"block_size": 4, "mask_token_id": 7, "aux_hidden_state_layer_ids": [1, 2, 4]} | fields
    return _write_speculator(
        folder, target, "dflash", "qwen3", drafts, num_layers, own, {"hidden_norm": (HIDDEN,)}, HIDDEN
    )


def _write_speculator(folder, target, kind, family, drafts, num_layers, own, shapes, first_read):
    torch.manual_seed(1)
    config = {
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "target", "architectures": target.config.architectures},
        },
        "transformer_layer_config": SMALL | {"model_type": family, "num_hidden_layers": num_layers, "head_dim": 8},
        "draft_vocab_size": drafts,
    } | own
    shapes = {"fc": (HIDDEN, 3 * HIDDEN), "lm_head": (drafts, HIDDEN), "norm": (HIDDEN,)} | shapes
    for i in range(num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer(family, HIDDEN if i else first_read).items()}
    tensors = {f"{name}.weight": (len(shape) == 1) + 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    kept = torch.randperm(VOCAB_SIZE)[:drafts].sort().values
    tensors |= {"d2t": kept - torch.arange(drafts), "t2d": torch.isin(torch.arange(VOCAB_SIZE), kept)}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _layer(family, read):
    """Shapes of a decoder layer whose attention reads so many numbers."""
    heads, kv_heads, inner = 4 * 8, 2 * 8, 48
    norms = ("self_attn.q_norm", "self_attn.k_norm") if family == "qwen3" else ()
    return {
        "self_attn.q_proj": (heads, read), "self_attn.k_proj": (kv_heads, read), "self_attn.v_proj": (kv_heads, read),
        "self_attn.o_proj": (HIDDEN, heads), "mlp.gate_proj": (inner, HIDDEN), "mlp.up_proj": (inner, HIDDEN),
        "mlp.down_proj": (HIDDEN, inner), "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    } | dict.fromkeys(norms, (8,))  # fmt: skip


def write_llama(folder):
    """A target with four layers."""
    _random(transformers.LlamaConfig(**SMALL, num_hidden_layers=4), 0).save_pretrained(folder)
    return folder
