"""Models that the engine cannot drive are refused with a reason, where possible before their weights are read."""

import pytest
import torch
import transformers

from refimpl import InputError, generate, load_pair
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES

SMALL_GPT = {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2}
SMALL_NEO = {"vocab_size": 61, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64}
SMALL_LAYERS = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
UNLIKE = [
    ("MistralConfig", SMALL_LAYERS | {"max_position_embeddings": 3, "num_key_value_heads": 1}, "a context of 3"),
    ("GPTNeoConfig", SMALL_NEO | {"attention_types": [[["global", "local"], 1]]}, "local"),
    ("GPTNeoConfig", SMALL_NEO | {"attention_types": [[["global"], 2]]}, "attention of its own"),
    ("GPTNeoXJapaneseConfig", SMALL_LAYERS, "attention of its own"),
    ("MptConfig", {"vocab_size": 61, "d_model": 16, "n_layers": 2, "n_heads": 2}, "biases attention by the columns"),
    ("OpenAIGPTConfig", SMALL_GPT, "attention of its own"),
    ("RobertaConfig", SMALL_LAYERS | {"is_decoder": True}, "counts positions from 2, behind its padding id"),
]


@pytest.mark.parametrize(("config_class", "settings", "reason"), UNLIKE)
def test_models_that_cannot_be_driven_are_refused_in_one_line(config_class, settings, reason):
    config = getattr(transformers, config_class)(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    with pytest.raises(InputError, match=f"target pair: {type(model).__name__} .*{reason}") as error:
        make_pair(model, model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("config_class", "settings", "reason"),
    [
        ("T5Config", {}, "t5 is no causal language model"),
        ("WhisperConfig", {}, "WhisperForCausalLM is an encoder-decoder model, or the decoder of one"),
        ("MptConfig", {}, "MptForCausalLM biases attention by the columns of keys"),
        ("XGLMConfig", {}, "XGLMForCausalLM has attention of its own that cannot be set to sdpa"),
        ("DogeConfig", {}, "DogeForCausalLM attends only to the 2048 strongest keys of a longer row"),
        ("RwkvConfig", {}, "RwkvForCausalLM keeps a recurrent state"),
    ],
)
def test_the_reason_is_given_before_weights_are_read(tmp_path, saved, role, config_class, settings, reason):
    getattr(transformers, config_class)(**settings).save_pretrained(
        tmp_path / "odd"
    )  # gigabytes, of which none is there
    names = {"target": saved / "target", "draft": saved / "target"} | {role: tmp_path / "odd"}
    with pytest.raises(
        InputError, match=f"^{role} .*/odd: {reason}.*: choose another model, see docs/models.md$"
    ) as error:
        load_pair(**names)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_models_that_do_not_generate_are_refused_by_role(role):
    small = {"num_labels": 61, "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    config = transformers.LlamaConfig(num_attention_heads=2, pad_token_id=0, **small)
    models = {name: transformers.LlamaForCausalLM(config) for name in ("target", "draft")}
    models[role] = transformers.LlamaForSequenceClassification(config)
    with pytest.raises(InputError, match=f"{role} pair: LlamaForSequenceClassification is no causal language model"):
        make_pair(**models, stop_token_ids=[])


def test_attention_that_must_be_chosen_when_the_model_is_built():
    config = transformers.FalconConfig(**SMALL_LAYERS, alibi=False)
    for implementation in ("sdpa", "eager"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
        if implementation == "sdpa":
            assert generate(make_pair(model, model), [[1, 2]], max_new_tokens=2).sequences[0].token_ids
        else:
            with pytest.raises(InputError, match="cannot be set to sdpa: build it with attn_implementation='sdpa'"):
                make_pair(model, model)


def test_only_models_in_memory_make_a_pair(saved):
    model = transformers.AutoModelForCausalLM.from_pretrained(saved / "target")
    with pytest.raises(InputError, match="the target must be a transformers model, not 'a': load_pair takes"):
        make_pair("a", "b")
    with pytest.raises(InputError, match="the draft must be a transformers model, not Linear"):
        make_pair(model, torch.nn.Linear(1, 1))
    for arguments in ((model, model), ("tiny", model), (None,), ("tiny", 0), ("tiny", [])):
        with pytest.raises(InputError, match=r"must be a name or a path, not .*: make_pair takes models in memory"):
            load_pair(*arguments)
    with pytest.raises(InputError, match="target, draft and head must be a name or a path, not bool: make_pair takes"):
        load_pair("tiny", drafter="head", head=False)
    with pytest.raises(InputError, match="the target is on cpu, the draft on meta"):
        make_pair(model, transformers.LlamaForCausalLM(model.config).to("meta"))


@pytest.fixture
def longrope():
    """A pair whose RoPE has other frequencies for every row as soon as one row is longer than 32 tokens."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    small = TINY_ARCHITECTURES["llama"][1] | {"rope_parameters": rope | {"original_max_position_embeddings": 32}}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=61, **small))
    return make_pair(model, model)


def test_a_rope_that_depends_on_the_longest_row_bounds_the_context(longrope):
    assert (longrope.target.max_positions, longrope.draft.max_positions) == (32, 32)
    prompts, settings = [[1, 2, 3], [5] * 20], {"max_new_tokens": 12, "stop_token_ids": []}
    expected = generate(longrope, prompts, method="autoregressive", **settings)
    found = generate(longrope, prompts, **settings)
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in expected.sequences]
    with pytest.raises(InputError, match="does not fit the context of 32"):
        generate(longrope, [[1, 2, 3], [5] * 50], **settings)


def test_a_rope_that_waits_for_the_longest_row_is_not_recorded(longrope):
    with pytest.raises(InputError, match="cannot be recorded: its RoPE waits"):
        generate(longrope, [[1, 2, 3]], cuda_graphs=True, max_new_tokens=4)
