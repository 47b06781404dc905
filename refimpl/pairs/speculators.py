"""Draft heads in the format that the speculators library writes: EAGLE-3 and DFlash."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from refimpl.core.errors import require, shown
from refimpl.models.dflash import DFlash, DFlashHead, DFlashSettings
from refimpl.models.eagle3 import Eagle3, Eagle3Head, Eagle3Settings
from refimpl.models.head import DraftHead
from refimpl.models.speculator import FAMILIES, SpeculatorSettings
from refimpl.pairs.reading import naming

KIND = "speculators_model_type"
READ = {"eagle3": "eagle_aux_hidden_state_layer_ids", "dflash": "aux_hidden_state_layer_ids"}
MOST_MASKS = 1024  # in one pass
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
    make = {"eagle3": _eagle3, "dflash": _dflash}.get(str(given[KIND]))
    require(make is not None, f"the head {folder} must be eagle3 or dflash, not {shown(given[KIND])}")
    assert make
    with naming("head", str(folder), "config.json"):
        kind, head, settings = make(given, _shared(given, target))
    _require_fit(folder, settings, target)
    with naming("head", str(folder), "its tensors"):
        tensors = _with_those_of(target, _read(folder), settings)
        with torch.device("meta"):
            weights = kind(settings)
        weights.load_state_dict(tensors, assign=True)
        weights = weights.to(device=target.device, dtype=target.dtype)
        made: DraftHead = head(weights, settings, settings.part("RotaryEmbedding")(settings.config).to(target.device))
        return made


def _shared(given: dict[str, Any], target: PreTrainedModel) -> dict[str, Any]:
    """Settings of every head; raises ValueError for fields that are missing or make no sense."""
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
    read = given.get(READ[given[KIND]]) or [2, number // 2, number - 3]
    _check(
        all(type(layer) is int and 0 < layer <= number for layer in read) and len(set(read)) == len(read),
        f"{READ[given[KIND]]} must be layers in 1 … {number} of the target, each once, not {shown(read)}",
    )
    return {
        "config": config,
        "layers": tuple(sorted(read)),
        "draft_vocab_size": int(given["draft_vocab_size"]),
        "target_hidden_size": int(given.get("target_hidden_size") or config.hidden_size),
    }


def _eagle3(given: dict[str, Any], shared: dict[str, Any]) -> tuple[Any, Any, Eagle3Settings]:
    norms = {name: bool(given.get(name, False)) for name in ("norm_before_residual", "norm_before_fc")}
    return Eagle3, Eagle3Head, Eagle3Settings(**shared | norms)


def _dflash(given: dict[str, Any], shared: dict[str, Any]) -> tuple[Any, Any, DFlashSettings]:
    """As for an EAGLE-3 head; raises ValueError for variants of DFlash that are not known here, too."""
    config = shared["config"]
    _check(config.model_type == "qwen3", f"its layers must be those of qwen3, not {shown(config.model_type)}")
    windows = set(config.layer_types) - {"full_attention"}
    _check(not windows, f"its layers must have full attention, not {', '.join(sorted(windows))}")
    for name, plain in (("sample_from_anchor", False), ("projector_type", "dflash")):
        _check(given.get(name, plain) == plain, f"{name} must be {plain}, not {shown(given.get(name))}")
    for name, least, most in (("block_size", 2, MOST_MASKS), ("mask_token_id", 0, config.vocab_size - 1)):
        number = given.get(name)
        _check(
            type(number) is int and least <= number <= most, f"{name} must be in {least} … {most}, not {shown(number)}"
        )
    return (
        DFlash,
        DFlashHead,
        DFlashSettings(**shared, **{name: given[name] for name in ("block_size", "mask_token_id")}),
    )


def _require_fit(folder: Path, settings: SpeculatorSettings, target: PreTrainedModel) -> None:
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


def _with_those_of(
    target: PreTrainedModel, tensors: dict[str, Tensor], settings: SpeculatorSettings
) -> dict[str, Tensor]:
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
