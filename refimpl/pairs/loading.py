"""Load pairs: bundled, preset, or any two local paths or hub ids. Weights come from safetensors only."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.quantizers import AutoHfQuantizer

from refimpl.core.drafting import DrafterName
from refimpl.core.engine_settings import LAYERS, LayersName
from refimpl.core.errors import InputError, UnsupportedModelError, require, shown
from refimpl.core.reading import is_folder
from refimpl.core.tokens import check_stops
from refimpl.core.values import require_bool, require_int
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.models.checks import attends_by_itself, refuse_what_is_declared, refusing_what_fails
from refimpl.pairs.checkpoint import Checkpoint
from refimpl.pairs.classes import build, causal_class
from refimpl.pairs.heads import load_head
from refimpl.pairs.names import Named, find_device, find_dtype, find_models
from refimpl.pairs.presets import PRESETS, ModelPreset
from refimpl.pairs.reading import from_pretrained, quiet
from refimpl.pairs.vocabulary import shared_vocab_size, warn_of_other_meanings

TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "*.tiktoken")


def load_pair(
    target: str | Path = "tiny",
    draft: str | Path | None = None,
    *,
    drafter: DrafterName = "model",
    head: str | Path | None = None,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    random_weights: bool = False,
    trust_remote_code: bool = False,
    stop_token_ids: list[int] | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
    layers: LayersName = "auto",
) -> Pair:
    """Load a target and its draft.

    Args:
        target: ``"tiny"`` (bundled), ``"vicuna"``, ``"qwen3"``, ``"glm4"`` (published pairs), or a path or hub id.
        draft: path or hub id of the draft; needed when `target` is not the name of a pair.
        drafter: what will propose tokens; for ``"ngram"``, ``"suffix"`` and ``"head"`` no draft is loaded, and
            `target` may be any path or hub id.
        head: draft head that was trained for the target: a file, or the folder of an EAGLE-3 or DFlash head or of a
            checkpoint with MTP layers; None for the target's own MTP layers, and for the file that ``"tiny"`` has.
        device: for example ``"cpu"`` or ``"cuda"``; a CUDA device becomes the process's current one.
        dtype: number format; None takes float32 on a CPU and bfloat16 elsewhere.
        random_weights, seed: build a preset's architecture with random weights on the device, without any download.
        trust_remote_code: let code that comes with a model run; off unless asked for.
        stop_token_ids: replaces the union of the generation config's and the tokenizer's end-of-sequence ids.
        vocab_size: number of ids that are tokens, see `make_pair`.
        layers: what runs the layers of both models, see `refimpl.models.layers.choose_layers`.

    Warns:
        VocabularyWarning, GenerationConfigWarning: the two tokenizers give many ids another meaning; see `make_pair`.

    Raises:
        InputError: unknown name, unreachable hub, missing device, incompatible vocabularies, unsupported model.
    """
    require_bool("random_weights", random_weights)
    require_bool("trust_remote_code", trust_remote_code)
    require_int("seed", seed, -(2**63), 2**63 - 2)  # the draft's is one more
    named, where = find_models(target, draft, drafter, head), find_device(device)
    number_format = find_dtype(dtype, where)
    if random_weights:
        models, tokenizer = _random_models(named, where, number_format, seed), None
    else:
        models, tokenizer = _read_pair(named, where, number_format, trust_remote_code)
    ids: dict[str, Any] = {"tokenizer": tokenizer, "stop_token_ids": stop_token_ids, "vocab_size": vocab_size}
    return make_pair(*models, head=named.head, name=named.title, layers=layers, **ids)


def _driven(given: list[tuple[str, PreTrainedModel]], name: str, layers: LayersName) -> list[HuggingFaceLM]:
    """The models of a pair by their roles, as the engine drives them."""
    return [HuggingFaceLM(model, f"{role} {model.name_or_path or name}", layers) for role, model in given]


def make_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    *,
    head: str | Path | None = None,
    tokenizer: Any = None,
    stop_token_ids: Collection[int] | None = None,
    vocab_size: int | None = None,
    name: str = "pair",
    layers: LayersName = "auto",
) -> Pair:
    """Pair two transformers models that are in memory already, on one device and each in its number format.

    Both are changed for good: see `HuggingFaceLM`.

    Args:
        target, draft: causal models with one vocabulary; padding rows may differ.
            Without a draft only drafters that need none can propose.
        head: of the target: a file, or the folder of an EAGLE-3 or DFlash head or of a checkpoint with MTP layers.
        tokenizer: turns text into ids and back; None for prompts of ids alone.
        stop_token_ids: None for the union of the target's generation config's and the tokenizer's end-of-sequence ids.
        vocab_size: ids that are tokens, not padding rows; needed where sizes differ and there is no tokenizer.
        name: how results and errors call the pair.
        layers: what runs the layers of both, see `refimpl.models.layers.choose_layers`.

    Warns:
        GenerationConfigWarning: settings of the target's generation config, as num_beams, are not applied.

    Raises:
        InputError: vocabularies that differ by more than padding rows, models on two devices, a model that cannot be
            driven (see docs/models.md), or a head of another target.
    """
    given = [("target", target), *([("draft", draft)] if draft is not None else [])]
    _check_objects(given, tokenizer, head, layers)
    models = _driven(given, name, layers)
    size = shared_vocab_size(models[0].vocab_size, models[-1].vocab_size, tokenizer, vocab_size)
    check_stops(stop_token_ids, (), size)
    checkpoint = Checkpoint(target)
    return Pair(
        models[0],
        models[1] if draft is not None else None,
        tokenizer=tokenizer,
        stop_token_ids=frozenset(_eos_ids(target, tokenizer) if stop_token_ids is None else stop_token_ids),
        vocab_size=size,
        name=name,
        shape_bound=models[0].shape_bound,
        checkpoint=checkpoint.processing if checkpoint.applied else None,
        unapplied=checkpoint.unapplied,
        head=None if head is None else load_head(Path(head).expanduser(), target),
    )


def _check_objects(models: list[tuple[str, PreTrainedModel]], tokenizer: Any, head: Any, layers: Any) -> None:
    """Raise InputError for what is no model of transformers, no tokenizer, no path of a head, or runs no layers."""
    require(layers in LAYERS, f"layers must be one of {', '.join(LAYERS)}, not {shown(layers)}")
    for role, model in models:
        if not isinstance(model, PreTrainedModel):
            given = repr(model) if isinstance(model, str) else type(model).__name__
            raise InputError(f"the {role} must be a transformers model, not {given}: load_pair takes names and paths")
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise InputError(f"the tokenizer must be one of transformers, not {type(tokenizer).__name__}")
    devices = [model.device for _, model in models]
    require(
        len(set(devices)) == 1, f"the target is on {devices[0]}, the draft on {devices[-1]}: they must share a device"
    )
    if head is not None and not isinstance(head, str | os.PathLike):
        raise InputError(f"the head must be the path of its file, not {type(head).__name__}")


def _read_pair(
    named: Named, device: torch.device, dtype: torch.dtype, trust_code: bool
) -> tuple[list[PreTrainedModel], Any]:
    """The models, and the target's tokenizer; warns if the draft's gives ids another meaning."""
    roles = zip(("target", "draft"), named.paths, strict=False)  # a target alone has one
    models = [_load_model(role, path, device, dtype, trust_code) for role, path in roles]
    tokenizer = _load_tokenizer("target", named.paths[0], trust_code)
    for other in set(named.paths[1:]) - {named.paths[0]}:
        warn_of_other_meanings(tokenizer, _tokenizer_if_any(other, trust_code))
    return models, tokenizer


def _random_models(named: Named, device: torch.device, dtype: torch.dtype, seed: int) -> list[PreTrainedModel]:
    if not named.presets:
        raise InputError(f"random_weights needs a preset ({', '.join(PRESETS)}), not {named.title}")
    return [_random_model(preset, device, dtype, seed + i) for i, preset in enumerate(named.presets)]


def _load_model(
    role: str, name: str, device: torch.device, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    with quiet():
        config = from_pretrained(AutoConfig, role, name, trust_remote_code=trust_remote_code)
        _refuse_without_weights(config, f"{role} {name}", trust_remote_code)
        model, info = from_pretrained(
            causal_class(config, trust_remote_code),
            role,
            name,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would go on with random ones
        raise InputError(
            f"cannot load the {role} {name}: its files lack {len(missing)} of the model's tensors: {missing[0]}, …"
        )
    return model.to(device)


def _refuse_without_weights(config: PretrainedConfig, name: str, trust_remote_code: bool) -> None:
    """Raise InputError for what a model declares, before its weights are read or downloaded."""
    if causal_class(config, trust_remote_code) is None:
        kind = config.model_type or type(config).__name__
        raise InputError(f"{name}: {kind} is no causal language model: choose another model, see docs/models.md")
    _refuse_other_numbers(config, name)
    try:
        with torch.device("meta"):
            model = build(config, trust_remote_code)
    except Exception:  # a configuration that builds no model; reading the files says what is wrong with them
        return
    with refusing_what_fails(model, name):
        refuse_what_is_declared(model)
        if attends_by_itself(model):
            raise UnsupportedModelError("has attention of its own that cannot be set to sdpa")


def _refuse_other_numbers(config: PretrainedConfig, name: str) -> None:
    """Raise InputError for weights that transformers would take for plain numbers, with a warning that nobody sees."""
    quantization = getattr(config, "quantization_config", None)
    if isinstance(quantization, dict) and (method := quantization.get("quant_method")):
        known = AutoHfQuantizer.supports_quant_method(quantization)
        require(known, f"{name}: its weights are quantized by {shown(method)}, which transformers does not know")


def _load_tokenizer(role: str, name: str, trust_remote_code: bool) -> Any:
    """The tokenizer; None for a folder without one, whose pair takes token ids only."""
    if is_folder(name) and not any(next(Path(name).glob(kind), None) for kind in TOKENIZER_FILES):
        return None
    with quiet():
        return from_pretrained(AutoTokenizer, role, name, trust_remote_code=trust_remote_code)


def _tokenizer_if_any(name: str, trust_remote_code: bool) -> Any:
    """The draft's tokenizer, which nothing needs but a comparison; None where it cannot be loaded."""
    try:
        return _load_tokenizer("draft", name, trust_remote_code)
    except InputError:
        return None


def _random_model(preset: ModelPreset, device: torch.device, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """Build the architecture right on the device, in its dtype, with normal weights of a fixed seed."""
    config = getattr(transformers, preset.config_class)(**preset.settings)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def _eos_ids(target: PreTrainedModel, tokenizer: Any) -> list[int]:
    """Union of the end-of-sequence ids that the generation config and the tokenizer name."""
    found: list[int] = []
    for ids in (getattr(target.generation_config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)):
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return found
