"""``python export.py PAIR FOLDER``: write a target and a draft of the architecture Qwen3 as GGUF in float32.

Needs gguf, in an environment of its own.
"""

import json
import sys
from pathlib import Path

from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map
from gguf.quants import dequantize
from gguf.utility import SafetensorsLocal


def write_sizes(writer: GGUFWriter, config: dict) -> None:
    """Copy the sizes of a model."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def write_tokenizer(writer: GGUFWriter, tokenizer: dict, config: dict) -> None:
    """Copy a byte-level vocabulary, except that only the pad ends a text: `ignore_eos` bans the token that does."""
    names = {token: name for name, token in tokenizer["model"]["vocab"].items()} | {config["eos_token_id"]: "[end]"}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([names[token] for token in range(config["vocab_size"])])
    writer.add_token_types([TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def write_weights(writer: GGUFWriter, file: Path, layers: int) -> None:
    """Copy the weights of a model in bfloat16, which float32 holds without rounding."""
    names = get_tensor_name_map(MODEL_ARCH.QWEN3, layers)
    for name, tensor in SafetensorsLocal(file).tensors.items():
        weights = dequantize(tensor.mmap_bytes(), GGMLQuantizationType.BF16).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weights)


def main() -> None:
    """Write both models."""
    pair, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("target", "draft"):
        config = json.loads((pair / name / "config.json").read_text())
        writer = GGUFWriter(folder / f"{name}.gguf", "qwen3")
        write_sizes(writer, config)
        write_tokenizer(writer, json.loads((pair / name / "tokenizer.json").read_text()), config)
        write_weights(writer, pair / name / "model.safetensors", config["num_hidden_layers"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


main()
