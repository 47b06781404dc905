"""What engines that mix prompts with decoding rows got wrong: who runs, and how far a prompt is cached."""

from dataclasses import replace
from typing import Any

from refimpl.core.sequence import Sequence
from refimpl.decoding import rounds
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.prefill import Chunks
from refimpl.faults.base import fault, result_changed
from refimpl.scheduling import Chunk, ContinuousScheduler, RoundPlan, Scheduler

Plan = RoundPlan[Sequence]
CHUNKS: dict[str, Any] = {"layouts": ("inplace",), "schedulers": ("continuous",), "settings": {"spare_tokens": 1}}
WHOLE: dict[str, Any] = {"layouts": ("inplace",), "schedulers": ("fifo",)}
JOINT: dict[str, Any] = {"settings": {"spare_tokens": 6, "joint_prefill": True}}


@fault(ContinuousScheduler, "select", "nothing", "INV-17", **CHUNKS)
@result_changed
def chunks_beside_the_budget(right: Plan, self: ContinuousScheduler[Sequence]) -> Plan:
    """Prompts get the whole budget of a round, whatever the rows that decode take of it."""
    prompts = [s for s in self.pool.window.values() if s.to_prefill]
    return replace(right, chunks=tuple(Chunk(s, min(self.token_budget, s.to_prefill)) for s in prompts[:1]))


@fault(ContinuousScheduler, "select", "nothing", "INV-17", **CHUNKS)
@result_changed
def decoding_waits_for_prompts(right: Plan, _: Any) -> Plan:
    """No row decodes while a prompt is being cached."""
    return replace(right, members=()) if right.chunks else right


@fault(ContinuousScheduler, "select", "output", "INV-17", **CHUNKS, sources=("vllm-project/vllm#30618",))
@result_changed
def chunk_row_drafts(right: Plan, self: ContinuousScheduler[Sequence]) -> Plan:
    """A row is drafted for as soon as the first chunk of its prompt is cached.

    Long prompts get wrong answers under load. Short ones, of one chunk, never do.
    """
    members = tuple(s for s in self.pool.window.values() if s.target_cached or not s.to_prefill)
    return replace(right, members=members, chunks=()) if members else right


@fault(rounds, "note_chunks", "output", "INV-3", **CHUNKS)
def chunk_border_skipped(original: Any) -> Any:
    """A chunk that is not the last of its prompt counts as one token longer than it is."""

    def note(cached: CachedModel, chunks: Chunks) -> None:
        rest = [chunk.sequence.seq_len - 1 - cached.num_cached(chunk.sequence) - chunk.count for chunk in chunks]
        original(cached, [replace(c, count=c.count + (n > 0)) for c, n in zip(chunks, rest, strict=True)])

    return note


@fault(ContinuousScheduler, "_joins", "nothing", "INV-17", **CHUNKS | JOINT)
def joining_row_beside_the_budget(original: Any) -> Any:
    """A row joins in the round of its last chunk, whether its drafts are within the round's budget or not."""
    return lambda self, sequence, count, left: count == sequence.to_prefill


@fault(Scheduler, "_plan_round", "output", "INV-5", **WHOLE | JOINT)
@result_changed
def joining_row_before_its_last_chunk(right: Plan, _: Any) -> Plan:
    """A row joins in the round of the first chunk of its prompt, whether it is the last or not."""
    return replace(right, chunks=tuple(replace(chunk, count=min(chunk.count, 4)) for chunk in right.chunks))


@fault(rounds, "prefill_chunks", "acceptance", "INV-3", **WHOLE | JOINT)
def joining_row_unknown_to_the_draft(original: Any) -> Any:
    """Where prompts are cached beside drafts, only the target is fed them."""

    def feed(cached: CachedModel, chunks: Chunks) -> None:
        if cached.role == "target":
            original(cached, chunks)

    return feed
