"""The pool and the schedulers against plain lists: submit, run a round, cancel, finish, refill."""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from refimpl.core.config import make_config
from refimpl.core.invariants import InvariantViolation
from refimpl.faults import FAULTS
from refimpl.scheduling import KVAllocator, RoundPlan, Scheduler, make_scheduler
from refimpl.scheduling.grouped import GroupedScheduler
from tests.scheduled_items import Item


class Scarce(KVAllocator[Item]):
    """Room that is short: as many reservations fail as are set."""

    failures = 0

    def reserve(self, members: Sequence[Item]) -> bool:
        self.failures -= 1
        return self.failures < 0


def by_priority(items: list[Item]) -> list[Item]:
    """The smallest first; of equal ones the order stays."""
    return sorted(items, key=attrgetter("priority"))


class Machine(RuleBasedStateMachine):
    """Drive one scheduler; `waiting`, `window` and `gone` are the model."""

    kind: str
    items = Bundle("items")

    @initialize(
        batch_size=st.integers(1, 4),
        extra=st.integers(0, 6),
        aging=st.sampled_from([None, 0, 1, 5]),
    )
    def start(self, batch_size: int, extra: int, aging: int | None) -> None:
        self.scheduler: Scheduler[Item] = make_scheduler(
            make_config(
                method=f"inplace+{self.kind}", batch_size=batch_size, window_size=batch_size + extra, aging_bound=aging
            )
        )
        self.allocator = self.scheduler.allocator = Scarce()
        self.batch_size, self.window_size = batch_size, self.scheduler.window_size
        self.waiting: list[Item] = []
        self.window: list[Item] = []
        self.gone: list[Item] = []

    @rule(
        target=items,
        seq_len=st.integers(1, 4),
        lag=st.integers(1, 2),
        count=st.integers(1, 4),
        priority=st.sampled_from([0, 0, 1, -1]),
    )
    def submit(self, seq_len: int, lag: int, count: int, priority: int) -> Any:
        """Several that may share a round: without, full groups are rare that pass an older item over."""
        alike = [Item(seq_len, lag, priority=priority) for _ in range(count)]
        self.scheduler.submit(alike)
        self.waiting = by_priority(self.waiting + alike)
        return multiple(*alike)

    @rule(item=items)
    def cancel(self, item: Item) -> None:
        if item.finished:
            return
        item.finished = True
        left = self.scheduler.cancel(item)
        self.retire(left)
        if self.kind != "static" or item in self.waiting:
            assert item in left
        if item in self.waiting:
            self.waiting.remove(item)

    @rule(data=st.data())
    def run_round(self, data: st.DataObject) -> None:
        self.refill()
        if not self.window:
            return
        plan = self.choose(data.draw(st.sampled_from([0, 0, 1, 3])))
        self.check_plan(plan)
        for item in plan.members:
            if not item.finished:
                item.seq_len += data.draw(st.integers(1, 3))
                item.cache_state = data.draw(st.integers(1, 2))
                item.finished = data.draw(st.integers(0, 3)) == 0
        for item in self.window:
            ages = item.begun or item is self.window[0]
            item.waited = 0 if item in plan.members else item.waited + ages
        for item in plan.members:
            item.begun = True
        self.retire(self.scheduler.complete(plan))

    def choose(self, failures: int) -> RoundPlan[Item]:
        """One is sent back for each failure to reserve, of the largest priority the youngest; the others stay."""
        unfinished = by_priority([item for item in self.window if not item.finished])
        self.allocator.failures = min(failures, len(unfinished) - 1)
        away = unfinished[len(unfinished) - self.allocator.failures :]
        plan, preempted = self.scheduler.choose()
        assert preempted == away[::-1]
        for item in away:
            item.waited, item.begun = 0, False
        self.window = [item for item in self.window if item not in away]
        self.waiting = by_priority(away + self.waiting)
        return plan

    def refill(self) -> None:
        entered = self.scheduler.admit()
        if self.kind == "static" and self.window:
            wanted = []
        else:
            places = self.batch_size if self.kind == "static" else self.window_size - len(self.window)
            wanted = self.waiting[:places]
        assert entered == wanted
        self.window += entered
        del self.waiting[: len(entered)]

    def retire(self, left: list[Item]) -> None:
        assert all(item.finished for item in left)
        if self.kind == "static" and any(item in self.window for item in left):
            assert left == self.window, "a static batch leaves as a whole"
        assert not set(map(id, left)) & set(map(id, self.gone))
        self.gone += left
        self.window = [item for item in self.window if item not in left]

    def check_plan(self, plan: RoundPlan[Item]) -> None:
        members = list(plan.members)
        assert len(set(map(id, members))) == len(members)
        assert all(member in self.window for member in members)
        if self.kind == "grouped":
            longest_wait = max(item.waited for item in self.window)
            assert (plan.mode == "aged") == (longest_wait >= self.scheduler.aging_bound), "a due sequence runs first"
        if plan.mode in ("static", "fifo"):
            assert members == self.window
        elif plan.mode == "grouped":
            keys = {(m.seq_len, m.cache_state) for m in members}
            assert keys == {self.first_full_key()}
            assert len(members) == self.batch_size
        elif plan.mode == "fallback":
            assert members == self.window[: self.batch_size]
            assert self.fullest_group() < self.batch_size
        else:
            longest = sorted((item.waited for item in self.window), reverse=True)
            assert sorted((m.waited for m in members), reverse=True) == longest[: self.batch_size]

    def fullest_group(self) -> int:
        keys = [(item.seq_len, item.cache_state) for item in self.window]
        return max(keys.count(key) for key in keys)

    def first_full_key(self) -> tuple[int, int]:
        """Key of the first group to be full when the window is read in order of submission."""
        seen: list[tuple[int, int]] = []
        for item in sorted(self.window, key=attrgetter("ticket")):
            seen.append((item.seq_len, item.cache_state))
            if seen.count(seen[-1]) == self.batch_size:
                return seen[-1]
        raise AssertionError("no group is full")

    @invariant()
    def lists_agree(self) -> None:
        pool = self.scheduler.pool
        assert list(pool.waiting) == self.waiting
        assert list(pool.window.values()) == self.window
        assert pool.num_finished == len(self.gone)
        assert self.scheduler.done == (not self.waiting and not self.window)
        pool.check_conservation()

    @invariant()
    def waiting_is_counted_and_bounded(self) -> None:
        if self.kind == "grouped":
            assert [self.scheduler.waited(item) for item in self.window] == [item.waited for item in self.window]
        bound = getattr(self.scheduler, "aging_bound", 0) + self.window_size // self.batch_size
        assert math.isinf(bound) or all(item.waited <= bound for item in self.window)

    @invariant()
    def window_fits(self) -> None:
        assert len(self.window) <= self.window_size

    def teardown(self) -> None:
        for _ in range(1000):
            self.refill()
            if not self.window:
                break
            plan = self.scheduler.select()
            for item in plan.members:
                item.finished = True
            self.retire(self.scheduler.complete(plan))
        assert self.scheduler.done, "everything submitted leaves in the end"


