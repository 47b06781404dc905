"""Two cohorts: exhaustive search over the real scheduler of overlapped execution (INV-21).

A state is the window in order: of each row, whether its drafts are there, and the rounds since it last ran. In a round
any of its members may finish; before it any rows may leave, and any number may enter. For a window of given size the
states are finite in number, so histories of any length are covered.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from proofs.conformance.schedulers import Dummy
from proofs.report import Verdict
from refimpl.faults import FAULTS
from refimpl.scheduling import OverlappedScheduler, RoundPlan

SIZES = (1, 2, 3, 4, 5, 6)  # rows of the window
LONGEST_WAIT = 2  # rounds between two rounds of a row
Row = tuple[bool, int]  # whether its drafts are there, and rounds since it entered or last ran
State = tuple[Row, ...]


class FaultError(Exception):
    """A plan that breaks a claim."""


def plan_of(state: State, size: int) -> tuple[OverlappedScheduler[Dummy], RoundPlan[Dummy]]:
    """The real scheduler in a state, and what it plans."""
    scheduler: OverlappedScheduler[Dummy] = OverlappedScheduler(size, size)
    scheduler.submit([Dummy(1) for _ in state])
    scheduler.admit()
    scheduler.ahead = {ticket for ticket, (drafted, _) in enumerate(state) if drafted}
    return scheduler, scheduler.select()


def planned(state: State, size: int, lossless: bool) -> Iterator[State]:
    """States after a round, for every choice of members that finish in it."""
    _, plan = plan_of(state, size)
    members, ahead = ({row.ticket for row in rows} for rows in (plan.members, plan.ahead))
    drafted = {ticket for ticket, (there, _) in enumerate(state) if there}
    require(not members & ahead, "a row in both cohorts", state)
    require(bool(members), "a round in which nothing runs", state)
    require(not drafted or members == drafted, "drafts that are not verified in the next round", state)
    require(len(ahead) == min(len(state) - len(members), -(-len(state) // 2)), "cohorts out of balance", state)
    waits = [0 if ticket in members else wait + 1 for ticket, (_, wait) in enumerate(state)]
    require(not lossless or max(waits) <= LONGEST_WAIT, "a row that waits too long", state)
    for ends in subsets(sorted(members)):
        scheduler, plan = plan_of(state, size)
        for row in scheduler.pool.window.values():
            row.finished = row.ticket in ends
        scheduler.complete(plan)
        require(scheduler.ahead == ahead, "drafts that are there, and were not made in the round before", state)
        yield tuple((row.ticket in ahead, waits[row.ticket]) for row in scheduler.pool.window.values())


def between(state: State, size: int, lossless: bool) -> Iterator[State]:
    """States after rows have left or entered between two rounds; what enters is the youngest."""
    for gone in [()] if lossless else subsets(range(len(state))):
        stay = tuple(row for ticket, row in enumerate(state) if ticket not in gone)
        yield from (stay + ((False, 0),) * more for more in range(size - len(stay) + 1))


def subsets(items: range | list[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(items, n) for n in range(len(items) + 1))


def require(holds: bool, what: str, state: State) -> None:
    if not holds:
        raise FaultError(f"{what}: {state}")


def search(size: int, *, lossless: bool) -> int:
    """States that are reached, all of them checked.

    Args:
        size: rows of the window.
        lossless: whether no row leaves before it has finished.
    """
    frontier = [state for state in between((), size, lossless) if state]
    seen = set(frontier)
    while frontier:
        for after in planned(frontier.pop(), size, lossless):
            new = {state for state in between(after, size, lossless) if state} - seen
            seen |= new
            frontier += new
    return len(seen)


def found_in(size: int, *, lossless: bool) -> tuple[str, int]:
    """What a search finds to be wrong, nothing if all is right; and its states."""
    try:
        return "", search(size, lossless=lossless)
    except FaultError as error:
        return str(error), 0


SELECT = OverlappedScheduler.select


def forgetting(self: Any) -> RoundPlan:
    """A choice that does not know what was drafted ahead."""
    self.ahead = set()
    return SELECT(self)


def taking_all(self: Any) -> RoundPlan:
    """A choice that drafts for every row that does not run."""
    plan = SELECT(self)
    members = {row.ticket for row in plan.members}
    return replace(plan, ahead=tuple(row for row in self.pool.window.values() if row.ticket not in members))


def youngest_first(self: Any) -> RoundPlan:
    """A choice that drafts for the youngest of the rows that do not run."""
    return replace(SELECT(self), ahead=taking_all(self).ahead[-len(self.pool.window) // 2 :])


def running_nothing(self: Any) -> RoundPlan:
    """A choice that only drafts where no drafts are there."""
    return replace(SELECT(self), members=()) if not self.ahead else SELECT(self)


# The claim that a wrong choice breaks, and rows of the smallest window in which it does.
WRONG: dict[str, tuple[int, Callable[[Any], RoundPlan]]] = {
    "a round in which nothing runs": (1, running_nothing),
    "drafts that are not verified in the next round": (2, forgetting),
    "cohorts out of balance": (4, taking_all),
    "a row that waits too long": (6, youngest_first),
}


def check() -> Iterator[Verdict]:
    """Both kinds of histories, and wrong choices that the search must find out, each by the claim it breaks.

    Waits are bounded where no row leaves early. These come first: without the bound, wrong choices never run out of
    states.
    """
    for lossless, size in itertools.product((True, False), SIZES):
        found, states = found_in(size, lossless=lossless)
        name = f"cohorts of {size} rows, {'no row leaves early' if lossless else 'rows leave at any time'}"
        yield Verdict(f"{name}: {states} states", not found, found)
    with FAULTS["drafted-while-verified"].injected():
        found, _ = found_in(2, lossless=True)
    yield Verdict(f"expected failure: drafted-while-verified: {found}", found.startswith("a row in both cohorts"))
    for claim, (size, wrong) in WRONG.items():
        with patch.object(OverlappedScheduler, "select", wrong):
            found, _ = found_in(size, lossless=True)
        yield Verdict(f"expected failure: {wrong.__name__}: {found}", found.startswith(claim))
