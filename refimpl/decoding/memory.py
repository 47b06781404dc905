"""K/V memory: what a run needs, computed before anything is allocated so that it can be refused, and what it uses."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from refimpl.core.errors import InputError
from refimpl.models.adapter import Pair

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
OWN_CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
SAFETY = 0.9  # share of the free memory that K/V may take: passes need some, too


def free_bytes(device: torch.device) -> int | None:
    """Memory that is still free on the device, including what its allocator keeps in reserve; None if unknown."""
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserve
    if device.type != "cpu":
        return None
    rooms = [room for folder in _own_cgroups() if (room := _room_in_cgroup(folder)) is not None]
    return min([*rooms, *filter(None, [_available_bytes()])], default=None)


def _own_cgroups() -> Iterator[Path]:
    """Folders of the control groups (version 2) that may bound this process's memory: its own, and those around it."""
    lines = OWN_CGROUP.read_text().splitlines() if OWN_CGROUP.exists() else []
    for line in lines:
        if line.startswith("0::"):
            folder = CGROUPS / line.removeprefix("0::").strip("/")
            yield from (around for around in (folder, *folder.parents) if around.is_relative_to(CGROUPS))


def _room_in_cgroup(folder: Path) -> int | None:
    """Bytes up to a control group's bound, cached files counted as free; None where it has none."""
    try:
        bound, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or the word max
        return None
    return max(0, bound - used + int(cached.get("inactive_file", 0)))


def _available_bytes() -> int | None:
    """Memory that the host can free, including the page cache; if it does not say, unused memory."""
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) * 1024
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if any(name not in os.sysconf_names for name in names):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1])


def usable_bytes(budget_gib: float | None, device: torch.device) -> float:
    """Bytes that K/V may take: the bound that the user has set, or SAFETY of what is free; infinite if unknown."""
    if budget_gib is not None:
        return budget_gib * GIB
    free = free_bytes(device)
    return math.inf if free is None else SAFETY * free


def pool_gib(pair: Pair, num_blocks: int, block_size: int, *, drafts: bool = True, num_states: int = 0) -> float:
    """Memory in GiB that holds so many blocks for rows and one for scratch, of both models or of the target alone.

    Beside them, so many recurrent states of each.
    """
    shapes = [model.kv_shape for model in pair.models(drafts)]
    per_token, per_row = sum(each.bytes_per_token for each in shapes), sum(each.bytes_per_row for each in shapes)
    return ((num_blocks + 1.5) * block_size * per_token + num_states * per_row) / GIB


def require_room(num_slots: int, bytes_per_token: int, room: float, *, paged: bool = False) -> None:
    """Raise InputError unless the K/V of a run fit.

    Args:
        num_slots: of the pool and of the working batches, one token each.
        bytes_per_token: of both models together.
        room: bytes that they may take, see `usable_bytes`.
        paged: the pool is as small as it can be: its longest row alone must fit.
    """
    need = num_slots * bytes_per_token
    if need > room:
        what, sizes = (
            ("the longest row alone", "") if paged else ("working copies included", "batch_size, window_size, ")
        )
        raise InputError(
            f"K/V of {num_slots} tokens ({what}) need {need / GIB:.3g} GiB, but {room / GIB:.3g} GiB "
            f"may be used: lower {sizes}max_new_tokens or max_prompt_tokens, or raise kv_memory_gib"
        )


@dataclass(slots=True)
class MemoryUse:
    """K/V of a run, as its rounds found it.

    Attributes:
        peak_bytes: in use at most.
        live_bytes: of tokens that were cached at that moment; at the fullest one of several.
        most_residents: sequences with K/V at a time.
        resident_rounds: sequences with K/V, summed over rounds.
        rounds: noted.
    """

    peak_bytes: int = 0
    live_bytes: int = 0
    most_residents: int = 0
    resident_rounds: int = 0
    rounds: int = 0

    def note(self, residents: int, used_bytes: int, live_bytes: Callable[[], int]) -> None:
        """Take note of a round; what is live is only asked for where no round before has used more."""
        self.rounds += 1
        self.resident_rounds += residents
        self.most_residents = max(self.most_residents, residents)
        if used_bytes >= self.peak_bytes:
            before = self.live_bytes if used_bytes == self.peak_bytes else 0
            self.peak_bytes, self.live_bytes = used_bytes, max(before, live_bytes())

    @property
    def mean_residents(self) -> float:
        """Sequences with K/V, on average over rounds."""
        return self.resident_rounds / self.rounds if self.rounds else 0.0
