"""``python hybrid.py FOLDER``: save a tiny random Qwen3-Next, which has linear attention in three of four layers."""

import sys

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

torch.manual_seed(0)
config = Qwen3NextConfig(
    vocab_size=64,  # few tokens have clear gaps between their logits, so that rounding to 16 bit swaps none
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    mlp_only_layers=[0, 1, 2],
    max_position_embeddings=1024,
    bos_token_id=0,
    eos_token_id=1,
)
model = Qwen3NextForCausalLM(config)
with torch.no_grad():
    for name, weights in model.named_parameters():
        if weights.dim() >= 2:
            weights.normal_(0, 0.5 if "lm_head" in name or "embed" in name else 0.08)
model.save_pretrained(sys.argv[1])
