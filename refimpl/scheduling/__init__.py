"""Which rows run in a round. Pure Python: the simulator runs the same classes, and no tensor library is loaded."""

from refimpl.scheduling.base import DEFAULT_OPTIONS, Chunk, RoundMode, RoundPlan, Scheduler, SchedulingOptions
from refimpl.scheduling.blocks import BlockPool, blocks_for
from refimpl.scheduling.continuous import ContinuousScheduler
from refimpl.scheduling.fifo import FifoScheduler
from refimpl.scheduling.grouped import GroupedScheduler
from refimpl.scheduling.overlapped import OverlappedScheduler
from refimpl.scheduling.pool import Schedulable, SequencePool
from refimpl.scheduling.room import PagedRoom, Room, Sharing
from refimpl.scheduling.static import StaticScheduler

SCHEDULER_CLASSES: dict[str, type[Scheduler]] = {
    "static": StaticScheduler,
    "fifo": FifoScheduler,
    "grouped": GroupedScheduler,
    "continuous": ContinuousScheduler,
}


def make_scheduler(
    name: str,
    batch_size: int,
    window_size: int,
    aging_bound: float | None = None,
    *,
    token_budget: int | None = None,
    execution: str = "serial",
    options: SchedulingOptions = DEFAULT_OPTIONS,
) -> Scheduler:
    """Build a scheduler by name: one of `SCHEDULER_CLASSES`, or ``"fifo"`` with two cohorts for overlapped execution.

    `window_size` and `aging_bound` matter to ``"grouped"`` only, `token_budget` to ``"continuous"``, which needs one.
    """
    if execution == "overlapped":
        if name != "fifo":
            raise ValueError(f"overlapped execution runs rows in turns, as fifo does, not as {name}")
        return OverlappedScheduler(batch_size, batch_size, options=options)
    if name == "grouped":
        return GroupedScheduler(batch_size, window_size, aging_bound, options=options)
    if name == "continuous":
        if token_budget is None:
            raise ValueError("a continuous scheduler needs a token budget")
        return ContinuousScheduler(batch_size, token_budget, options=options)
    return SCHEDULER_CLASSES[name](batch_size, batch_size, options=options)


__all__ = [
    "DEFAULT_OPTIONS",
    "SCHEDULER_CLASSES",
    "BlockPool",
    "Chunk",
    "ContinuousScheduler",
    "FifoScheduler",
    "GroupedScheduler",
    "OverlappedScheduler",
    "PagedRoom",
    "Room",
    "RoundMode",
    "RoundPlan",
    "Schedulable",
    "Scheduler",
    "SchedulingOptions",
    "SequencePool",
    "Sharing",
    "StaticScheduler",
    "blocks_for",
    "make_scheduler",
]
