"""The device that a run uses, and where a measured number comes from, the device included."""

from typing import Any

import torch

from refimpl.core.errors import InputError
from refimpl.core.provenance import command_line, processor, stamp

SCHEMA_VERSION = 1


def provenance(device: torch.device) -> dict[str, Any]:
    """What `stamp` says, and command (which holds every setting that is not a default), device and threads."""
    return stamp("torch", "transformers") | {
        "schema_version": SCHEMA_VERSION,
        "command": command_line(),
        "device": device_name(device),
        "torch_threads": torch.get_num_threads(),
    }


def device_name(device: torch.device) -> str:
    """Model of the processor or the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def require_current(device: torch.device) -> None:
    """Raise InputError for a CUDA device other than the current one, on which events and recordings would be made."""
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        raise InputError(f"the pair is on {device}, not on the current device: call torch.cuda.set_device first")


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all work given to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
