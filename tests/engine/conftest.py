"""Models on disk, for tests of loading."""

import pytest
import torch
import transformers


@pytest.fixture
def saved(tmp_path):
    """A Llama pair on disk, the draft's vocabulary padded by three rows."""
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for name, size in (("target", 61), ("draft", 64)):
        config = transformers.LlamaConfig(vocab_size=size, eos_token_id=[2, 7], max_position_embeddings=64, **small)
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / name)
    return tmp_path
