"""Which rows run in a round. Pure Python: the simulator runs the same classes, and no tensor library is loaded."""

from refimpl.scheduling.policies import (
    DEFAULT_OPTIONS,
    FifoScheduler,
    GroupedScheduler,
    RoundMode,
    RoundPlan,
    Scheduler,
    SchedulingOptions,
    StaticScheduler,
    make_scheduler,
)
from refimpl.scheduling.pool import Schedulable, SequencePool

__all__ = [
    "DEFAULT_OPTIONS",
    "FifoScheduler",
    "GroupedScheduler",
    "RoundMode",
    "RoundPlan",
    "Schedulable",
    "Scheduler",
    "SchedulingOptions",
    "SequencePool",
    "StaticScheduler",
    "make_scheduler",
]
