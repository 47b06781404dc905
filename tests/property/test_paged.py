"""Blocks: books and tables against a plain model, the same bits as in place, and rows that leave and come back."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition
from hypothesis.stateful import rule as step
from transformers import MistralConfig

from refimpl import InputError, Request, generate, verify
from refimpl.core import kernels
from refimpl.core.config import make_config
from refimpl.core.invariants import InvariantViolation
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import pool_gib
from refimpl.pairs import make_pair
from refimpl.pairs.random_pairs import random_models
from refimpl.requests import prepare
from refimpl.scheduling import BlockPool, KVAllocator, PagedKVAllocator, SequencePool, blocks_for
from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case
from refimpl.selfcheck.strategies import cases
from tests.scheduled_items import Item

SETTINGS = {"max_new_tokens": 24, "num_speculative_tokens": 4, "batch_size": 3, "logprobs": 2}


class Books(RuleBasedStateMachine):
    """A pool beside a set of free blocks and a list of tables."""

    def __init__(self):
        super().__init__()
        self.pool, self.tables = BlockPool(12, 4), []

    @step(count=st.integers(0, 5))
    def take(self, count):
        if count <= len(self.pool.free):
            self.tables.append(self.pool.take(count))

    @precondition(lambda self: self.tables)
    @step(data=st.data())
    def give_back(self, data):
        table = data.draw(st.sampled_from(self.tables))
        keep = data.draw(st.integers(0, len(table)))
        self.pool.give_back(table[keep:])
        del table[keep:]

    @invariant()
    def nothing_is_lost_or_used_twice(self):
        used = [block for table in self.tables for block in table]
        assert len(set(used)) == len(used) == self.pool.num_used
        assert sorted([*used, *self.pool.free]) == list(range(12))
        self.pool.check(self.tables)


TestBooks = Books.TestCase


def test_a_block_is_given_back_once():
    pool = BlockPool(3, 4)
    blocks = pool.take(2)
    pool.give_back(blocks)
    with pytest.raises(InvariantViolation, match="INV-13"):
        pool.give_back(blocks[:1])
    pool.refs[pool.free[-1]] = 1
    with pytest.raises(InvariantViolation, match="INV-13"):
        pool.take(1)


def test_books_that_do_not_agree_are_told():
    pool = BlockPool(3, 4)
    table = pool.take(2)
    with pytest.raises(InvariantViolation, match="INV-13"):
        pool.check([table, table])
    pool.free.clear()
    with pytest.raises(InvariantViolation, match="INV-15"):
        pool.check([table])


def test_all_blocks_in_front_of_a_window_are_given_back_at_once():
    """And count as cached no more; what the window holds does."""
    pool = BlockPool(8, 2)
    allocator = PagedKVAllocator(pool, span=1, first_seen=lambda query: query - 3)
    row = Sequence(0, [1] * 13, 1, draft_cached=None)
    assert allocator.enter(row, [])
    row.target_cached = 10
    assert allocator.num_cached([row]) == 10
    allocator.note_chunks([row])
    assert (pool.num_used, allocator.num_cached([row])) == (3, 4)
    allocator.check([row])


def test_requests_wait_in_order_of_priority_then_of_submission():
    pool = SequencePool()
    for priority in (1, 0, 2, 0, 1):
        pool.submit(Item(3, priority=priority))
    assert [(each.priority, each.ticket) for each in pool.waiting] == [(0, 1), (0, 3), (1, 0), (1, 4), (2, 2)]


@given(st.integers(0, 200), st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.randoms(use_true_random=False))
def test_slots_of_a_row_are_its_own(longest, size, rng: random.Random):
    """Every position has a slot of its own, in the row's blocks, in order within a block."""
    blocks = rng.sample(range(300), blocks_for(longest, size))
    slots = [kernels.paged_slot(blocks[p // size], p, size) for p in range(longest)]
    assert len(set(slots)) == longest
    assert [(slot // size, slot % size) for slot in slots] == [(blocks[p // size], p % size) for p in range(longest)]


def test_who_enters_leaves_a_round_of_all_possible():
    room = PagedKVAllocator(BlockPool(5, 4), span=4)
    first, second = Sequence(0, list(range(6)), 20), Sequence(1, list(range(6)), 20)
    assert room.enter(first, [])
    assert (len(first.blocks), len(room.pool.free)) == (2, 3)
    assert not room.enter(second, [first])  # 3 blocks of its own, and 1 more for the first
    second.token_ids.pop()
    second.prompt_len = 5
    assert not room.enter(second, [first])
    second.token_ids = second.token_ids[:4]
    assert room.enter(second, [first])
    assert room.reserve([first, second])
    assert (len(first.blocks), len(second.blocks), room.pool.free) == (3, 2, [])


def test_a_finished_row_that_a_batch_carries_takes_no_block():
    room = PagedKVAllocator(BlockPool(4, 4), span=4)
    first, second = Sequence(0, list(range(4)), 9), Sequence(1, list(range(4)), 9)
    assert room.enter(first, [])
    assert room.enter(second, [first])
    first.stop_reason = "length"
    room.settle([first])
    assert room.reserve([first, second])
    assert (len(first.blocks), len(second.blocks), room.pool.num_used) == (0, 2, 2)


@pytest.mark.parametrize(
    "room", [KVAllocator[Sequence](), PagedKVAllocator[Sequence](BlockPool(9, 4), span=4)], ids=["pool", "paged"]
)
def test_what_is_cached_is_counted(room):
    """Neither a row's last token, nor a prompt's that are still to come, nor a finished row's."""
    rows = [Sequence(0, list(range(7)), 9), Sequence(1, list(range(4)), 9), Sequence(2, list(range(5)), 9)]
    for row, cached in zip(rows, (6, 1, 4), strict=True):
        assert room.enter(row, [])
        row.target_cached = cached
    rows[2].stop_reason = "length"
    assert room.num_cached(rows) == 7
    assert room.num_cached(rows[:2]) == 7
    assert room.num_cached(rows[2:]) == 0
    assert room.prefix_tokens(rows[0]) == 0


@pytest.mark.parametrize("scheduler", ["fifo", "static", "grouped"])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_bits_are_those_of_inplace(llama, scheduler, block_size):
    """Wherever the blocks are: the free list is shuffled."""
    prompts = [[3 + i, 1, 4, 1, 5, 9, 2][: 1 + i % 7] * (1 + i) for i in range(6)]
    wanted = generate(llama, prompts, method=f"inplace+{scheduler}", **SETTINGS)
    config = make_config(method=f"paged+{scheduler}", block_size=block_size, **SETTINGS)
    engine = Engine(llama, prepare(llama, prompts, config), config)
    random.Random(0).shuffle(engine.scheduler.allocator.pool.free)
    records = list(engine.rounds())
    found = [
        [entry for record in records for row in record.rows if row.sequence == i for entry in row.logprobs]
        for i in range(6)
    ]
    assert [list(s.logprobs) for s in wanted.sequences] == found
    assert engine.scheduler.allocator.pool.num_used == 0


def test_every_sequence_preempted_gives_the_same_tokens(llama, rules, monkeypatch):
    """All but the oldest of each moment leave at least once, and come back to the very same tokens."""
    prompts = [[7, 1 + i, 2] for i in range(6)]
    settings = {"batch_size": 6, "max_new_tokens": 30, **rules}
    wanted = [s.token_ids for s in generate(llama, prompts, **settings).sequences]
    config = make_config(method="paged", block_size=2, **settings)
    engine = Engine(llama, prepare(llama, prompts, config), config)
    away: list[int] = []
    monkeypatch.setattr(Engine, "_preempt", counting(Engine._preempt, away))
    for number, _ in enumerate(engine.rounds()):
        if number % 3 == 1:
            residents = [s for s in engine.scheduler.pool.window.values() if not s.finished][1:]
            for sequence in residents[::-1]:
                engine.scheduler.preempt(sequence)
                engine._preempt(sequence)
    assert set(away) >= set(range(1, 6))
    assert [s.generated for s in engine.sequences] == wanted


def counting(preempt, away):
    def counted(self, sequence):
        away.append(sequence.index)
        preempt(self, sequence)

    return counted


def test_a_short_pool_preempts_and_is_never_exceeded(llama):
    prompts = [[7, 1 + i, 2] for i in range(8)]
    settings = {"method": "paged", "batch_size": 4, "max_new_tokens": 40, "block_size": 4}
    config = make_config(**settings, kv_memory_gib=pool_gib(llama, 20, 4))
    engine = Engine(llama, prepare(llama, prompts, config), config)
    outputs = [list(engine.rounds()), [s.generated for s in engine.sequences]][1]
    assert engine.num_preemptions > 0
    assert engine.scheduler.allocator.pool.num_blocks == 20
    assert engine.context.target.layout.pool.rows == 21  # one for scratch
    assert outputs == [s.token_ids for s in generate(llama, prompts, max_new_tokens=40).sequences]


def test_only_the_longest_row_must_fit(llama):
    requests = [Request([1, 2, 3], max_new_tokens=n) for n in (61, 5, 8)]
    for blocks, fits in ((16, True), (15, False)):  # 16 for 64 tokens
        settings = {"method": "paged", "block_size": 4, "kv_memory_gib": pool_gib(llama, blocks, 4)}
        if fits:
            assert [len(s.token_ids) for s in generate(llama, requests, **settings).sequences] == [61, 5, 8]
        else:
            with pytest.raises(InputError, match="may be used"):
                generate(llama, requests, **settings)


@pytest.mark.parametrize("size", [0, 3, 128])
def test_a_block_size_is_a_power_of_two(llama, size):
    with pytest.raises(InputError, match="block_size must be one of"):
        generate(llama, [[1]], method="paged", block_size=size)


def windowed_pair(dtype):
    config = MistralConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, sliding_window=16,
    )  # fmt: skip
    return make_pair(*random_models(config, seed=1, dtype=dtype, draft_noise=0.02), stop_token_ids=())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheduler", ["fifo", "continuous"])
def test_blocks_in_front_of_windows_are_given_back_and_the_bits_are_those_of_inplace(scheduler, dtype):
    """A row that decodes has the blocks of 16 positions, and one more, which the next text is noted behind."""
    pair, prompts = windowed_pair(dtype), [[5, 7], [1 + i % 60 for i in range(70)], [3, 1, 4, 1, 5] * 5]
    settings = SETTINGS | {"max_new_tokens": 50, "token_budget": 24 if scheduler == "continuous" else None}
    wanted = generate(pair, prompts, method=f"inplace+{scheduler}", **settings)
    config = make_config(method=f"paged+{scheduler}", block_size=8, checks="oracle", **settings)
    engine = Engine(pair, prepare(pair, prompts, config), config)
    found, most = [[] for _ in prompts], 0
    while not engine.scheduler.done:
        record = engine.run_one_round()
        for row in record.rows:
            found[row.sequence] += row.logprobs
            blocks = engine.sequences[row.sequence].blocks
            most = max(most, len(blocks) - blocks.count(engine.scheduler.allocator.pool.null_block))
    assert [list(s.logprobs) for s in wanted.sequences] == found
    assert most == 4
    assert [s.generated for s in engine.sequences] == [stock_tokens(pair, prompt, 50) for prompt in prompts]


def stock_tokens(pair, prompt, count):
    """By transformers alone."""
    ids = torch.tensor([prompt])
    more = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    model = pair.target.model
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **more)[
        0, len(prompt) :
    ].tolist()


def test_rows_that_give_back_blocks_leave_room_for_others():
    """With a layer that sees all of a row, the same pool is short, and rows are sent back."""
    preempted = []
    for layers in (1, 2):
        rows = tuple(Row((7, 1 + i, 2), 40) for i in range(8))
        case = Case(rows, "paged", "fifo", 4, block_size=4, spare_blocks=5, sliding_window=5, windowed_layers=layers)
        run = run_case(case, checks="oracle")
        assert run.outputs == oracle_outputs(case)
        preempted.append(run.stats.num_preemptions)
    assert preempted[0] > 4
    assert preempted[1] == 0


@given(cases())
def test_small_pools_do_not_change_a_token(case: Case):
    case = replace(case, layout="paged", spare_blocks=case.spare_blocks or 0)
    assert run_case(case, checks="device").outputs == oracle_outputs(case)


def test_a_finished_row_of_a_static_batch_has_no_blocks():
    case = Case((Row((1, 2), 3), Row((2, 3), 14)), "paged", "static", 2, block_size=2)
    assert run_case(case, checks="oracle").outputs == oracle_outputs(case)


def test_compared_with_rectangles_blocks_hold_more_rows(llama):
    """At equal bytes at least twice the residents of `inplace`, when few of the rows are long."""
    lengths = [4] * 7 + [120]
    requests = [Request([5] * 8, max_new_tokens=n) for n in lengths]
    config = make_config(method="paged", batch_size=8, block_size=16)
    engine = Engine(llama, prepare(llama, requests, config), config)
    inplace = Engine(llama, prepare(llama, requests, make_config(batch_size=8)), make_config(batch_size=8))
    assert engine.kv_bytes * 3 < inplace.kv_bytes
    assert torch.isfinite(engine.context.target.layout.pool.data).all()


def test_blocks_in_use_are_little_more_than_the_tokens_cached(llama):
    """Peak ≤ 1.15 × cached tokens + one block a row, where rows in place hold whole pool rows."""
    prompts = [[1 + i % 7] * (40 + 20 * i) for i in range(6)]
    sizes = {"max_new_tokens": 24, "num_speculative_tokens": 3}
    paged, inplace = (verify(llama, prompts, methods=[m], batch_sizes=[6], **sizes) for m in ("paged", "inplace"))
    row, rectangle = paged.results[0].as_dict(), inplace.results[0].as_dict()
    block = 16 * sum(model.kv_shape.bytes_per_token for model in (llama.target, llama.draft))
    assert row["kv_live_bytes"] <= row["kv_peak_bytes"] <= 1.15 * row["kv_live_bytes"] + 6 * block
    assert rectangle["kv_peak_bytes"] > 1.5 * row["kv_peak_bytes"]


@pytest.mark.parametrize("method", ["inplace", "inplace+continuous", "masked+fifo", "paged", "paged+continuous"])
def test_live_bytes_are_those_of_the_fullest_moment(llama, method):
    """In place, all rows are resident from the first round on, in which no chunk is cached yet."""
    prompts = [[1 + i] * (12 + 9 * i) for i in range(4)]
    settings = {"method": method, "batch_size": 4, "max_new_tokens": 40, "token_budget": 60, "stop_token_ids": ()}
    result = generate(llama, prompts, **settings)
    stats, rounds = result.stats, [record for record in result.rounds if len(record.rows) == 4]
    most = max(record.num_blocks or 0 for record in rounds)
    cached = [sum(row.seq_len - 1 for row in record.rows) for record in rounds if (record.num_blocks or 0) == most]
    per_token = sum(model.kv_shape.bytes_per_token for model in llama.models())
    assert stats.kv_live_bytes == max(cached) * per_token


@pytest.mark.parametrize("method", ["inplace+grouped", "paged+grouped"])
def test_residents_are_all_that_have_kv_whoever_runs(llama, method):
    """All four enter at once, two of them run in a round, and each stays until its last one."""
    settings = {"batch_size": 2, "window_size": 4, "max_new_tokens": 12}
    result = generate(llama, [[1 + i] * (3 + 2 * i) for i in range(4)], method=method, **settings)
    stays = {row.sequence: number for number, record in enumerate(result.rounds, 1) for row in record.rows}
    assert result.stats.most_residents == 4
    assert result.stats.mean_residents == sum(stays.values()) / len(result.rounds)
