"""What the device can do, measured along with the engines: memory bandwidth, matrix rate, and how long it was busy."""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from refimpl.bench.work import Rates
from refimpl.decoding.devices import synchronize

REPEATS, WARM_UPS = 7, 2
COPY_BYTES = {"cuda": 1 << 31, "cpu": 1 << 27}
MATRIX_SIZE = {"cuda": 8192, "cpu": 768}


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Bandwidth of a large copy (bytes read and written) and rate of a large square matrix product, on random data."""
    kind = device.type if device.type in COPY_BYTES else "cpu"
    return Rates(_copy_rate(device, _copy_size(device, kind)), _matrix_rate(device, dtype, MATRIX_SIZE[kind]))


def _copy_size(device: torch.device, kind: str) -> int:
    if kind == "cpu":
        return COPY_BYTES[kind]
    free, _ = torch.cuda.mem_get_info(device)
    return min(COPY_BYTES[kind], free // 4)


def _copy_rate(device: torch.device, size: int) -> float:
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(device, lambda: target.copy_(source))


def _matrix_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * size**3 / median_seconds(device, lambda: torch.mm(left, right, out=out))


def median_seconds(device: torch.device, action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds of an action after a warm-up; between events on CUDA, where nothing waits until the end."""
    for _ in range(WARM_UPS):
        action()
    if device.type != "cuda":
        return statistics.median(_wall_seconds(action) for _ in range(repeats))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        action()
        event.record()
    torch.cuda.synchronize(device)
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3


def _wall_seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def device_busy_s(action: Callable[[], object]) -> float | None:
    """Seconds in which a CUDA device ran kernels or copies during an action, as its profiler saw them.

    Profiling slows the host down, not the kernels: it shows how long the device works, not how long a round
    takes. Where streams work at the same time, that time counts once. None where the profiler sees nothing.
    """
    events = device_events(torch.device("cuda"), action)
    return busy_s(events) if events else None


def device_events(device: torch.device, action: Callable[[], object]) -> list[Any]:
    """Kernels and copies of a CUDA device during an action, as its profiler saw them; on a CPU calls of operators."""
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]) as recorded:
        action()
        synchronize(device)
    kind = DeviceType.CUDA if on_cuda else DeviceType.CPU
    return [e for e in recorded.events() or [] if e.device_type == kind and not e.is_user_annotation]


def busy_s(events: Iterable[Any]) -> float:
    """Seconds that events cover."""
    return covered([(e.time_range.start, e.time_range.end) for e in events]) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans (start, end)."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
