"""MTP layers from a target's own checkpoint: DeepSeek, GLM, Qwen3-Next and others."""

import copy
from typing import Any

from transformers import PreTrainedModel

from refimpl.core.errors import InputError
from refimpl.models.mtp import MtpHead
from refimpl.pairs.reading import naming, quiet

FIELDS = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers")  # in configurations


def load_mtp(path: str, target: PreTrainedModel) -> MtpHead:
    """Read the MTP layers of a checkpoint and put them on its target.

    Raises:
        InputError: there are none, or none that transformers can read and this engine can run.
    """
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        raise InputError("this transformers reads no MTP layers: install a newer one") from None
    with naming("head", path, "its MTP layers"), quiet():
        try:
            mtp = MtpModel.from_pretrained(_declaring(target, path), device_map={"": target.device})
        except RuntimeError:
            absent = "the checkpoint has no MTP layers, or not all of their tensors"
            raise InputError(f"cannot load the head {path}: {absent}") from None
        _refuse_other_parts(mtp)
    return MtpHead(mtp)


def _declaring(target: PreTrainedModel, path: str) -> Any:
    """The target with a configuration that says which MTP layers its checkpoint has; the target's own is unchanged."""
    shallow, config = copy.copy(target), copy.deepcopy(target.config)
    text = config.get_text_config(decoder=True)
    count = next((found for name in FIELDS if (found := getattr(text, name, None)) is not None), 1)
    if not count:
        raise ValueError(f"its configuration has {count} of them")
    text.num_mtp_layers, config.name_or_path, config.dtype = count, path, target.dtype
    if getattr(text, "layer_types", None) and not getattr(text, "mtp_layer_types", None):
        text.mtp_layer_types = ["full_attention"] * count
    text._attn_implementation = "sdpa" if target._supports_sdpa else "eager"
    first = text.num_hidden_layers
    numbered = [rf"layers\.{number}\." for number in range(first, first + count)]  # a class knows those of one size
    shallow.config = config
    shallow._keys_to_ignore_on_load_unexpected = [*(target._keys_to_ignore_on_load_unexpected or []), *numbered]
    return shallow


def _refuse_other_parts(mtp: Any) -> None:
    """Raise ValueError for what only transformers' own pass through these layers does."""
    kinds = set(getattr(mtp.config, "layer_types", None) or []) - {"full_attention"}
    if kinds or mtp.has_per_layer_rope or mtp.use_shared_post_norm or mtp.rotary_emb is None:
        raise ValueError(f"{type(mtp.layers[0].mtp_block).__name__} has more than full attention and one RoPE")
