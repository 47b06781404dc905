"""K/V memory, reckoned before anything is allocated, so that a run that cannot fit ends before it begins."""

import os
from pathlib import Path

import torch

from refimpl.errors import InputError

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
SAFETY = 0.9  # share of the free memory that K/V may take: passes need some, too


def free_bytes(device: torch.device) -> int | None:
    """Memory that the device could still give, what its allocator holds in reserve included; None if it cannot tell."""
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserve
    return _available_bytes() if device.type == "cpu" else None


def _available_bytes() -> int | None:
    """What the host could give, the page cache included; where it does not say, what nobody uses at all."""
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) * 1024
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if any(name not in os.sysconf_names for name in names):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1])


def require_room(num_slots: int, bytes_per_token: int, budget_gib: float | None, device: torch.device) -> None:
    """Raise InputError unless the K/V of a run fit.

    Args:
        num_slots: of the pool and of the batches beside it, one token each.
        bytes_per_token: of both models together.
        budget_gib: bound that the user has set; None for SAFETY of what is free.
        device: where they would go.
    """
    need = num_slots * bytes_per_token
    free = free_bytes(device)
    room = budget_gib * GIB if budget_gib is not None else None if free is None else SAFETY * free
    if room is not None and need > room:
        raise InputError(
            f"K/V of {num_slots} tokens (working copies included) need {need / GIB:.3g} GiB, but {room / GIB:.3g} GiB "
            "may be used: lower batch_size, window_size, max_new_tokens or max_prompt_tokens, or raise kv_memory_gib"
        )
