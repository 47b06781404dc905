"""What the arguments of `load_pair` name: the models, a device, a number format."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from refimpl.core.drafting import DrafterName, DraftingConfig
from refimpl.core.errors import InputError, require
from refimpl.pairs.presets import PRESETS, ModelPreset

TINY = Path(__file__).parent / "tiny"

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Named:
    """The models that were named: target and draft, or the target alone.

    Attributes:
        title: what results and errors call the pair.
        paths: folder or hub id of each model.
        presets: architecture of each model of a published pair; empty for any other pair.
        head: file of a draft head, or folder or hub id of a checkpoint with one; None where there is none.
    """

    title: str
    paths: tuple[str, ...]
    presets: tuple[ModelPreset, ...] = ()
    head: str | None = None


def find_models(
    target: str | Path, draft: str | Path | None, drafter: DrafterName, head: str | Path | None = None
) -> Named:
    """Paths and presets of the models that `drafter` needs.

    Raises:
        InputError: an unknown name, something that is no name, a draft that would never run, or a head that is missing.
    """
    for given in (target, *(model for model in (draft, head) if model is not None)):
        if not isinstance(given, str | os.PathLike):
            kind = type(given).__name__
            message = f"target, draft and head must be a name or a path, not {kind}: make_pair takes models in memory"
            raise InputError(message)
        if not str(given):
            raise InputError("target, draft and head must be a name or a path, and one of them is empty")
    named = _find_named(_at_home(target), None if draft is None else _at_home(draft), drafter)
    named = named if head is None else replace(named, head=_at_home(head))
    if drafter == "head" and named.head is None:
        missing = f"drafter 'head' needs a head that was trained for {target}: give its file as head"
        require(not named.presets, missing)
        named = replace(named, head=named.paths[0])  # MTP layers of its own
    return named


def _at_home(path: str | Path) -> str:
    """The path, with the user's folder in place of ``~``."""
    return os.path.expanduser(path)


def _find_named(target: str, draft: str | None, drafter: DrafterName) -> Named:
    if DraftingConfig(drafter).uses_draft:
        return _find_pair(target, draft)
    if draft is not None:
        raise InputError(f"drafter {drafter!r} runs no draft: leave {draft} out")
    if target not in ("tiny", *PRESETS):
        return Named(target, (target,))
    pair = _find_pair(target, None)
    return replace(pair, paths=pair.paths[:1], presets=pair.presets[:1])


def _find_pair(name: str, draft: str | None) -> Named:
    if draft is not None:
        return Named(f"{name} + {draft}", (name, draft))
    if name == "tiny":
        return Named(name, (str(TINY / "target"), str(TINY / "draft")), head=str(TINY / "head.safetensors"))
    if name in PRESETS:
        models = (PRESETS[name].target, PRESETS[name].draft)
        return Named(name, tuple(model.hub_id for model in models), models)
    raise InputError(
        f"unknown pair {name!r}: choose tiny, {', '.join(PRESETS)}, or give target and draft (path or hub id)"
    )


def find_device(device: str) -> torch.device:
    """The device of that name; a CUDA device becomes the process's current one.

    Raises:
        InputError: models cannot run on it, or it is not there.
    """
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"unknown device {device!r}: choose cpu, cuda or cuda:N") from error
    if parsed.type not in ("cpu", "cuda"):
        raise InputError(f"models cannot run on {parsed.type}: choose cpu, cuda or cuda:N")
    if parsed.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device 'cuda' was asked for, but no CUDA device is available: choose cpu")
        count = torch.cuda.device_count()
        if parsed.index is not None and parsed.index >= count:
            raise InputError(f"device {device!r} was asked for, but there are {count} CUDA devices, counted from 0")
        torch.cuda.set_device(parsed.index or 0)
    return parsed


def find_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The number format of that name; None takes float32 on a CPU and bfloat16 elsewhere.

    Raises:
        InputError: unknown name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}: choose {', '.join(DTYPES)}")
    return DTYPES[dtype]
