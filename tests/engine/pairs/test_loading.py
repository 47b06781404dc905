"""Loading real files: local folders, padded vocabularies, refusals by name. Nothing is downloaded."""

import json
import shutil
import sys
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from refimpl import InputError, generate, load_pair, verify
from refimpl.cli import main
from refimpl.commands.options import HeadOptions
from refimpl.pairs import PRESETS, make_pair
from refimpl.pairs.loading import _random_model
from refimpl.pairs.names import TINY
from refimpl.pairs.presets import ModelPreset
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair
from refimpl.pairs.vocabulary import VocabularyWarning, shared_vocab_size, warn_of_other_meanings


def test_bundled_pair(tiny):
    assert (tiny.vocab_size, tiny.dtype, str(tiny.device)) == (2048, torch.float32, "cpu")
    assert tiny.stop_token_ids == {tiny.tokenizer.eos_token_id}


def test_local_folders_with_padded_vocabulary(saved):
    pair = load_pair(saved / "target", saved / "draft", vocab_size=61)
    assert (pair.tokenizer, pair.stop_token_ids) == (None, {2, 7})  # no tokenizer there, so token ids only
    with pytest.raises(InputError, match="has no tokenizer: pass token ids"):
        generate(pair, ["text"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY / "target")
    tokenizer.save_pretrained(saved / "target")
    with pytest.raises(InputError, match="the target has 61 ids, the draft 64"):
        load_pair(saved / "target", saved / "draft")


def test_shared_prefix_of_padded_vocabularies(saved):
    models = [transformers.AutoModelForCausalLM.from_pretrained(saved / name) for name in ("target", "draft")]
    pair = make_pair(*models, vocab_size=61)
    assert pair.vocab_size == 61
    settings = {"max_new_tokens": 8, "stop_token_ids": []}
    prompts = [[1, 2, 3], [60]]
    expected = generate(pair, prompts, method="autoregressive", **settings)
    found = generate(pair, prompts, **settings)
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in expected.sequences]


class NamedIds:
    """The one thing of a tokenizer that is compared."""

    def __init__(self, *names):
        self.names = names

    def get_vocab(self):
        return {name: id_ for id_, name in enumerate(self.names)}


def test_ids_of_another_meaning_are_told():
    names = [f"t{i}" for i in range(100)]
    renamed, moved = NamedIds("<other>", *names[1:]), NamedIds("new", *names[:-1])
    with pytest.warns(VocabularyWarning, match=r"gives 100 of 100 token ids .*\(id 0: 'new' against 't0'\)"):
        warn_of_other_meanings(NamedIds(*names), moved)
    with pytest.warns(VocabularyWarning, match=r"gives 2 of 100 token ids .*\(id 98: None against 't98'\)"):
        warn_of_other_meanings(NamedIds(*names), NamedIds(*names[:98]))
    with warnings.catch_warnings(record=True, action="always") as told:
        warn_of_other_meanings(NamedIds(*names), renamed)
        warn_of_other_meanings(NamedIds(*names), None)
    assert told == []


def test_both_tokenizers_are_read_where_a_draft_has_one(tmp_path):
    for name in ("target", "draft"):
        shutil.copytree(TINY / name, tmp_path / f"tiny-{name}")
    with warnings.catch_warnings(record=True, action="always") as told:
        load_pair(tmp_path / "tiny-target", tmp_path / "tiny-draft")
    assert told == []
    path = tmp_path / "tiny-draft" / "tokenizer.json"
    data = json.loads(path.read_text())
    ids = sorted(data["model"]["vocab"].values())
    data["model"]["vocab"] = {name: ids[-1 - ids.index(id_)] for name, id_ in data["model"]["vocab"].items()}
    path.write_text(json.dumps(data))
    with pytest.warns(VocabularyWarning, match="few drafts will be accepted") as found:
        load_pair(tmp_path / "tiny-target", tmp_path / "tiny-draft")
    assert found[0].filename == __file__
    path.write_text("{")
    with warnings.catch_warnings(record=True, action="always") as told:
        load_pair(tmp_path / "tiny-target", tmp_path / "tiny-draft")
    assert told == []


