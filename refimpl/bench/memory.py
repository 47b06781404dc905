"""How much memory a run takes, as PyTorch's allocator sees it."""

import os
from collections.abc import Callable
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes when it starts and stops


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes that a call has allocated and not yet freed, on the CPU; kernels' own are included.

    The sum is that of the allocator's events in the order of their times, so it is the same in every run of the same
    passes, whatever else the process does.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    results = profiled.profiler.kineto_results if profiled.profiler else None
    assert results is not None  # they are there once the block has ended
    events = [event for event in results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), default=0)
