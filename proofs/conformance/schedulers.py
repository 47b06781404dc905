"""``python -m proofs.conformance.schedulers``: breadth-first search over the real scheduler classes.

Pools of up to five sequences, every prompt length, acceptance, stop and cancellation: each transition of
`refimpl.scheduling` is compared with the relation in `scheduler_spec`.
"""

import itertools
import math
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from proofs.conformance import scheduler_spec as spec
from proofs.report import report
from refimpl.faults import FAULTS
from refimpl.scheduling import Scheduler, make_scheduler

PROMPTS = (1, 2)  # prompt lengths
MAX_STATES = 200_000  # a search that reaches this was truncated: a failure
OUTCOMES = ((1, 1, False), (1, 1, True), (2, 1, False), (2, 2, False))  # kept, draft lag afterwards, stopped


@dataclass(eq=False, slots=True)
class Dummy:
    """All that a scheduler may know of a sequence."""

    seq_len: int
    cache_state: int = 1
    finished: bool = False
    ticket: int = -1


@dataclass(frozen=True)
class Verdict:
    name: str
    ok: bool
    detail: str = ""


@dataclass
class Node:
    """A real scheduler between two rounds, its sequences by ticket, and the state that the relation predicts.

    A sequence of `limit` tokens has spent its budget.
    """

    limit: int
    real: Scheduler[Dummy]
    rows: list[Dummy]
    state: spec.State

    def fingerprint(self) -> tuple:
        rows = tuple((r.seq_len, r.cache_state, r.finished) for r in self.rows)
        by_wait = getattr(self.real, "_by_wait", tuple)
        return self.state, rows, tuple(by_wait())

    def observed(self) -> tuple:
        pool, waited = self.real.pool, getattr(self.real, "waited", None)
        waits = {t: waited(row) for t, row in pool.window.items()} if waited else None
        return tuple(r.ticket for r in pool.waiting), tuple(pool.window), waits, pool.num_finished

    def predicted(self) -> tuple:
        waits = dict(self.state.window) if hasattr(self.real, "waited") else None
        return self.state.waiting, self.state.tickets, waits, len(self.state.finished)


class FaultError(Exception):
    """A transition of the real class that the relation does not allow."""


def start(prompts: tuple[int, ...], rules: spec.Rules, limit: int) -> Node:
    rows = [Dummy(n) for n in prompts]
    aging = rules.aging if rules.policy == "grouped" else None
    real = make_scheduler(rules.policy, rules.batch, rules.capacity, aging)
    real.submit(rows)
    return Node(limit, real, rows, spec.State(tuple(range(len(rows)))))


def rounds(node: Node, rules: spec.Rules, modes: Counter[str]) -> Iterator[Node]:
    """Admit and select once, then every combination of outcomes."""
    node = clone(node)
    entered = tuple(r.ticket for r in node.real.admit())
    before = node.state
    node.state = spec.admitted(before, rules)
    demand(entered == node.state.tickets[len(before.window) :], f"admitted {entered}, expected {node.state.tickets}")
    plan = node.real.select()
    members = tuple(r.ticket for r in plan.members)
    keys = {t: (node.rows[t].seq_len, node.rows[t].cache_state) for t in node.state.tickets}
    fault = spec.choice_fault(node.state, keys, plan.mode, members, rules)
    demand(fault is None, fault)
    modes[plan.mode] += 1
    running = [t for t in members if not node.rows[t].finished]
    for outcomes in itertools.product(*(possible(node.rows[t], node.limit) for t in running)):
        yield played(node, members, dict(zip(running, outcomes, strict=True)), rules)


def possible(row: Dummy, limit: int) -> list[tuple[int, int, bool]]:
    return [o for o in OUTCOMES if row.seq_len + o[0] <= limit]


def played(node: Node, members: tuple[int, ...], outcomes: dict[int, tuple[int, int, bool]], rules: spec.Rules) -> Node:
    child = clone(node)
    for ticket, (kept, lag, stopped) in outcomes.items():
        row = child.rows[ticket]
        row.seq_len, row.cache_state = row.seq_len + kept, lag
        row.finished = stopped or row.seq_len == child.limit
    plan = child.real.select()  # the same choice again: selecting changes nothing
    demand(tuple(r.ticket for r in plan.members) == members, "select is not repeatable")
    left = {r.ticket for r in child.real.complete(plan)}
    demand(child.real.round_index == node.real.round_index + 1, "rounds are not counted one by one")
    ended = frozenset(t for t in child.state.tickets if child.rows[t].finished)
    before = child.state.finished
    child.state = spec.played(child.state, members, ended, rules)
    demand(left == child.state.finished - before, f"left {left}")
    return child