@pytest.mark.parametrize("chosen", [{}, {"experts_implementation": "batched_mm"}])
def test_experts_in_float64_are_driven_as_they_come(tmp_path, chosen):
    small = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.MixtralConfig(**small, num_attention_heads=2, num_key_value_heads=1, num_local_experts=4)
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, **chosen)
    pairs = [load_pair(tmp_path, drafter="ngram", dtype="float64"), make_pair(model)]
    prompts, settings = [[5, 6, 5, 6, 5], [8]], {"drafter": "ngram", "batch_sizes": [2], "max_new_tokens": 6}
    for pair in pairs:
        assert verify(pair, prompts, methods=["inplace", "eqspec"], **settings).exact
    assert model.config._experts_implementation == chosen.get("experts_implementation", "eager")
    shorter = load_pair(tmp_path, drafter="ngram", dtype="float32").target
    assert shorter.model.config._experts_implementation == "grouped_mm", "other number formats keep what is faster"


@pytest.mark.parametrize(("target", "draft"), [(100, 32000), (2000, 100)])
def test_incompatible_vocabularies_name_both_sizes(target, draft):
    with pytest.raises(InputError, match=f"target has {target} ids, the draft {draft}"):
        shared_vocab_size(target, draft)


def test_without_a_tokenizer_nothing_says_which_ids_are_tokens(saved):
    models = [transformers.AutoModelForCausalLM.from_pretrained(saved / name) for name in ("target", "draft")]
    for order in (models, models[::-1]):
        with pytest.raises(InputError, match="without a tokenizer nothing says which of them are tokens: give vocab_s"):
            make_pair(*order)
    assert make_pair(models[0], models[0]).vocab_size == 61
    for size in (0, 62):
        with pytest.raises(
            InputError, match=f"vocab_size must be from 1 to 61, not {size}: the target has 61 ids, the"
        ):
            make_pair(*models, vocab_size=size)


def test_vocab_size_covers_the_tokenizer():
    assert shared_vocab_size(120, 128, tokenizer=range(100)) == 120
    assert shared_vocab_size(120, 128, tokenizer=range(100), vocab_size=100) == 100
    with pytest.raises(InputError, match=r"vocab_size must be from 100 to 120, not 99: .* the tokenizer has 100"):
        shared_vocab_size(120, 128, tokenizer=range(100), vocab_size=99)


def test_weights_come_from_safetensors_only(saved):
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY / "target")
    tokenizer.save_pretrained(saved / "target")
    state = transformers.AutoModelForCausalLM.from_pretrained(saved / "target").state_dict()
    (saved / "target" / "model.safetensors").unlink()
    torch.save(state, saved / "target" / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot load"):
        load_pair(saved / "target", saved / "target")


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("with_model", [True, False])
def test_an_adapter_is_refused_and_not_left_out(saved, role, with_model):
    (saved / role / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if not with_model:
        (saved / role / "config.json").unlink()
    with pytest.raises(InputError, match=f"cannot load the {role} .*/{role}: adapter_config.json: adapters are"):
        load_pair(saved / "target", saved / "draft", vocab_size=61)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_weights_of_an_unknown_kind_are_refused_and_not_taken_for_numbers(saved, role):
    path = saved / role / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "int3"}}))
    with pytest.raises(InputError, match=f"{role} .*/{role}: its weights are quantized by 'int3', which transformers"):
        load_pair(saved / "target", saved / "draft", vocab_size=61)


def spoil(folder, how):
    """Damage a checkpoint."""
    path = folder / "model.safetensors"
    if how == "garbage":
        path.write_bytes(b"garbage")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        tensors = load_file(path)
        if how == "missing":
            tensors.pop("model.layers.0.mlp.down_proj.weight")
        elif how == "shape":
            tensors["model.norm.weight"] = torch.ones(3)
        else:
            tensors["model.norm.weight"] *= float("nan")
        save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("garbage", "cannot load .*{role}: "),
        ("cut", "cannot load .*{role}: "),
        ("missing", r"cannot load .*{role}: its files lack 1 of the model's tensors: model.layers.0.mlp.down_proj"),
        ("shape", "cannot load .*{role}: "),
        ("nan", "{role} .*: LlamaForCausalLM gives logits that are not finite"),
    ],
)
def test_damaged_weights_are_refused_in_one_line(saved, role, how, message):
    spoil(saved / role, how)
    with pytest.raises(InputError, match=message.format(role=role)) as error:
        load_pair(saved / "target", saved / "draft")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("target", "more"),
    [("", {"drafter": "ngram"}), ("", {"draft": "x"}), ("x", {"draft": ""}), ("tiny", {"head": ""})],
    ids=str,
)
def test_an_empty_name_is_refused(target, more):
    """As that of a variable which a shell does not know."""
    message = "target, draft and head must be a name or a path, and one of them is empty"
    with pytest.raises(InputError, match=message):
        load_pair(target, **more)
    if not target:
        with pytest.raises(InputError, match=message):
            HeadOptions(target=target, draft=more.get("draft")).load(drafter=more.get("drafter", "model"))


