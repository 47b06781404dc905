"""Sequences lost, doubled, starved or grouped by the wrong key: what pools and schedulers can get wrong."""

import math
from copy import copy
from typing import Any

from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.faults.base import fault
from refimpl.scheduling import FifoScheduler, GroupedScheduler, RoundPlan, SequencePool

GROUPED = ("grouped",)
PAIRS = {"batch_size": 2, "window_size": 8, "aging_bound": None}  # settings under which groups form often


@fault(GroupedScheduler, "group_key", "nothing", "INV-11", schedulers=GROUPED)
def group_of_unequal_lengths(original: Any) -> Any:
    """The group key leaves the length out."""
    return lambda self, sequence: (0, sequence.cache_state)


@fault(GroupedScheduler, "group_key", "nothing", "INV-11", schedulers=GROUPED)
def padded_length_as_group_key(original: Any) -> Any:
    """The group key is a length rounded up by padding (published EXSPEC keys by the padded length)."""
    return lambda self, sequence: (-(-sequence.seq_len // 4), sequence.cache_state)


@fault(GroupedScheduler, "group_key", "nothing", "INV-11", schedulers=GROUPED, settings=PAIRS)
def cache_state_not_in_group_key(original: Any) -> Any:
    """Rows after a full acceptance, whose draft lags by two tokens, share groups with the others."""
    return lambda self, sequence: (sequence.seq_len, 0)


@fault(GroupedScheduler, "select", "nothing", "INV-10", schedulers=GROUPED, settings=PAIRS | {"aging_bound": 0})
def no_aging(original: Any) -> Any:
    """Groups first, then the head of the window, however long the rest has waited (published EXSPEC)."""

    def select(self: GroupedScheduler) -> RoundPlan:
        unaged = copy(self)
        unaged.aging_bound = math.inf
        return original(unaged)

    return select


@fault(SequencePool, "admit", "crash", "INV-9")
def sequence_lost_on_refill(original: Any) -> Any:
    """A refill takes one sequence more off the waiting line than it hands on."""

    def admit(self: SequencePool, *arguments: Any) -> list:
        entered = original(self, *arguments)
        if self.num_finished and entered and self.waiting:
            self.waiting.popleft()
        return entered

    return admit


@fault(FifoScheduler, "select", "crash", "INV-9", schedulers=("fifo",))
def sequence_runs_twice(original: Any) -> Any:
    """The oldest sequence is put into the round a second time when there is a free place."""

    def select(self: FifoScheduler) -> RoundPlan:
        members = tuple(self.pool.window.values())
        spare = len(members) < self.batch_size
        return RoundPlan((*members, members[0]) if spare else members, "fifo")

    return select


@fault(
    Engine,
    "_release",
    "output",
    "INV-3",
    layouts=("inplace",),
    schedulers=("fifo",),
    settings={"cancellations": ((1, 0),)},
    sources=("vllm-project/vllm#39012",),
)
def place_of_a_cancelled_row_given_twice(original: Any) -> Any:
    """The place of a cancelled row goes to the next sequence, and to the one after it.

    Some time after a client disconnects, two requests write over each other.
    """

    def release(self: Engine, sequence: Sequence) -> None:
        slot = sequence.slot
        original(self, sequence)
        if sequence.stop_reason == "cancelled" and slot >= 0:
            self._free_slots.append(slot)

    return release
