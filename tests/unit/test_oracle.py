"""The oracle against transformers' own greedy generation, with a neutral generation config."""

import pytest
import torch
from transformers import GenerationConfig

from refimpl import generate
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair

NEUTRAL = GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0, eos_token_id=5, max_new_tokens=16)


@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_same_as_generate_one_prompt_at_a_time(kind, ragged_prompts):
    pair = random_pair(kind)
    result = generate(pair, ragged_prompts, method="autoregressive", max_new_tokens=16, stop_token_ids=[5])
    for prompt, sequence in zip(ragged_prompts, result.sequences, strict=True):
        ids = torch.tensor([prompt])
        output = pair.target.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=NEUTRAL)
        assert sequence.token_ids == output[0, len(prompt) :].tolist()


def test_a_fresh_row_does_not_depend_on_how_its_prompt_is_fed(llama):
    whole, piecewise = llama.target.fresh_row(), llama.target.fresh_row()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    for token in prompt:
        last = piecewise([token])
    torch.testing.assert_close(last, whole(prompt), rtol=0, atol=1e-9)
