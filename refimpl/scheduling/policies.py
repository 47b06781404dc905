"""Schedulers: static batches, first in first out with refill, and equal-length groups from a window."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

from refimpl.errors import InvariantViolation
from refimpl.scheduling.pool import Schedulable, SequencePool

T = TypeVar("T", bound=Schedulable)
RoundMode = Literal["static", "fifo", "grouped", "fallback", "aged"]
GroupKey = tuple[int, int]
Estimate = Callable[[tuple[Any, ...]], float]


@dataclass(frozen=True, slots=True)
class SchedulingOptions:
    """Departures from the named schedulers, for studies; the defaults are the schedulers as named.

    Attributes:
        refill: whether a free place is filled at once; otherwise only when the window is empty.
        choice: which full group runs: the first to be full, or the one with most members.
        partial_groups: run the largest group of at least two when none is full.
        bucket_tokens: lengths within one bucket count as equal. Above 1 a group needs padding, and INV-11 does not
            hold for its lengths.
        estimate: seconds per expected token of a choice of members; when given, a group runs only if it is no worse
            than the oldest members.
    """

    refill: bool = True
    choice: Literal["first", "largest"] = "first"
    partial_groups: bool = False
    bucket_tokens: int = 1
    estimate: Estimate | None = None


DEFAULT_OPTIONS = SchedulingOptions()


@dataclass(frozen=True, slots=True)
class RoundPlan(Generic[T]):
    """The members of a round, in row order, and why they were chosen."""

    members: tuple[T, ...]
    mode: RoundMode


class Scheduler(ABC, Generic[T]):
    """Chooses the members of every round.

    The engine calls, per round: `admit` (prefill what it returns), `select`, then `complete` with the plan once the
    members' lengths and finished flags are up to date.

    Args:
        batch_size: rows a round runs at most, B.
        window_size: sequences with K/V at a time, W ≥ B.
        options: departures from the scheduler as named.
    """

    def __init__(self, batch_size: int, window_size: int, *, options: SchedulingOptions = DEFAULT_OPTIONS):
        self.batch_size = batch_size
        self.window_size = window_size
        self.options = options
        self.pool: SequencePool[T] = SequencePool()
        self.round_index = 0

    @property
    def done(self) -> bool:
        """Whether no unfinished sequence is left."""
        return not self.pool.waiting and not self.pool.window

    def submit(self, sequences: Iterable[T]) -> None:
        """Add sequences to the waiting line, in order."""
        for sequence in sequences:
            self.pool.submit(sequence)

    def admit(self) -> list[T]:
        """Fill the window; return the sequences that entered it."""
        if self.pool.window and not self.options.refill:
            return []
        return self.pool.admit(self.window_size - len(self.pool.window))

    @abstractmethod
    def select(self) -> RoundPlan[T]:
        """Choose the members of the next round from the window, which is not empty."""

    def complete(self, plan: RoundPlan[T]) -> list[T]:
        """Take note of a round that has run; return the sequences that left the window."""
        self.round_index += 1
        return self._retire(plan.members)

    def cancel(self, sequence: T) -> list[T]:
        """Take out a sequence that was just marked as finished; return the sequences that left by that."""
        return self._retire([sequence])

    def _retire(self, members: Iterable[T]) -> list[T]:
        finished = [sequence for sequence in members if sequence.finished]
        for sequence in finished:
            self.pool.retire(sequence)
        return finished


class StaticScheduler(Scheduler[T]):
    """A batch runs until all of its members have finished; finished rows keep their place meanwhile."""

    def admit(self) -> list[T]:
        """Take the next batch once the window is empty."""
        return [] if self.pool.window else self.pool.admit(self.batch_size)

    def select(self) -> RoundPlan[T]:
        """Run the whole batch, finished rows included."""
        return RoundPlan(tuple(self.pool.window.values()), "static")

    def complete(self, plan: RoundPlan[T]) -> list[T]:
        """Release the batch when its last member has finished."""
        self.round_index += 1
        return self._release_batch()

    def cancel(self, sequence: T) -> list[T]:
        """Take a waiting sequence out; one in the batch keeps its place until the batch is released."""
        return self._release_batch() if sequence.ticket in self.pool.window else super().cancel(sequence)

    def _release_batch(self) -> list[T]:
        batch = list(self.pool.window.values())
        return self._retire(batch) if all(sequence.finished for sequence in batch) else []


class FifoScheduler(Scheduler[T]):
    """Every row runs in every round; a finished row is replaced at once."""

    def select(self) -> RoundPlan[T]:
        """Run everything in the window."""
        return RoundPlan(tuple(self.pool.window.values()), "fifo")


class GroupedScheduler(Scheduler[T]):
    """Runs groups of equal length and equal cache state, so that nothing needs realigning.

    Of the keys with at least `batch_size` members, the first to reach that number in window order runs. When there
    is none, the oldest members run together (mode ``"fallback"``). A sequence that has waited `aging_bound` rounds
    forces a round of the longest-waiting (mode ``"aged"``), so none waits more than
    aging_bound + ⌊window_size / batch_size⌋ rounds (INV-10).

    Members are indexed by key, so a round costs O(batch_size · log group), whatever the window.

    Args:
        batch_size: rows a round runs at most, B.
        window_size: sequences eligible at a time, W ≥ B.
        aging_bound: rounds a sequence may be passed over before it is due, A. None stands for eight turns of the
            window; ``math.inf`` switches aging off.
    """

    def __init__(
        self,
        batch_size: int,
        window_size: int,
        aging_bound: float | None = None,
        *,
        options: SchedulingOptions = DEFAULT_OPTIONS,
    ):
        super().__init__(batch_size, window_size, options=options)
        self.aging_bound = default_aging_bound(batch_size, window_size) if aging_bound is None else aging_bound
        self._key_of: dict[int, GroupKey] = {}
        self._tickets: dict[GroupKey, list[int]] = {}
        self._full: set[GroupKey] = set()
        self._last_run: OrderedDict[int, int] = OrderedDict()  # ticket -> round, longest-waiting first

    def group_key(self, sequence: T) -> GroupKey:
        """Equal keys may share a round without realignment (INV-11)."""
        return -(-sequence.seq_len // self.options.bucket_tokens), sequence.cache_state

    def waited(self, sequence: T) -> int:
        """Rounds since the sequence last ran or entered the window."""
        return self.round_index - self._last_run[sequence.ticket]

    def admit(self) -> list[T]:
        """Fill the window and index what entered."""
        entered = super().admit()
        for sequence in entered:
            self._last_run[sequence.ticket] = self.round_index
            self._insert(sequence)
        return entered

    def select(self) -> RoundPlan[T]:
        """Choose an overdue round, else a full group, else the oldest members."""
        if self._longest_wait() >= self.aging_bound:
            return self._plan(self._last_run, "aged")
        key = self._best_key()
        if key is None:
            return self._plan(self.pool.window, "fallback")
        return self._cheaper(self._plan(self._tickets[key], "grouped"))

    def complete(self, plan: RoundPlan[T]) -> list[T]:
        """Re-index the members under their new lengths and retire those that finished."""
        for sequence in plan.members:
            self._remove(sequence)
        finished = super().complete(plan)
        for sequence in plan.members:
            if not sequence.finished:
                self._last_run[sequence.ticket] = self.round_index
                self._insert(sequence)
        self._check_waiting()
        return finished

    def cancel(self, sequence: T) -> list[T]:
        """Take a sequence out of the window and its index, or out of the waiting line."""
        if sequence.ticket in self._key_of:
            self._remove(sequence)
        return super().cancel(sequence)

    def _best_key(self) -> GroupKey | None:
        tickets = self._tickets
        if self._full and self.options.choice == "first":
            return min(self._full, key=lambda key: tickets[key][self.batch_size - 1])
        if not self._full and not self.options.partial_groups:
            return None
        best = max(self._full or tickets, key=lambda key: (len(tickets[key]), -tickets[key][0]))
        return best if len(tickets[best]) >= min(2, self.batch_size) else None

    def _cheaper(self, grouped: RoundPlan[T]) -> RoundPlan[T]:
        estimate = self.options.estimate
        if estimate is None:
            return grouped
        oldest = self._plan(self.pool.window, "fallback")
        return grouped if estimate(grouped.members) <= estimate(oldest.members) else oldest

    def _plan(self, tickets: Iterable[int], mode: RoundMode) -> RoundPlan[T]:
        return RoundPlan(tuple(self.pool.window[ticket] for ticket in islice(tickets, self.batch_size)), mode)

    def _longest_wait(self) -> int:
        return self.round_index - next(iter(self._last_run.values()), self.round_index)

    def _insert(self, sequence: T) -> None:
        key = self.group_key(sequence)
        tickets = self._tickets.setdefault(key, [])
        insort(tickets, sequence.ticket)
        self._key_of[sequence.ticket] = key
        if len(tickets) == self.batch_size:
            self._full.add(key)

    def _remove(self, sequence: T) -> None:
        key = self._key_of.pop(sequence.ticket)
        tickets = self._tickets[key]
        tickets.remove(sequence.ticket)
        del self._last_run[sequence.ticket]
        if len(tickets) == self.batch_size - 1:
            self._full.discard(key)
        if not tickets:
            del self._tickets[key]

    def _check_waiting(self) -> None:
        bound = self.aging_bound + self.window_size // self.batch_size
        longest = self._longest_wait()
        if longest > bound:
            raise InvariantViolation(
                "INV-10", "bounded waiting", row=None, expected=f"at most {bound} rounds", found=longest
            )


def default_aging_bound(batch_size: int, window_size: int) -> int:
    """Rounds in which the whole window could have run eight times."""
    return 8 * -(-window_size // batch_size)


SCHEDULER_CLASSES: dict[str, type[Scheduler]] = {
    "static": StaticScheduler,
    "fifo": FifoScheduler,
    "grouped": GroupedScheduler,
}


def make_scheduler(
    name: str,
    batch_size: int,
    window_size: int,
    aging_bound: float | None = None,
    *,
    options: SchedulingOptions = DEFAULT_OPTIONS,
) -> Scheduler:
    """Build a scheduler by name: one of `SCHEDULER_CLASSES`. `window_size` matters to ``"grouped"`` only."""
    if name == "grouped":
        return GroupedScheduler(batch_size, window_size, aging_bound, options=options)
    return SCHEDULER_CLASSES[name](batch_size, batch_size, options=options)