def cancellations(node: Node, rules: spec.Rules) -> Iterator[Node]:
    for row in node.rows:
        if not row.finished:
            child = clone(node)
            target = child.rows[row.ticket]
            target.finished = True
            child.real.cancel(target)
            child.state = spec.cancelled(child.state, row.ticket, rules)
            yield child


def clone(node: Node) -> Node:
    return pickle.loads(pickle.dumps(node, -1))


def demand(holds: bool, why: str | None) -> None:
    if not holds:
        raise FaultError(why)


def search(size: int, rules: spec.Rules, *, limit: int, cancel: bool) -> tuple[int, int, Counter[str], int]:
    """Visit every reachable state; return states, transitions, modes seen and the longest wait."""
    frontier = [start(prompts, rules, limit) for prompts in itertools.product(PROMPTS, repeat=size)]
    seen = {node.fingerprint() for node in frontier}
    modes: Counter[str] = Counter()
    transitions = longest = 0
    while frontier:
        node = frontier.pop()
        demand(len(seen) < MAX_STATES, "search truncated")
        demand(node.observed() == node.predicted(), f"real {node.observed()}, relation {node.predicted()}")
        fault = spec.state_fault(node.state, size, rules)
        demand(fault is None, fault)
        longest = max([longest, *(wait for _, wait in node.state.window)])
        if node.real.done:
            demand(len(node.state.finished) == size, "done too early")
            continue
        children = itertools.chain(rounds(node, rules, modes), cancellations(node, rules) if cancel else ())
        for child in children:
            transitions += 1
            key = child.fingerprint()
            if key not in seen:
                seen.add(key)
                frontier.append(child)
    return len(seen), transitions, modes, longest


def configurations() -> Iterator[tuple[int, spec.Rules, int, bool]]:
    """Pool size, rules, tokens at which a budget is spent, whether sequences are cancelled."""
    for policy in ("static", "fifo"):
        yield from ((size, spec.Rules(policy, 2, 2), 4, size <= 3) for size in (1, 3, 4))
        yield 5, spec.Rules(policy, 2, 2), 3, False
    for aging in (1, 0, 2, math.inf):
        yield 3, spec.Rules("grouped", 1, 3, aging), 4, True
        yield 4, spec.Rules("grouped", 2, 3, aging), 4, False
        yield 4, spec.Rules("grouped", 3, 4, aging), 3, False
        yield 5, spec.Rules("grouped", 2, 5, aging), 3, False
    yield 3, spec.Rules("grouped", 2, 3, 1), 4, True


def verdicts(policies: tuple[str, ...] = ("static", "fifo", "grouped")) -> Iterator[Verdict]:
    """One verdict per configuration, and one on what the searches have reached."""
    reached: Counter[str] = Counter()
    for size, rules, limit, cancel in configurations():
        if rules.policy not in policies:
            continue
        name = f"{rules.policy}, pool {size}, B = {rules.batch}, W = {rules.capacity}, A = {rules.aging}"
        name += ", cancellations" if cancel else ""
        try:
            states, transitions, modes, longest = search(size, rules, limit=limit, cancel=cancel)
        except Exception as error:
            yield Verdict(name, False, f"{type(error).__name__}: {error}")
            continue
        reached += modes
        yield Verdict(f"{name}: {states} states, {transitions} transitions, longest wait {longest}", True)
    missing = {"static", "fifo", "grouped", "fallback", "aged"} - set(reached)
    yield Verdict("the searches reach every mode", not missing, f"never chosen: {sorted(missing)}")


def zoo_verdicts() -> Iterator[Verdict]:
    """Expected failures: the search must find out every fault of the engine's zoo that is a scheduler's."""
    for fault in FAULTS.values():
        if getattr(fault.owner, "__module__", "").startswith("refimpl.scheduling"):
            with fault.injected():
                noticed = next((v for v in verdicts(fault.schedulers) if not v.ok), None)
            detail = f"{noticed.name}: {noticed.detail}" if noticed else "no search notices"
            yield Verdict(f"expected failure: {fault.name}: {detail}", noticed is not None)


if __name__ == "__main__":
    sys.exit(report("schedulers", itertools.chain(verdicts(), zoo_verdicts())))
