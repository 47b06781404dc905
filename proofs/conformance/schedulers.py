"""Exhaustive search over the real scheduler classes.

Pools of up to five sequences, every prompt length, acceptance, stop and cancellation: each transition of
`refimpl.scheduling` is compared with the relation in `scheduler_spec`, and with that in `room_spec` where the K/V are
in a small pool of blocks. Every round makes some sequence longer, so that no path goes on for ever.
"""

import itertools
import math
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from proofs.conformance import room_spec
from proofs.conformance import scheduler_spec as spec
from proofs.report import Verdict
from refimpl import DecodeConfig, scheduling
from refimpl.scheduling import Scheduler

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
    priority: int = 0
    most_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    num_prefix_hits: int = 0

    @property
    def cached_at_entry(self) -> int:
        """All but the last, in one pass."""
        return self.seq_len - 1

    def block_tokens(self, start: int, stop: int) -> tuple[int, int, int]:
        """Tokens that no other sequence has: the searches run without sharing."""
        return self.ticket, start, stop


@dataclass
class Node:
    """A real scheduler between two rounds, its sequences by ticket, and the state that the relation predicts.

    A sequence of `limit` tokens has spent its budget.
    """

    limit: int
    real: Scheduler[Dummy]
    rows: list[Dummy]
    state: spec.State

    @property
    def residents(self) -> room_spec.Lengths:
        """Lengths of those in the window that run on."""
        return {t: self.rows[t].seq_len for t in self.state.tickets if not self.rows[t].finished}

    @property
    def tables(self) -> room_spec.Tables:
        return {row.ticket: tuple(row.blocks) for row in self.rows}

    def fingerprint(self) -> tuple:
        """What decides how it goes on; not which blocks a row has, nor what is kept to find groups and waits sooner.

        What is observed is part of it: a wrong step to a state that is known already makes a new one, and is met.
        """
        rows = tuple((r.seq_len, r.cache_state, r.finished) for r in self.rows)
        return self.state, rows, tuple(getattr(self.real, "_last_run", ())), repr(self.observed())

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
    rows = [Dummy(n, most_tokens=limit) for n in prompts]
    aging = rules.aging if rules.policy == "grouped" and rules.aging != rules.default_aging else None
    sizes = {"batch_size": rules.batch, "window_size": max(rules.batch, rules.capacity), "aging_bound": aging}
    real = scheduling.make_scheduler(DecodeConfig(method=f"inplace+{rules.policy}", **sizes))
    if rules.blocks:
        real.allocator = scheduling.PagedKVAllocator(
            scheduling.BlockPool(rules.blocks.total, rules.blocks.size), rules.blocks.span
        )
    real.submit(rows)
    return Node(limit, real, rows, spec.State(tuple(range(len(rows)))))


def rounds(node: Node, rules: spec.Rules, modes: Counter[str]) -> Iterator[Node]:
    """Admit and choose once, then every combination of outcomes."""
    node = clone(node)
    admit(node, rules)
    resident, held = node.residents, node.tables
    plan, preempted = node.real.choose()
    members, sent = tuple(r.ticket for r in plan.members), tuple(r.ticket for r in preempted)
    for row in preempted:
        row.cache_state = 1  # as the prefill will leave it
    node.state = spec.sent_back(node.state, sent)
    keys = {t: (node.rows[t].seq_len, node.rows[t].cache_state) for t in node.state.tickets}
    forbid(spec.choice_fault(node.state, keys, plan.mode, members, rules))
    modes[plan.mode] += 1
    modes["sent back"] += len(sent)
    running = tuple(t for t in members if not node.rows[t].finished)
    demand(bool(running), "a round in which nothing runs")
    if rules.blocks:
        forbid(room_spec.choice_fault(rules.blocks, resident, sent, running))
        forbid(room_spec.moved_fault(rules.blocks, node.residents, held, node.tables))
    check_blocks(node, rules, running)
    for outcomes in itertools.product(*(possible(node.rows[t], node.limit) for t in running)):
        yield played(node, members, dict(zip(running, outcomes, strict=True)), rules)


def admit(node: Node, rules: spec.Rules) -> None:
    """Let in whom the relation lets in."""
    before, queue = node.state, [node.rows[t].seq_len for t in node.state.waiting]
    fitting = room_spec.num_entering(rules.blocks, node.residents, queue) if rules.blocks else len(queue)
    entered = tuple(r.ticket for r in node.real.admit())
    node.state = spec.admitted(before, rules, fitting)
    demand(entered == node.state.tickets[len(before.window) :], f"admitted {entered}, expected {node.state.tickets}")
    check_blocks(node, rules)


