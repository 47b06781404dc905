"""The fault zoo: deliberately broken variants of the engine, each with what must catch it."""

from refimpl.faults import (
    block_faults,
    chunk_faults,
    drafting_faults,
    layout_faults,
    overlap_faults,
    paged_faults,
    scheduling_faults,
    serving_faults,
    sharing_faults,
    state_faults,
)
from refimpl.faults.base import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Fault",
    "block_faults",
    "chunk_faults",
    "drafting_faults",
    "layout_faults",
    "overlap_faults",
    "paged_faults",
    "scheduling_faults",
    "serving_faults",
    "sharing_faults",
    "state_faults",
]
