"""Schedulers and pool on a few sequences each, where the right answer can be written down."""

import math
import random

import pytest

from refimpl.core.config import make_config
from refimpl.core.invariants import InvariantViolation
from refimpl.core.sequence import Sequence
from refimpl.scheduling import (
    ContinuousScheduler,
    FifoScheduler,
    GroupedScheduler,
    SequencePool,
    groups,
    make_scheduler,
)
from refimpl.scheduling.grouped import default_aging_bound
from refimpl.scheduling.groups import MOST_EMPTY, GroupIndex
from tests.scheduled_items import Item


def grouped(lengths: list[int], batch_size: int = 2, aging_bound: float = math.inf) -> GroupedScheduler:
    """A grouped scheduler whose window holds sequences of these lengths."""
    scheduler = GroupedScheduler(batch_size, len(lengths), aging_bound)
    scheduler.submit([Item(n) for n in lengths])
    scheduler.admit()
    return scheduler


def chosen(scheduler: GroupedScheduler) -> tuple[str, list[int]]:
    """Mode of the next round, and the members' tickets."""
    plan = scheduler.select()
    return plan.mode, [item.ticket for item in plan.members]


# --- pool ---------------------------------------------------------------------------------------------------------


def pool_of(n: int) -> SequencePool:
    pool: SequencePool = SequencePool()
    for _ in range(n):
        pool.submit(Item(1))
    pool.admit(2, lambda *_: True)
    pool.check_conservation()
    return pool


def test_a_lost_sequence_breaks_conservation():
    pool = pool_of(4)
    pool.waiting.pop()
    with pytest.raises(InvariantViolation, match=r"INV-9.*expected 4 distinct sequences, found 3 places, 3 distinct"):
        pool.check_conservation()


def test_a_doubled_sequence_breaks_conservation_though_the_number_is_right():
    pool = pool_of(4)
    pool.waiting[-1] = pool.window[0]
    with pytest.raises(InvariantViolation, match=r"INV-9.*found 4 places, 3 distinct unfinished of 4"):
        pool.check_conservation()


def test_a_sequence_that_is_finished_twice_breaks_conservation():
    pool = pool_of(4)
    pool.retire(pool.window[0])
    pool.check_conservation()
    pool.num_finished += 1
    with pytest.raises(InvariantViolation, match="INV-9"):
        pool.check_conservation()


# --- rooms ---------------------------------------------------------------------------------------------------------


def test_prompts_are_cached_as_a_whole_unless_it_is_said():
    assert FifoScheduler(2, 2).left_to_rounds == 0


@pytest.mark.parametrize(("budget", "entered"), [(7, 1), (8, 2)])
def test_a_round_of_all_rows_may_fill_its_budget(budget, entered):
    """Of four tokens each: three drafts, and the token before them."""
    scheduler = ContinuousScheduler(2, budget)
    scheduler.submit([Sequence(i, [1], 9, num_speculative_tokens=3) for i in range(2)])
    assert len(scheduler.admit()) == entered


# --- groups -------------------------------------------------------------------------------------------------------


def test_the_group_that_is_full_first_runs():
    assert chosen(grouped([5, 7, 7, 5, 7])) == ("grouped", [1, 2])


# --- waiting ------------------------------------------------------------------------------------------------------


def all_aging(lengths: list[int]) -> GroupedScheduler:
    """A scheduler whose rows age from the beginning, those that have not run included."""
    scheduler = grouped(lengths, aging_bound=2)
    scheduler.age(scheduler.pool.window.values())
    return scheduler


def test_waiting_is_counted_in_rounds_and_bounded():
    """Rounds of the first two only, as no right scheduler would choose them: the third waits one round too many."""
    scheduler = all_aging([5, 5, 7])
    first, _, last = scheduler.pool.window.values()
    for waited in range(3):  # 2 + ⌊3 / 2⌋ rounds are allowed
        assert (scheduler.waited(first), scheduler.waited(last)) == (0, waited)
        plan = scheduler._plan([0, 1], "grouped")
        assert [item.ticket for item in plan.members] == [0, 1]
        scheduler.complete(plan)
    with pytest.raises(InvariantViolation, match=r"INV-10.*expected at most 3 rounds, found 4"):
        scheduler.complete(scheduler._plan([0, 1], "grouped"))


def test_the_next_oldest_begins_to_age_when_the_oldest_is_gone():
    """At once, not when others enter."""
    scheduler = grouped([5, 7, 7])
    first, second, _ = scheduler.pool.window.values()
    first.finished = True
    scheduler.complete(scheduler._plan([0], "grouped"))
    scheduler.complete(scheduler._plan([2], "grouped"))
    assert scheduler.waited(second) == 1