def test_a_folder_in_the_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved))
    assert load_pair("~/target", "~/draft", vocab_size=61).vocab_size == 61


def test_a_folder_that_is_not_there(saved):
    with pytest.raises(InputError, match=r"cannot load the target \./nothere: there is no such folder"):
        load_pair("./nothere", saved / "draft")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_build_on_no_memory_and_agree_on_the_vocabulary(name):
    preset = PRESETS[name]
    sizes = []
    for model in (preset.target, preset.draft):
        config = getattr(transformers, model.config_class)(**model.settings)
        with torch.device("meta"):
            built = transformers.AutoModelForCausalLM.from_config(config)
        sizes.append((config.vocab_size, sum(p.numel() for p in built.parameters()) / 1e9))
    assert sizes[0][0] == sizes[1][0]
    assert 6 < sizes[0][1] < 10
    assert sizes[1][1] < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "tiny", "device": "warp"}, "unknown device 'warp'"),
        ({"target": "tiny", "device": "mps"}, "cannot run on mps: choose cpu, cuda or cuda:N"),
        ({"target": "tiny", "device": None}, "unknown device None"),
        ({"target": "tiny", "random_weights": True}, "random_weights needs a preset"),
        ({"target": "qwen3", "draft": "x", "random_weights": True}, r"not qwen3 \+ x"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        load_pair(**arguments)


def test_a_device_that_is_not_there_is_told_without_an_option_of_a_command(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=r"^device 'cuda' was asked for, but no CUDA device is available: choose cpu$"):
        load_pair("tiny", device="cuda")


@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_random_pairs_are_always_the_same_and_leave_the_generator_alone(kind):
    pairs = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        pairs.append(random_pair(kind, seed=3))
        assert torch.equal(torch.get_rng_state(), before)
    for one, two in zip((pairs[0].target, pairs[0].draft), (pairs[1].target, pairs[1].draft), strict=True):
        assert all(map(torch.equal, one.model.state_dict().values(), two.model.state_dict().values()))


def test_random_weights_leave_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    preset = ModelPreset("small", "LlamaConfig", {"vocab_size": 61, **TINY_ARCHITECTURES["llama"][1]})
    one, two = (_random_model(preset, torch.device("cpu"), torch.bfloat16, 3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert {each.dtype for each in one.parameters()} == {torch.bfloat16}
    assert torch.equal(one.lm_head.weight, two.lm_head.weight)


@pytest.mark.parametrize("enabled", [True, False])
def test_progress_bars_are_as_they_were_after_loading(saved, enabled):
    bars = transformers.utils.logging
    was_enabled = bars.is_progress_bar_enabled()
    try:
        (bars.enable_progress_bar if enabled else bars.disable_progress_bar)()
        load_pair(saved / "target", saved / "draft", vocab_size=61)
        assert bars.is_progress_bar_enabled() is enabled
    finally:
        (bars.enable_progress_bar if was_enabled else bars.disable_progress_bar)()


def test_the_command_takes_the_size_of_the_vocabulary(saved, tmp_path, capsys, monkeypatch):
    (tmp_path / "ids.jsonl").write_text('{"prompt": [1, 5, 9]}\n')
    options = ["--target", saved / "target", "--draft", saved / "draft", "--prompts", tmp_path / "ids.jsonl"]
    for more, code in (([], 2), (["--vocab-size", 61], 0)):
        monkeypatch.setattr(sys, "argv", [*map(str, ["refimpl", "generate", *options, "--max-new-tokens", 3, *more])])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code
        assert "give vocab_size" in err if code else len(json.loads(out)["token_ids"]) <= 3
