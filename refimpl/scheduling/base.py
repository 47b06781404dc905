"""What every scheduler does: a queue, a window, and room for what is in it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, Literal, Self

from refimpl.core.engine_settings import EngineSettings
from refimpl.core.invariants import InvariantViolation
from refimpl.scheduling.kv_allocator import KVAllocator
from refimpl.scheduling.pool import SequencePool, T, urgency

RoundMode = Literal["static", "fifo", "grouped", "fallback", "aged", "continuous", "overlapped"]
JOINT_TOKENS = 512  # of a whole prompt, its last, that share a pass with other rows: it bounds the mask and the pass


@dataclass(frozen=True, slots=True)
class Chunk(Generic[T]):
    """The next `count` tokens of a prompt that are to be cached."""

    sequence: T
    count: int


@dataclass(frozen=True, slots=True)
class RoundPlan(Generic[T]):
    """The members of a round, in row order, why they were chosen, and what is done beside them.

    Attributes:
        chunks: of prompts, to be cached; where prefill is joint, of members, too, that decode in the same round.
        ahead: rows to be drafted, which run in the next round.
    """

    members: tuple[T, ...]
    mode: RoundMode
    chunks: tuple[Chunk[T], ...] = ()
    ahead: tuple[T, ...] = ()

    @property
    def rows(self) -> tuple[T, ...]:
        """All that write at the end of their text."""
        return self.members + self.ahead


class Scheduler(ABC, Generic[T]):
    """Chooses the members of every round.

    The engine calls, per round: `admit` (prefill what it returns, but for what is `left_to_rounds`), `choose`, then
    `complete` with the plan once the members' lengths and finished flags are up to date.

    Args:
        batch_size: rows a round runs at most, B.
        window_size: sequences with K/V at a time, W ≥ B.
        refill: whether a free place is filled at once; otherwise only when the window is empty.
        joint_prefill: whether a row may decode in the round that caches the last of its prompt.

    Attributes:
        token_budget: tokens that a round feeds at most, chunks of prompts included; None for no bound, and prompts that
            are prefilled as a whole when they enter.
        ahead: tickets of rows that were drafted beside the latest round.
    """

    token_budget: int | None = None

    def __init__(self, batch_size: int, window_size: int, *, refill: bool = True, joint_prefill: bool = False):
        self.batch_size, self.window_size = batch_size, window_size
        self.refill, self.joint_prefill = refill, joint_prefill
        self.pool: SequencePool[T] = SequencePool()
        self.allocator: KVAllocator[T] = KVAllocator()
        self.ahead: set[int] = set()
        self.round_index = 0

    @classmethod
    def of(cls, settings: EngineSettings, **options: bool) -> Self:
        """Build it for a run; a subclass with parameters of its own takes them from the settings."""
        return cls(settings.resolved_batch_size, settings.resolved_window_size, **options)

    @property
    def done(self) -> bool:
        """Whether no unfinished sequence is left."""
        return not self.pool.waiting and not self.pool.window

    def submit(self, sequences: Iterable[T]) -> None:
        """Add sequences to the queue, in order; each stands before those that are less urgent."""
        for sequence in sequences:
            self.pool.submit(sequence)

    def admit(self) -> list[T]:
        """Fill the window; return the sequences that entered it."""
        if self.pool.window and not self.refill:
            return []
        return self.pool.admit(self.window_size - len(self.pool.window), self.enters)

    def enters(self, sequence: T, residents: Iterable[T]) -> bool:
        """Take the room that a sequence needs beside these residents; False where it must wait."""
        return self.allocator.enter(sequence, residents)

    @property
    def left_to_rounds(self) -> float:
        """Tokens of a prompt, its last, that are not cached on entry but in rounds, as chunks."""
        if self.token_budget is not None:
            return inf
        return float(JOINT_TOKENS) if self.joint_prefill else 0.0

    @abstractmethod
    def select(self) -> RoundPlan[T]:
        """Choose the members of the next round from the window, which is not empty."""

    def choose(self) -> tuple[RoundPlan[T], list[T]]:
        """Select the members of the next round and reserve room for it.

        Where there is not enough, the least urgent of the window are sent back to the queue, one by one, of equal
        priority the youngest; they are returned, too. The most urgent is never among them, so that some sequence always
        comes to its end.
        """
        plan, preempted = self._plan_round(), []
        while not self.allocator.reserve(plan.rows):
            preempted.append(self._least_urgent())
            self.preempt(preempted[-1])
            plan = self._plan_round()
        return plan, preempted

    def _plan_round(self) -> RoundPlan[T]:
        """The selection; without a budget of tokens, all that is left of prompts is cached beside it."""
        plan, residents = self.select(), self.pool.window.values()
        if self.token_budget is not None or not self.joint_prefill:
            return plan
        chunks = [Chunk(each, each.to_prefill) for each in residents if each.to_prefill]
        return replace(plan, chunks=tuple(chunks))

    def preempt(self, sequence: T) -> None:
        """Take all room from a sequence of the window and send it back to the queue."""
        self.allocator.leave(sequence)
        self.pool.send_back(sequence)

    def complete(self, plan: RoundPlan[T]) -> list[T]:
        """Record a round that has run; return the sequences that left the window."""
        self.round_index += 1
        self.allocator.settle(plan.members)
        if plan.chunks:
            self.allocator.note_chunks([chunk.sequence for chunk in plan.chunks])
        return self._after(plan)

    def cancel(self, sequence: T) -> list[T]:
        """Remove a sequence that was just marked as finished; return the sequences that left as a result."""
        self.allocator.leave(sequence)
        return self._take_out(sequence)

    def _after(self, plan: RoundPlan[T]) -> list[T]:
        return self._retire(plan.members)

    def _take_out(self, sequence: T) -> list[T]:
        return self._retire([sequence])

    def _least_urgent(self) -> T:
        *others, last = sorted((each for each in self.pool.window.values() if not each.finished), key=urgency)
        if not others:
            found = f"{last.seq_len} of {last.most_tokens} tokens"
            raise InvariantViolation("INV-16", row=None, expected="room for the longest row alone", found=found)
        return last

    def _retire(self, members: Iterable[T]) -> list[T]:
        finished = [sequence for sequence in members if sequence.finished]
        for sequence in finished:
            self.pool.retire(sequence)
        return finished
