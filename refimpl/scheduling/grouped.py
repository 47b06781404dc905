"""Groups of equal length from a window."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, islice
from typing import Self

from refimpl.core.engine_settings import EngineSettings
from refimpl.core.invariants import InvariantViolation
from refimpl.scheduling.base import RoundMode, RoundPlan, Scheduler, T
from refimpl.scheduling.groups import GroupIndex, GroupKey


class GroupedScheduler(Scheduler[T]):
    """Runs groups of equal length and equal cache state, so that nothing needs realigning.

    Of the keys with at least `batch_size` members, the first to reach that number in window order runs. When there
    is none, the oldest members run together (mode ``"fallback"``).

    A sequence ages by one in every round that passes it over, once it has run for the first time or is the oldest of
    the window. One that has aged by `aging_bound` rounds is due, and forces a round of those that have waited longest,
    filled up with the oldest (mode ``"aged"``). So no sequence waits more than aging_bound + ⌊window_size / batch_size⌋
    rounds between two of its rounds (INV-10), and every one gets to its first: the oldest of the window goes on
    within that bound, too, until it has finished. Those behind it wait for their first round without aging, since
    a round taken for them is taken from requests that have begun. Companions of the due row's own length would realign
    less, but leave other due rows behind: the bound would grow to one round for each sequence of the window.

    Members are indexed by key, and full groups by the ticket that filled them, so a round costs
    O(batch_size · log window_size) comparisons, for any window.

    Args:
        batch_size: rows a round runs at most, B.
        window_size: sequences eligible at a time, W ≥ B.
        aging_bound: rounds a sequence may be passed over before it is due, A; None for `default_aging_bound`,
            ``math.inf`` for never.
        options: those of every scheduler.
    """

    def __init__(self, batch_size: int, window_size: int, aging_bound: float | None = None, **options: bool):
        super().__init__(batch_size, window_size, **options)
        self.aging_bound = default_aging_bound(batch_size, window_size) if aging_bound is None else aging_bound
        self.waiting_bound = self.aging_bound + window_size // batch_size
        self._groups = GroupIndex(batch_size)
        self._last_run: OrderedDict[int, int] = OrderedDict()  # ticket -> round, of those that age, earliest first
        self._waited_at_most = 0  # no wait is longer; it is counted on, and looked up where it would matter

    @classmethod
    def of(cls, settings: EngineSettings, **options: bool) -> Self:
        """With the aging bound of a run."""
        sizes = settings.resolved_batch_size, settings.resolved_window_size
        return cls(*sizes, settings.aging_bound, **options)

    def group_key(self, sequence: T) -> GroupKey:
        """Equal keys may share a round without realignment (INV-11)."""
        return sequence.seq_len, sequence.cache_state

    def waited(self, sequence: T) -> int:
        """Rounds since the sequence last ran or began to age; 0 before that."""
        return self.round_index - self._last_run.get(sequence.ticket, self.round_index)

    def admit(self) -> list[T]:
        """Fill the window and index what entered."""
        entered = super().admit()
        self._index(entered)
        self._age_oldest()
        return entered

    def select(self) -> RoundPlan[T]:
        """Choose the overdue sequences if there are any, else a full group, else the oldest members."""
        if self._waited_at_most >= self.aging_bound and self._longest_wait() >= self.aging_bound:
            others = (ticket for ticket in self.pool.window if ticket not in self._last_run)
            return self._plan(chain(self._last_run, others), "aged")
        group = self._groups.first_full()
        return self._plan(self.pool.window, "fallback") if group is None else self._plan(group, "grouped")

    def preempt(self, sequence: T) -> None:
        """As every scheduler; it ages anew when it has run again."""
        self._groups.move([(sequence.ticket, None)])
        self._last_run.pop(sequence.ticket, None)
        super().preempt(sequence)

    def _after(self, plan: RoundPlan[T]) -> list[T]:
        """Re-index the members under their new lengths and retire those that finished."""
        finished = [sequence for sequence in plan.members if sequence.finished]
        self._index(plan.members)
        self.age(plan.members)
        if finished:
            self._forget(finished)
        self._check_waiting()
        return finished

    def _take_out(self, sequence: T) -> list[T]:
        """From the window and its index, or from the queue."""
        self._groups.move([(sequence.ticket, None)])
        self._forget([sequence])
        return [sequence]

    def _index(self, sequences: Iterable[T]) -> None:
        """Keep each under its key, and none that has finished."""
        key = self.group_key
        self._groups.move([(each.ticket, None if each.finished else key(each)) for each in sequences])

    def _plan(self, tickets: Iterable[int], mode: RoundMode) -> RoundPlan[T]:
        return RoundPlan(tuple(map(self.pool.window.__getitem__, islice(tickets, self.batch_size))), mode)

    # --- ages ------------------------------------------------------------------------------------------------------

    def age(self, sequences: Iterable[T]) -> None:
        """Note that these have just run, or begin to age: the rounds that pass them over count from now on."""
        last_run, now = self._last_run, self.round_index
        for sequence in sequences:
            last_run[sequence.ticket] = now
            last_run.move_to_end(sequence.ticket)

    def _age_oldest(self) -> None:
        oldest = next(iter(self.pool.window.values()), None)
        if oldest is not None and oldest.ticket not in self._last_run:
            self.age([oldest])

    def _longest_wait(self) -> int:
        return self.round_index - next(iter(self._last_run.values()), self.round_index)

    def _forget(self, gone: Iterable[T]) -> None:
        for sequence in gone:
            self._last_run.pop(sequence.ticket, None)
            self.pool.retire(sequence)
        self._age_oldest()

    def _check_waiting(self) -> None:
        self._waited_at_most += 1  # a round makes a wait longer by one, or ends it
        if self._waited_at_most <= self.waiting_bound:
            return
        self._waited_at_most = longest = self._longest_wait()
        if longest > self.waiting_bound:
            raise InvariantViolation("INV-10", row=None, expected=f"at most {self.waiting_bound} rounds", found=longest)


def default_aging_bound(batch_size: int, window_size: int) -> int:
    """Rounds in which the whole window could have run eight times, 8 · ⌈W/B⌉.

    At most W sequences are due once in A + 1 rounds, and an aged round runs up to B of them: of all rounds, at most
    about ⌈W/B⌉ / (A + 1) are aged, less than one in eight.
    """
    return 8 * -(-window_size // batch_size)
