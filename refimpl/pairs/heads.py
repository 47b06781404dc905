"""Draft heads: files that the trainer writes, and checkpoints that contain one."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import PreTrainedModel

from refimpl.core.errors import InputError, require, shown
from refimpl.core.files import whole_file
from refimpl.core.reading import is_file, is_folder, read_mapping
from refimpl.models.head import DraftHead, RegressiveBlock, RegressiveHead
from refimpl.pairs.mtp import load_mtp
from refimpl.pairs.reading import check_model_files
from refimpl.pairs.speculators import KIND, load_speculator

NORMS = "lm_head_norms"  # of the target's rows: they tell targets of one shape apart
NORM_TOLERANCE = 0.05  # relative; roundings of a number format are far below


def save_head(path: Path, block: RegressiveBlock, target: PreTrainedModel) -> None:
    """Write a head in float16, and what tells its target.

    Raises:
        InputError: the file cannot be written; nothing is left behind.
    """
    tensors = {name: tensor.half() for name, tensor in block.state_dict().items()}
    with whole_file(path, "wb") as file:
        file.write(save({**tensors, NORMS: _norms(target).half()}))


def load_head(path: Path, target: PreTrainedModel) -> DraftHead:
    """Read a head and put it on its target, in that model's number format and on its device.

    Args:
        path: a file that `save_head` has written, a folder of the speculators library, or a checkpoint of the target,
            with MTP layers.
        target: what the head was trained for.

    Raises:
        InputError: there is no head, or that of another target.
    """
    if is_file(path):
        return _load_own(path, target)
    if is_folder(path):
        check_model_files("head", path)
        config = read_mapping(path / "config.json")
        if KIND in config:
            return load_speculator(path, config, target)
        _require_width(path, config.get("hidden_size"), target)
    elif str(path) != target.name_or_path:
        raise InputError(f"cannot load the head {path}: it is no file, and no checkpoint")
    return load_mtp(str(path), target)


def _require_width(path: Path, hidden_size: Any, target: PreTrainedModel) -> None:
    """Raise InputError for a head on other states than the target has; one that does not say is tried."""
    wanted = target.get_output_embeddings().weight.shape[1]
    require(
        hidden_size in (None, wanted),
        f"the head {path} was trained for a target with a hidden size of {shown(hidden_size)}, not {wanted}: "
        "choose one that was trained for this target",
    )


def _load_own(path: Path, target: PreTrainedModel) -> RegressiveHead:
    block, norms = _read(path)
    lm_head, found = target.get_output_embeddings(), _norms(target)
    sizes, wanted = (block.hidden_size, len(norms)), (lm_head.weight.shape[1], len(found))
    if sizes != wanted:
        raise InputError(
            f"the head {path} was trained for a target with a hidden size of {sizes[0]} and {sizes[1]} ids, "
            f"not {wanted[0]} and {wanted[1]}: choose one that was trained for this target"
        )
    if not torch.allclose(norms, found, rtol=NORM_TOLERANCE):
        raise InputError(f"the head {path} was trained for another target: choose one that was trained for this one")
    return RegressiveHead(block.to(lm_head.weight), lm_head)


def _read(path: Path) -> tuple[RegressiveBlock, Float[Tensor, " vocab"]]:
    """The block of a file, and the norms that tell its target."""
    try:
        tensors = load_file(path)
        norms = tensors.pop(NORMS).float()
        (_,) = norms.shape  # one for each row
        hidden_size, width = tensors["outer.weight"].shape
        with torch.device("meta"):
            block = RegressiveBlock(hidden_size, width)
        block.load_state_dict(tensors, assign=True)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot load the head {path}: {str(error).splitlines()[0]}") from None
    except (KeyError, ValueError, RuntimeError):
        raise InputError(f"cannot load the head {path}: its tensors are not those of a draft head") from None
    return block, norms


def _norms(target: PreTrainedModel) -> Float[Tensor, " vocab"]:
    """Norm of each row of the LM head."""
    return target.get_output_embeddings().weight.detach().float().norm(dim=-1).cpu()
