"""The scheduler as a relation, in Python: the counterpart of `proofs/coq/Scheduling.v`.

Imports nothing of the engine. States are plain tuples; every function returns the reason why a step is not
allowed, or None.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

from proofs.conformance.room_spec import Blocks

Key = tuple[int, int]


@dataclass(frozen=True)
class State:
    """Tickets in their three places; `window` in order of arrival, with rounds waited; `ended` rows hold a place.

    Rounds count for those who have run, `begun`, and for the oldest.
    """

    waiting: tuple[int, ...]
    window: tuple[tuple[int, int], ...] = ()
    finished: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()  # static batches only: finished, but still in the window
    begun: frozenset[int] = frozenset()

    @property
    def tickets(self) -> tuple[int, ...]:
        return tuple(ticket for ticket, _ in self.window)

    @property
    def everyone(self) -> list[int]:
        return sorted([*self.waiting, *self.tickets, *self.finished])


@dataclass(frozen=True)
class Rules:
    """Which scheduler, with B, W and A; `blocks` where room is short."""

    policy: str
    batch: int
    capacity: int
    aging: float = math.inf
    blocks: Blocks | None = None

    @property
    def default_aging(self) -> int:
        """Eight turns of the window."""
        return 8 * -(-self.capacity // self.batch)

    @property
    def waiting_bound(self) -> float:
        """A + ⌊(W - 1) / B⌋, as proved."""
        return self.aging + (self.capacity - 1) // self.batch


def admitted(state: State, rules: Rules, fitting: int) -> State:
    """Oldest first, until the window is full or no more fit; a static batch only once the window is empty."""
    room = rules.capacity - len(state.window)
    if rules.policy == "static":
        room = 0 if state.window else rules.batch
    entering = state.waiting[: min(room, fitting)]
    return replace(state, waiting=state.waiting[len(entering) :], window=state.window + tuple((t, 0) for t in entering))


def sent_back(state: State, tickets: tuple[int, ...]) -> State:
    """The state after these have left the window, one by one, for the head of the queue; their waiting starts anew."""
    window = tuple((t, w) for t, w in state.window if t not in tickets)
    return replace(state, waiting=(*tickets[::-1], *state.waiting), window=window, begun=state.begun - set(tickets))


def choice_fault(state: State, keys: dict[int, Key], mode: str, members: tuple[int, ...], rules: Rules) -> str | None:
    """Why these members may not run."""
    if len(set(members)) != len(members) or not set(members) <= set(state.tickets):
        return f"members {members} are not distinct tickets of the window {state.tickets}"
    if rules.policy != "grouped":
        return None if (mode, members) == (rules.policy, state.tickets) else f"{mode} {members}, not everybody"
    wanted_size = min(rules.batch, len(state.window))
    if len(members) != wanted_size:
        return f"{len(members)} members, expected {wanted_size}"
    wait = dict(state.window)
    if max(wait.values()) >= rules.aging:
        passed_over = [wait[t] for t in state.tickets if t not in members]
        fair = all(w <= wait[m] for m in members for w in passed_over)
        return None if mode == "aged" and fair else f"somebody is overdue in {state.window}, ran {mode} {members}"
    group = first_full_group(state, keys, rules.batch)
    if group:
        return None if (mode, members) == ("grouped", group) else f"group {group} is full, ran {mode} {members}"
    oldest = state.tickets[: rules.batch]
    return None if (mode, members) == ("fallback", oldest) else f"oldest are {oldest}, ran {mode} {members}"


def first_full_group(state: State, keys: dict[int, Key], batch: int) -> tuple[int, ...]:
    """Members of the first key to reach `batch` in window order; empty when there is none."""
    count: Counter[Key] = Counter()
    for ticket in state.tickets:
        count[keys[ticket]] += 1
        if count[keys[ticket]] == batch:
            return tuple(t for t in state.tickets if keys[t] == keys[ticket])[:batch]
    return ()


def played(state: State, members: tuple[int, ...], ended: frozenset[int], rules: Rules) -> State:
    """The state after a round in which `ended` are the members that have finished by now."""
    out = ended
    if rules.policy == "static":
        out = frozenset(state.tickets) if set(state.tickets) <= ended else frozenset()
    ages = state.begun | set(state.tickets[:1])
    window = tuple((t, 0 if t in members else w + (t in ages)) for t, w in state.window if t not in out)
    begun = (state.begun | set(members)) - out
    return replace(state, window=window, finished=state.finished | out, ended=ended - out, begun=begun)


def cancelled(state: State, ticket: int, rules: Rules) -> State:
    """The state after taking one sequence out; in a static batch it keeps its place until all have ended."""
    if rules.policy == "static" and ticket in state.tickets:
        ended = state.ended | {ticket}
        return played(state, state.tickets, ended, rules)
    return replace(
        state,
        waiting=tuple(t for t in state.waiting if t != ticket),
        window=tuple((t, w) for t, w in state.window if t != ticket),
        finished=state.finished | {ticket},
        begun=state.begun - {ticket},
    )


def state_fault(state: State, submitted: int, rules: Rules) -> str | None:
    """INV-9 and INV-10 of a state, and that nobody overtakes in the queue."""
    if state.everyone != list(range(submitted)):
        return f"INV-9: {state}"
    line = [*state.tickets, *state.waiting]
    if line != sorted(line):
        return f"out of order: {state}"
    if rules.policy == "grouped" and any(w > rules.waiting_bound for _, w in state.window):
        return f"INV-10: {state.window} beyond {rules.waiting_bound}"
    return None