def check_blocks(node: Node, rules: spec.Rules, running: tuple[int, ...] = ()) -> None:
    """Books and tables, while these run or between rounds."""
    if rules.blocks:
        pool = node.real.allocator.pool
        forbid(room_spec.books_fault(rules.blocks, node.tables, pool.free, pool.refs))
        forbid(room_spec.tables_fault(rules.blocks, node.residents, running, node.tables))


def possible(row: Dummy, limit: int) -> list[tuple[int, int, bool]]:
    return [o for o in OUTCOMES if row.seq_len + o[0] <= limit]


def played(node: Node, members: tuple[int, ...], outcomes: dict[int, tuple[int, int, bool]], rules: spec.Rules) -> Node:
    child, held = clone(node), node.tables
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
    check_blocks(child, rules)
    if rules.blocks:
        forbid(room_spec.moved_fault(rules.blocks, child.residents, held, child.tables))
    return child


def cancellations(node: Node, rules: spec.Rules) -> Iterator[Node]:
    for row in node.rows:
        if not row.finished:
            child = clone(node)
            target = child.rows[row.ticket]
            target.finished = True
            child.real.cancel(target)
            child.state = spec.cancelled(child.state, row.ticket, rules)
            check_blocks(child, rules)
            yield child


def clone(node: Node) -> Node:
    return pickle.loads(pickle.dumps(node, -1))


def demand(holds: bool, why: str) -> None:
    if not holds:
        raise FaultError(why)


def forbid(fault: str | None) -> None:
    if fault is not None:
        raise FaultError(fault)


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
        forbid(spec.state_fault(node.state, size, rules))
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


def with_blocks() -> Iterator[tuple[int, spec.Rules, int, bool]]:
    """The same, in pools of blocks from the longest row's to one that is rarely short."""
    span, limit = 1, 4
    for policy, aging in (("fifo", math.inf), ("static", math.inf), ("grouped", 1)):
        for size, total in ((1, 4), (1, 6), (2, 2), (2, 3)):
            blocks = room_spec.Blocks(total, size, span, limit)
            capacity = 3 if policy == "grouped" else 2
            yield 3, spec.Rules(policy, 2, capacity, aging, blocks), limit, True
    yield 3, spec.Rules("grouped", 1, 3, 1, room_spec.Blocks(9, 1, span, limit)), limit, False
    yield 2, spec.Rules("fifo", 2, 2, math.inf, room_spec.Blocks(7, 1, span, 7)), 7, True
    # A round may write more than the budget leaves.
    yield 3, spec.Rules("fifo", 2, 2, math.inf, room_spec.Blocks(7, 1, 2, limit)), limit, True
    # Some wait while others are sent back.
    yield 4, spec.Rules("grouped", 2, 3, 1, room_spec.Blocks(4, 2, span, limit)), limit, False


def verdicts(some: Iterator[tuple[int, spec.Rules, int, bool]], reached: Counter[str]) -> Iterator[Verdict]:
    """One verdict per configuration; `reached` counts the modes chosen, and who was sent back."""
    for size, rules, limit, cancel in some:
        name = f"{rules.policy}, pool {size}, B = {rules.batch}, W = {rules.capacity}, A = {rules.aging}"
        if rules.blocks:
            name += f", {rules.blocks.total} blocks of {rules.blocks.size}"
        name += ", cancellations" if cancel else ""
        try:
            states, transitions, modes, longest = search(size, rules, limit=limit, cancel=cancel)
        except FaultError as error:  # anything else is no finding of the relation's
            yield Verdict(name, False, str(error))
            continue
        reached += modes
        yield Verdict(f"{name}: {states} states, {transitions} transitions, longest wait {longest}", True)


def all_verdicts() -> Iterator[Verdict]:
    """Every configuration, and one verdict on what the searches have reached."""
    reached: Counter[str] = Counter()
    yield by_default(reached)
    yield from verdicts(itertools.chain(configurations(), with_blocks()), reached)
    missing = {"static", "fifo", "grouped", "fallback", "aged", "sent back"} - set(+reached)
    yield Verdict("the searches reach every mode, and send sequences back", not missing, f"never: {sorted(missing)}")


def by_default(reached: Counter[str]) -> Verdict:
    """A scheduler that is given no bound keeps to the one that is documented; rows so long that it matters."""
    rules = spec.Rules("grouped", 2, 3)
    rules = replace(rules, aging=rules.default_aging)
    with patch.object(sys.modules[__name__], "OUTCOMES", OUTCOMES[:1]):
        (found,) = verdicts(iter([(3, rules, rules.default_aging + 8, False)]), reached)
    return replace(found, name=f"by default: {found.name}")