def test_who_waits_just_as_long_as_it_may_breaks_nothing():
    scheduler = all_aging([5, 5, 7])
    for members in ([2], [0, 1], [0, 1], [0, 1]):
        scheduler.complete(scheduler._plan(members, "grouped"))
    assert scheduler.waited(scheduler.pool.window[2]) == scheduler.waiting_bound
    with pytest.raises(InvariantViolation, match=r"INV-10.*expected at most 3 rounds, found 4"):
        scheduler.complete(scheduler._plan([0, 1], "grouped"))


def test_the_longest_waiting_run_when_one_of_them_is_due():
    scheduler = all_aging([5, 5, 7, 8])
    assert rounds(scheduler, 4) == [("grouped", [0, 1]), ("grouped", [0, 1]), ("aged", [2, 3]), ("grouped", [0, 1])]


def rounds(scheduler: GroupedScheduler, count: int) -> list[tuple[str, list[int]]]:
    """Mode and members of so many rounds in which nothing grows."""
    found = []
    for _ in range(count):
        found.append(chosen(scheduler))
        scheduler.complete(scheduler.select())
    return found


def test_the_oldest_ages_though_it_has_not_begun_and_runs_with_the_next_oldest():
    scheduler = grouped([4, 6, 5, 5], aging_bound=2)
    assert rounds(scheduler, 3) == [("grouped", [2, 3]), ("grouped", [2, 3]), ("aged", [0, 2])]


def test_an_aged_round_is_filled_with_the_oldest():
    scheduler = grouped([4, 6, 7, 5, 5], aging_bound=1)
    scheduler.complete(scheduler.select())  # 3 and 4
    for item in list(scheduler.pool.window.values())[3:]:
        item.finished = True
        scheduler.cancel(item)
    assert chosen(scheduler) == ("aged", [0, 1])


def test_the_index_of_groups_agrees_with_a_look_at_all_of_them_and_stays_small():
    rng = random.Random(5)
    scheduler = grouped([rng.randint(1, 9) for _ in range(60)], batch_size=4)
    for _ in range(2000):
        plan = scheduler.select()
        assert (plan.mode, plan.members) == looked_up(scheduler)
        for item in plan.members:
            item.seq_len = rng.randint(1, 9)
        scheduler.complete(plan)
    assert len(scheduler._groups._filled) <= len(scheduler._groups._groups) <= 9


def test_groups_that_have_lost_their_members_are_not_kept_forever():
    index = GroupIndex(full=2)
    for length in range(3 * MOST_EMPTY):
        index.move([(0, (length, 1)), (1, (length, 1))])
        assert index.first_full() == [0, 1]
    assert len(index._groups) <= MOST_EMPTY + 3


def test_groups_that_have_members_outlive_those_that_have_none(monkeypatch):
    monkeypatch.setattr(groups, "MOST_EMPTY", 3)
    index = GroupIndex(full=2)
    index.move([(0, (99, 1))])
    kept = []
    for length in range(9):
        index.move([(1, (length, 1))])
        kept.append(len(index._groups))
    assert kept == [2, 3, 4, 5, 2, 3, 4, 5, 2]
    index.move([(1, (99, 1))])
    assert index.first_full() == [0, 1]


def looked_up(scheduler: GroupedScheduler) -> tuple[str, tuple[Item, ...]]:
    """The round by the definition: every group of the window is looked at."""
    window, full = list(scheduler.pool.window.values()), scheduler.batch_size
    groups = [[m for m in window if m.seq_len == n] for n in range(1, 10)]
    complete = [g for g in groups if len(g) >= full]
    best = min(complete, key=lambda g: g[full - 1].ticket, default=window)
    return ("grouped" if complete else "fallback"), tuple(best[:full])


@pytest.mark.parametrize(("batch_size", "window_size", "bound"), [(1, 1, 8), (4, 16, 32), (3, 7, 24), (4, 3, 8)])
def test_by_default_the_window_may_pass_a_sequence_over_eight_times(batch_size, window_size, bound):
    assert default_aging_bound(batch_size, window_size) == bound
    assert GroupedScheduler(batch_size, window_size).aging_bound == bound


# --- static and fifo ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "grouped"])
def test_a_free_place_is_filled_at_once_unless_refilling_is_off(kind):
    for refill, entered in ((True, [2]), (False, [])):
        scheduler = make_scheduler(make_config(method=f"inplace+{kind}", batch_size=2, window_size=2), refill=refill)
        items = [Item(1) for _ in range(3)]
        scheduler.submit(items)
        scheduler.admit()
        items[0].finished = True
        scheduler.complete(scheduler.select())
        assert [item.ticket for item in scheduler.admit()] == entered
        assert scheduler.round_index == 1
