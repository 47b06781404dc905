"""Draft heads in the format that the speculators library writes: EAGLE-3."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from refimpl.core.errors import require, shown
from refimpl.models.eagle3 import FAMILIES, Eagle3, Eagle3Head, Eagle3Settings, rotary_of
from refimpl.models.head import DraftHead
from refimpl.pairs.reading import naming

KIND = "speculators_model_type"
OF_THE_TARGET = "verifier_"  # tensors that training needs


def load_speculator(folder: Path, given: dict[str, Any], target: PreTrainedModel) -> DraftHead:
    """Read a head and put it on its target.

    Args:
        folder: with its tensors.
        given: what its config.json says.
        target: what it was trained for.

    Raises:
        InputError: an unknown kind, a field or tensor that is missing or does not fit, trees.
    """
    require(given[KIND] == "eagle3", f"the head {folder} must be eagle3, not {shown(given[KIND])}")
    with naming("head", str(folder), "config.json"):
        settings = _settings(given, target)
    _require_fit(folder, settings, target)
    with naming("head", str(folder), "its tensors"):
        tensors = _with_those_of(target, _read(folder), settings)
        with torch.device("meta"):
            weights = Eagle3(settings)
        weights.load_state_dict(tensors, assign=True)
        weights = weights.to(device=target.device, dtype=target.dtype)
        return Eagle3Head(weights, settings, rotary_of(settings.config).to(target.device))


def _settings(given: dict[str, Any], target: PreTrainedModel) -> Eagle3Settings:
    """What a configuration says; raises ValueError for fields that are missing or make no sense."""
    method = (given.get("speculators_config") or {}).get("default_proposal_method", "greedy")
    _check("tree" not in str(method), f"drafts are chains here, so a head that proposes trees ({method}) is refused")
    for name in ("transformer_layer_config", "draft_vocab_size"):
        _check(given.get(name) is not None, f"it has no {name}")
    layers = dict(given["transformer_layer_config"])
    config: PretrainedConfig = AutoConfig.for_model(layers.pop("model_type", "llama"), **layers)
    known = " or ".join(FAMILIES)
    _check(config.model_type in FAMILIES, f"its layers must be those of {known}, not {shown(config.model_type)}")
    config._attn_implementation = "sdpa"
    number = target.config.get_text_config(decoder=True).num_hidden_layers
    read = given.get("eagle_aux_hidden_state_layer_ids") or [2, number // 2, number - 3]
    _check(
        all(type(layer) is int and 0 < layer <= number for layer in read) and len(set(read)) == len(read),
        f"eagle_aux_hidden_state_layer_ids must be layers in 1 … {number} of the target, each once, not {shown(read)}",
    )
    return Eagle3Settings(
        config=config,
        layers=tuple(sorted(read)),
        draft_vocab_size=int(given["draft_vocab_size"]),
        norm_before_residual=bool(given.get("norm_before_residual", False)),
        norm_before_fc=bool(given.get("norm_before_fc", False)),
        target_hidden_size=int(given.get("target_hidden_size") or config.hidden_size),
    )


def _require_fit(folder: Path, settings: Eagle3Settings, target: PreTrainedModel) -> None:
    """Raise InputError for a head on other states than the target has, or with other tokens."""
    vocab_size, hidden_size = target.get_output_embeddings().weight.shape
    found, wanted = (settings.target_hidden_size, settings.config.vocab_size), (hidden_size, vocab_size)
    require(
        found == wanted,
        f"the head {folder} was trained for a target with a hidden size of {found[0]} and {found[1]} ids, "
        f"not {wanted[0]} and {wanted[1]}: choose one that was trained for this target",
    )


def _read(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, but those that only training needs."""
    files = sorted(folder.glob("*.safetensors"))
    _check(bool(files), "there is no .safetensors file")
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(OF_THE_TARGET)}


def _with_those_of(target: PreTrainedModel, tensors: dict[str, Tensor], settings: Eagle3Settings) -> dict[str, Tensor]:
    """Tensors of a head, with the target's where it has none: embedding, and without a map of tokens the LM head."""
    vocab_size = settings.config.vocab_size
    shared: dict[str, Any] = {"embed_tokens.weight": target.get_input_embeddings().weight}
    if settings.draft_vocab_size == vocab_size:
        shared |= {
            "lm_head.weight": target.get_output_embeddings().weight,
            "d2t": torch.zeros(vocab_size, dtype=torch.long),
            "t2d": torch.ones(vocab_size, dtype=torch.bool),
        }
    tensors = shared | tensors
    if "d2t" in tensors:
        ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        _check(bool(((ids >= 0) & (ids < vocab_size)).all()), f"d2t must map to ids below {vocab_size}")
    return tensors


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)  # which becomes a line with the file's name
