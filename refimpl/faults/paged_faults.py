"""What paged engines got wrong: reservations, tables, and what a preempted sequence keeps."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.faults.base import fault
from refimpl.layouts.places import BlockRows
from refimpl.scheduling.kv_allocator import PagedKVAllocator

PAGED: dict[str, Any] = {"layouts": ("paged",), "schedulers": ("fifo",), "settings": {"block_size": 2}}
SHORT: dict[str, Any] = PAGED | {"settings": {"block_size": 2, "spare_blocks": 0}}
UNSHARED: dict[str, Any] = PAGED | {"settings": {"block_size": 2, "prefix_sharing": False}}
WINDOWED: dict[str, Any] = PAGED | {"settings": UNSHARED["settings"] | {"sliding_window": 3, "windowed_layers": 2}}


@fault(
    PagedKVAllocator,
    "_missing",
    "output",
    "INV-16",
    **PAGED,
    sources=("NVIDIA/TensorRT-LLM#16280", "vllm-project/vllm#51256"),
)
def reserves_last_rounds_length(original: Any) -> Any:
    """Blocks are reserved for the length before the round, without what the round writes.

    A row that grows over the end of its block writes into a neighbour's: wrong tokens, now and then, in full
    batches only.
    """

    def missing(self: PagedKVAllocator, sequence: Sequence) -> int:
        span, self.span = self.span, 0
        try:
            return original(self, sequence)
        finally:
            self.span = span

    return missing


@fault(
    PagedKVAllocator,
    "settle",
    "nothing",
    "INV-15",
    **PAGED,
    sources=("sgl-project/sglang#13741", "sgl-project/sglang-jax#1147"),
)
def lookahead_leaks(original: Any) -> Any:
    """Blocks that only rejected drafts needed stay with their row.

    Free memory shrinks while few tokens are cached: requests are preempted for nothing, or the server ends with
    "memory leak detected".
    """
    return lambda self, members: original(self, [m for m in members if m.finished])


@fault(PagedKVAllocator, "_cut", "crash", "INV-13", **PAGED, sources=("sgl-project/sglang#26972",))
def free_slice_clamped(original: Any) -> Any:
    """Of a row that leaves, no more than four blocks are given back.

    The pool shrinks with every long answer, until no request fits.
    """

    def cut(self: PagedKVAllocator, sequence: Sequence, keep: int) -> None:
        original(self, sequence, keep) if keep else self.pool.give_back(sequence.blocks[:4])
        del sequence.blocks[keep:]

    return cut


@fault(PagedKVAllocator, "enter", "output", "INV-14", **UNSHARED, sources=("Avarok-Cybersecurity/atlas#373",))
def block_of_another_row(original: Any) -> Any:
    """A sequence that enters takes over the first block of a resident, whatever tokens it holds.

    A request goes on with another user's text.
    """

    def enter(self: PagedKVAllocator, sequence: Sequence, residents: Iterable[Sequence]) -> bool:
        others = [m for m in residents if m.blocks]
        entered = original(self, sequence, others)
        if entered and others and sequence.blocks:
            self.pool.give_back(sequence.blocks[:1])
            sequence.blocks[0] = others[0].blocks[0]
            self.pool.refs[sequence.blocks[0]] += 1
        return entered

    return enter


@fault(BlockRows, "slots", "output", "INV-3", **PAGED, sources=("vllm-project/vllm#54498",))
def position_taken_for_slot(original: Any) -> Any:
    """Entries are written at their position, as if the pool were one row.

    Right for one request at a time, garbage for several.
    """

    def slots(self: BlockRows, position: Tensor) -> Tensor:
        return torch.where(position < 0, original(self, position).view(position.shape), position).flatten()

    return slots


@fault(BlockRows, "slots", "output", "INV-3", **PAGED)
def place_in_block_forgotten(original: Any) -> Any:
    """Entries go to the right block, each to its first place."""
    return lambda self, position: original(self, position) // self.store.columns * self.store.columns


@fault(PagedKVAllocator, "_num_unseen", "output", "INV-26", **WINDOWED, sources=("sgl-project/sglang#22470",))
def window_frees_a_block_too_early(original: Any) -> Any:
    """The block at the far end of a window is given back while the window still reaches into it.

    Rows that outgrow the window read what another request has written since.
    """
    return lambda self, sequence: original(self, sequence) + 1


@fault(PagedKVAllocator, "_num_unseen", "output", "INV-26", **WINDOWED, sources=("vllm-project/vllm#47728",))
def window_counted_from_rejected_drafts(original: Any) -> Any:
    """Blocks in front of a window are given back as if all that the round may have drafted had been accepted.

    Long rows go wrong after a rejection, when the window has to reach back again.
    """

    def num_unseen(self: PagedKVAllocator, sequence: Sequence) -> int:
        first_seen = self.first_seen
        self.first_seen = first_seen and (lambda query: first_seen(query + self.span))
        try:
            return original(self, sequence)
        finally:
            self.first_seen = first_seen

    return num_unseen


@fault(Engine, "_preempt", "nothing", "INV-19", **SHORT)
def cached_length_survives_preemption(original: Any) -> Any:
    """A preempted sequence counts as cached by the target as far as it was, until it is prefilled again."""

    def preempt(self: Engine, sequence: Sequence) -> None:
        cached = sequence.target_cached
        original(self, sequence)
        sequence.target_cached = cached

    return preempt
