"""The engine as a service: prompts come, leave and come again at any moment, beside what the oracle says."""

from hypothesis import settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refimpl.conformance.adapters import mixed_script
from refimpl.core.config import make_config
from refimpl.core.request import Request
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import pool_gib
from refimpl.models.table_model import greedy_continuation, table_pair
from refimpl.requests import prepare
from refimpl.scheduling import PagedKVAllocator

BUDGET, BLOCK, BLOCKS = 7, 2, 9  # the longest row takes 8 of them
COMMON = [3, 1, 4, 1, 5, 9]
PROMPTS = [[*COMMON[:cut], *tail] for tail in ([2], [7, 1]) for cut in (0, 1, 2, 3, 4, 5, 6)] * 2
WINDOWED = {"sliding_window": 3, "windowed_layers": 2}


class Service(RuleBasedStateMachine):
    """A small pool, to which sequences come at any moment."""

    @initialize(
        scheduler=strategies.sampled_from(["fifo", "static", "grouped", "continuous"]),
        k=strategies.integers(0, 3),
        layers=strategies.sampled_from([{}, WINDOWED]),
    )
    def open(self, scheduler, k, layers):
        pair, self.layers = table_pair(mixed_script(), **layers), layers
        config = make_config(
            method=f"paged+{scheduler}",
            batch_size=3,
            num_speculative_tokens=k,
            max_new_tokens=BUDGET,
            block_size=BLOCK,
            kv_memory_gib=pool_gib(pair, BLOCKS, BLOCK),
            token_budget=k + 3 if scheduler == "continuous" else None,
            checks="device",
        )
        requests = [Request(prompt, priority=place % 3) for place, prompt in enumerate(PROMPTS)]
        self.rows = prepare(pair, requests, config)
        self.engine = Engine(pair, [], config, expected=self.rows)
        self.outside, self.cancelled = list(self.rows), set()
        self.decided = {row.index: [0, 0] for row in self.rows}  # drafts accepted, and decided on

    @rule(data=strategies.data(), count=strategies.integers(2, 4))
    @precondition(lambda self: self.outside)
    def come(self, data, count):
        for _ in range(min(count, len(self.outside))):
            row = data.draw(strategies.sampled_from(self.outside))
            self.outside.remove(row)
            self.engine.submit([row])

    @rule(data=strategies.data())
    @precondition(lambda self: len(self.outside) < len(self.rows))
    def cancel(self, data):
        row = data.draw(strategies.sampled_from([r for r in self.rows if r not in self.outside]))
        self.cancelled |= set() if row.finished else {row.index}
        self.engine.cancel(row)

    @rule(rounds=strategies.integers(1, 3))
    def run(self, rounds):
        for _ in range(rounds):
            if not self.engine.scheduler.done:
                self.note(self.engine.run_one_round())

    def note(self, record):
        for row in record.rows:
            accepted = min(row.accepted, row.kept)
            self.decided[row.sequence][0] += accepted
            self.decided[row.sequence][1] += min(accepted + 1, row.drafted, row.kept)

    @invariant()
    def rows_remember_all_that_was_decided(self):
        """Also across preemptions: draft budgets go by it."""
        for row in getattr(self, "rows", ()):
            assert [row.num_accepted, row.num_evaluated] == self.decided[row.index]

    @invariant()
    def rows_have_what_the_oracle_generates(self):
        for row in getattr(self, "rows", ()):
            wanted = greedy_continuation(row.token_ids[: row.prompt_len], BUDGET, **self.layers)
            end = None if row.stop_reason == "length" else row.num_generated
            assert row.generated == wanted[:end]

    def teardown(self):
        if hasattr(self, "engine"):
            for _ in self.engine.rounds():
                pass
            self.rows_have_what_the_oracle_generates()
            for row in self.rows:
                end = "cancelled" if row.index in self.cancelled else "length"
                assert row.stop_reason == (None if row in self.outside else end)
            assert isinstance(self.engine.scheduler.allocator, PagedKVAllocator)
            assert self.engine.scheduler.allocator.num_blocks_used == 0


def test_rows_get_the_oracles_tokens_and_some_are_preempted():
    preempted = []

    class Counted(Service):
        def teardown(self):
            super().teardown()
            preempted.append(hasattr(self, "engine") and self.engine.num_preemptions > 0)

    examples = max(10, settings().max_examples // 4)
    run_state_machine_as_test(Counted, settings=settings(max_examples=examples, stateful_step_count=15))
    assert sum(preempted) >= 2
