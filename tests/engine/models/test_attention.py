"""Attention on shared keys without expansion, and the probe that a model obeys explicit positions and masks."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, BloomConfig, FalconConfig, LlamaConfig, LlamaForCausalLM

from refimpl import InputError, generate
from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.store import Block
from refimpl.models.adapter import HuggingFaceLM, refuse_unless_positions_and_mask_count
from refimpl.models.attention import NAME, additive_mask, grouped_attention, leave_out_cudnn
from refimpl.models.block_cache import BlockCache, cache_argument, call_with_cache
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import random_models


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("heads", [2, 4, 6])
@pytest.mark.parametrize("queries", [1, 5])
def test_folded_queries_give_what_expanded_keys_give(heads, queries):
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(3, queries, heads, 8, generator=generator, dtype=torch.float64).transpose(1, 2)
    key, value = torch.randn(2, 3, 2, 9, 8, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 1, queries, 9, generator=generator) < 0.6
    mask[..., 0] = True
    groups = heads // 2
    expected = scaled_dot_product_attention(
        query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), attn_mask=mask, scale=0.3
    ).transpose(1, 2)
    module = torch.nn.Module()
    module.num_key_value_groups = groups
    found, _ = grouped_attention(
        module, query, key, value, additive_mask(mask, torch.float64, groups), scaling=0.3, is_causal=False
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous(), "a model may view the heads of a token as one vector"


def test_keys_and_values_are_read_as_stored(monkeypatch):
    seen = []
    original = scaled_dot_product_attention

    def spy(query, key, value, **settings):
        seen.append((query.shape[1], key.shape[1]))
        return original(query, key, value, **settings)

    lm = HuggingFaceLM(llama())
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    refuse_unless_positions_and_mask_count(lm)
    masked_passes = seen[-4:]  # two blocks of two rows through two layers
    assert masked_passes == [(2, 2)] * 4, "queries of four heads run on the two heads that are stored"


def test_cudnn_is_left_out_of_the_choice_of_kernels():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        HuggingFaceLM(llama())
        assert torch.backends.cuda.cudnn_sdp_enabled(), "on a CPU nothing is switched off"
        leave_out_cudnn()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


class OwnPositions(LlamaForCausalLM):
    def forward(self, *args, position_ids=None, **kwargs):
        return super().forward(*args, **kwargs)


class NoMask(LlamaForCausalLM):
    def forward(self, *args, attention_mask=None, **kwargs):
        return super().forward(*args, **kwargs)


class FirstRowsMask(LlamaForCausalLM):
    def forward(self, *args, attention_mask=None, **kwargs):
        if attention_mask is not None:
            attention_mask = attention_mask[:1].expand_as(attention_mask)
        return super().forward(*args, attention_mask=attention_mask, **kwargs)


def own_window(module, query, key, value, attention_mask, **settings):
    """Attention to five columns, the last of all taken for that of the last query."""
    if attention_mask is not None:
        places = torch.arange(key.shape[2])
        far = places <= places[-query.shape[2] :, None] - 5
        hidden = torch.zeros(far.shape, dtype=query.dtype).masked_fill(far, -1e4)
        attention_mask = attention_mask + hidden.repeat(attention_mask.shape[2] // len(far), 1)
    return grouped_attention(module, query, key, value, attention_mask, **settings)


def test_attention_that_counts_columns_from_the_end_is_refused():
    """As local attention does; only unused columns after the queries bring it to light."""
    try:
        AttentionInterface.register(NAME, own_window)
        with pytest.raises(InputError, match="does not honour explicit positions and a 4-D mask"):
            HuggingFaceLM(llama(), "odd")
    finally:
        AttentionInterface.register(NAME, grouped_attention)


class FewPositions(LlamaForCausalLM):
    """Knows all positions that it counts by itself, and 16 of those that it is given."""

    def forward(self, *args, position_ids=None, **kwargs):
        position_ids = None if position_ids is None else position_ids.clamp(max=15)
        return super().forward(*args, position_ids=position_ids, **kwargs)


class LongestRowsPositions(LlamaForCausalLM):
    """Shifts every row by as much as the longest is beyond 16 tokens, as some RoPEs do with frequencies."""

    def forward(self, *args, position_ids=None, **kwargs):
        if position_ids is not None and position_ids.max() > 15:
            position_ids = position_ids * 2
        return super().forward(*args, position_ids=position_ids, **kwargs)


class LastLogits(LlamaForCausalLM):
    def forward(self, *args, logits_to_keep=0, **kwargs):
        return super().forward(*args, logits_to_keep=1, **kwargs)


ASKS, DEAF = (
    "computes with the length of the cache, which differs from row to row",
    "does not honour explicit positions and a 4-D mask",
)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (OwnPositions, ASKS),
        (NoMask, ASKS),
        (FirstRowsMask, DEAF),
        (FewPositions, DEAF),
        (LongestRowsPositions, DEAF),
        (LastLogits, r"gives logits of shape \(3, 1, 31\) where \(3, 2, 31\) were asked for"),
    ],
)
def test_models_that_do_not_obey_are_refused(odd, reason):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=f"odd: {odd.__name__} {reason}: choose another model, see docs/models.md"):
        HuggingFaceLM(odd(llama().config), "odd")


@pytest.mark.parametrize("asked", ["sinks", "position_bias", "block_indices", "anything"])
def test_more_than_a_masked_softmax_is_refused(asked):
    query, key, value = torch.zeros(1, 4, 2, 8), torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8)
    mask = torch.zeros(1, 1, 4, 3)
    plain = {"dropout": 0.0, "is_causal": None, "sliding_window": 4, asked: None}
    grouped_attention(torch.nn.Module(), query, key, value, mask, scaling=1.0, **plain)
    with pytest.raises(UnsupportedModelError, match=rf"more than a masked softmax \({asked}\)"):
        grouped_attention(torch.nn.Module(), query, key, value, mask, scaling=1.0, **plain | {asked: torch.ones(4)})


@pytest.mark.parametrize("use", [lambda n: n + 1, lambda n: 1 - n, lambda n: n > 0, lambda n: n == 0, bool, int, range])
def test_a_cache_of_a_block_has_no_length(use):
    ids = torch.zeros(1, 1, dtype=torch.long)
    layers = HuggingFaceLM(llama()).cached
    cache = BlockCache(layers, Block(ids, ids, torch.ones(1, 1, 1, 1, dtype=torch.bool), lambda *_: None))
    with pytest.raises(UnsupportedModelError, match=ASKS):
        use(cache.get_seq_length())
    with pytest.raises(UnsupportedModelError, match=ASKS):
        torch.arange(3) + cache.get_seq_length(1)
    with pytest.raises(UnsupportedModelError, match=ASKS):
        cache.get_mask_sizes(2, 0)


class Since524(torch.nn.Module):
    def forward(self, input_ids, cache=None, **kwargs):
        return input_ids, cache, kwargs


class Before(torch.nn.Module):
    def forward(self, input_ids, past_key_values=None, **kwargs):
        return input_ids, past_key_values, kwargs


@pytest.mark.parametrize("base", [Since524, Before])
def test_a_cache_is_called_as_the_model_calls_it(base):
    class HandsOn(base):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    for model in (base(), HandsOn()):
        assert call_with_cache(model, "cache", input_ids=1, more=2) == (1, "cache", {"use_cache": True, "more": 2})
    assert cache_argument(torch.nn.Linear(1, 1)) == "past_key_values"


ALIBI = {
    "falcon": FalconConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, multi_query=False
    ),
    "bloom": BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4),
}


@pytest.mark.parametrize("kind", ALIBI)
def test_alibi_goes_by_positions_whatever_columns_keys_are_in(kind):
    settings = {"seed": 2, "dtype": torch.float64, "draft_noise": 0.02, "attn_implementation": None}
    pair = make_pair(*random_models(ALIBI[kind], **settings), stop_token_ids=())
    model, prompts = pair.target.model, [[5], [7, 0, 2, 9], [1 + i % 60 for i in range(37)]]
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 16}
    rows = [torch.tensor([prompt]) for prompt in prompts]
    texts = [model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist() for ids in rows]
    for method in ("inplace", "realigned+grouped", "masked", "paged+continuous"):
        checks = "oracle" if kind == "falcon" else "device"  # Bloom's softmax is float32
        found = generate(pair, prompts, method=method, batch_size=3, max_new_tokens=16, checks=checks).sequences
        assert [prompt + s.token_ids for prompt, s in zip(prompts, found, strict=True)] == texts
