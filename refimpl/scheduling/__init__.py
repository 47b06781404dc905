"""Which rows run in a round. Pure Python: the simulator runs the same classes, and no tensor library is loaded."""

from refimpl.core.engine_settings import EngineSettings
from refimpl.scheduling.base import Chunk, RoundPlan, Scheduler
from refimpl.scheduling.blocks import BlockPool, blocks_for
from refimpl.scheduling.continuous import ContinuousScheduler
from refimpl.scheduling.fifo import FifoScheduler
from refimpl.scheduling.grouped import GroupedScheduler
from refimpl.scheduling.kv_allocator import KVAllocator, PagedKVAllocator, Sharing
from refimpl.scheduling.overlapped import OverlappedScheduler
from refimpl.scheduling.pool import SequencePool
from refimpl.scheduling.static import StaticScheduler

SCHEDULER_CLASSES: dict[str, type[Scheduler]] = {
    "static": StaticScheduler,
    "fifo": FifoScheduler,
    "grouped": GroupedScheduler,
    "continuous": ContinuousScheduler,
}


def make_scheduler(settings: EngineSettings, *, refill: bool = True) -> Scheduler:
    """Build the scheduler of a run, with two cohorts for overlapped execution; `refill` as in `Scheduler`."""
    overlapped = settings.execution == "overlapped"
    kind = OverlappedScheduler if overlapped else SCHEDULER_CLASSES[settings.scheduler or ""]
    return kind.of(settings, refill=refill, joint_prefill=settings.joint_prefill)