def disagreement(kind: str, examples: int, **options: Any) -> Exception | None:
    """Search for a sequence of steps after which scheduler and lists disagree; return what the first one raises."""
    machine = type(f"{kind.title()}Machine", (Machine,), {"kind": kind})
    machine.TestCase.settings = settings(settings(), max_examples=examples, stateful_step_count=30, **options)
    try:
        machine.TestCase().runTest()
    except (AssertionError, InvariantViolation, ValueError, KeyError) as error:
        return error
    return None


@pytest.mark.parametrize("kind", ["static", "fifo", "grouped"])
def test_scheduler_against_plain_lists(kind: str) -> None:
    found = disagreement(kind, 6 * settings().max_examples)
    assert found is None, found


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("fifo", "sequence-lost-on-refill"),
        ("fifo", "sequence-runs-twice"),
        ("grouped", "no-aging"),
        ("grouped", "group-of-unequal-lengths"),
        ("grouped", "padded-length-as-group-key"),
        ("grouped", "cache-state-not-in-group-key"),
    ],
)
def test_the_lists_disagree_with_a_broken_scheduler(kind: str, fault: str) -> None:
    with FAULTS[fault].injected():
        assert disagreement(kind, 300, phases=[Phase.generate], report_multiple_bugs=False) is not None


def test_the_lists_disagree_where_the_oldest_does_not_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by as many examples as the scheduler itself is tried with."""
    monkeypatch.setattr(GroupedScheduler, "_age_oldest", lambda _: None)
    given = {"phases": [Phase.generate], "report_multiple_bugs": False}
    assert disagreement("grouped", 6 * settings().max_examples, **given) is not None
