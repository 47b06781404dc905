"""Sharing of first tokens: what a row reads is its own text, whoever has written it, and the bits are the same."""

from dataclasses import replace
from itertools import permutations, product
from random import Random

import pytest
import torch
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, run_state_machine_as_test
from hypothesis.stateful import rule as step

from refimpl import Request, generate
from refimpl.core.invariants import InvariantViolation
from refimpl.core.sequence import MOST_LAG, Sequence
from refimpl.decoding import engine
from refimpl.faults import FAULTS, sharing_faults
from refimpl.models.table_model import VOCAB_SIZE
from refimpl.pairs.random_pairs import random_pair
from refimpl.scheduling import BlockPool, ContinuousScheduler, PagedKVAllocator
from refimpl.scheduling.prefix_cache import PrefixCache
from refimpl.selfcheck.cases import Case, oracle_outputs, run_case
from refimpl.selfcheck.strategies import cases

SIZE, SPAN = 2, 2
texts = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Residents(RuleBasedStateMachine):
    """A room beside a memory that says which text each slot was written for, as K/V depend on all tokens before."""

    @initialize(window=st.sampled_from([None, 1, 3]), shares=st.sampled_from(["texts", "texts", "nothing"]))
    def open(self, window, shares):
        first_seen = window and (lambda query: query + 1 - window)
        self.allocator = PagedKVAllocator(BlockPool(9, SIZE), SPAN, shares, first_seen=first_seen)
        self.window, self.rows, self.memory = window, [], {}

    def first_seen(self, row):
        """By the earliest query that may come."""
        return max(0, min(row.cached_by_all, row.seq_len - MOST_LAG) + 1 - self.window) if self.window else 0

    def write(self, row, start, stop, tokens):
        for position in range(start, stop):
            self.memory[row.blocks[position // SIZE], position % SIZE] = tuple(tokens[: position + 1])

    @step(text=texts, budget=st.integers(1, 6))
    def enter(self, text, budget):
        row = Sequence(0, list(text), budget)
        if self.allocator.enter(row, self.rows):
            self.write(row, row.num_prefix_hits, row.seq_len - 1, row.token_ids)
            row.target_cached = row.draft_cached = row.seq_len - 1
            self.rows.append(row)

    @precondition(lambda self: self.rows)
    @step(data=st.data())
    def run(self, data):
        members = data.draw(st.lists(st.sampled_from(self.rows), min_size=1, unique=True))
        if not self.allocator.reserve(members):
            return
        self.allocator.check_round(members)
        for row in members:
            drafts = data.draw(st.lists(st.integers(0, 1), min_size=SPAN, max_size=SPAN))[: row.remaining - 1]
            tokens = row.token_ids + drafts
            self.write(row, row.cached_by_all, len(tokens), tokens)
            row.extend([*drafts, 0][: data.draw(st.integers(1, len(drafts) + 1))])
            row.target_cached = row.seq_len - 1
            row.draft_cached = row.seq_len - data.draw(st.integers(1, 2))
        self.allocator.settle(members)
        self.rows = [row for row in self.rows if not row.finished]
        for row in (row for row in members if not row.finished):
            unseen = self.first_seen(row) // SIZE
            assert row.blocks.count(self.allocator.pool.null_block) in (unseen, max(0, unseen - 1))

    @precondition(lambda self: self.rows)
    @step(data=st.data())
    def leave(self, data):
        row = data.draw(st.sampled_from(self.rows))
        self.allocator.leave(row)
        self.rows.remove(row)

    @invariant()
    def a_row_reads_its_own_text(self):
        self.allocator.check(self.rows)
        for row in self.rows:
            seen = range(self.first_seen(row), row.cached_by_all)
            held = [self.memory[row.blocks[p // SIZE], p % SIZE] for p in seen]
            assert held == [tuple(row.token_ids[: p + 1]) for p in seen]

    @invariant()
    def what_is_found_is_what_was_written(self):
        for block in range(9):
            if text := self.allocator.pool.prefix_cache.of(block):
                assert self.memory[block, SIZE - 1][-SIZE:] == text.tokens


TestResidents = Residents.TestCase
TWINS = FAULTS["second-copy-numbered-as-the-latest-text"]
OF_SHARING = [fault for fault in FAULTS.values() if fault.make.__module__ == sharing_faults.__name__]
OF_WINDOWS = [fault for fault in FAULTS.values() if fault.invariant == "INV-26"]
OF_ROOMS = [fault for fault in OF_SHARING if fault.owner is not engine and fault is not TWINS] + OF_WINDOWS


@pytest.mark.parametrize("fault", OF_ROOMS, ids=lambda fault: fault.name)
def test_every_fault_of_sharing_is_noticed(fault):
    phases = hypothesis_settings(
        max_examples=300, phases=[Phase.generate], derandomize=True, database=None, print_blob=False
    )
    with fault.injected(), pytest.raises((InvariantViolation, AssertionError, KeyError)):
        run_state_machine_as_test(Residents, settings=phases)


def misfound():
    """Three rows of one or two blocks each are noted in every order: texts whose blocks were written for others."""
    contents = [*product((0, 1)), *product((0, 1), repeat=2)]
    for rows in product(contents, repeat=3):
        for order in {*permutations(row for row, text in enumerate(rows) for _ in text)}:
            found, tables, written = PrefixCache(), ([], [], []), []
            for row in order:
                block, table = len(written), tables[row]
                found.note(block, table[-1] if table else None, rows[row][len(table)])
                table.append(block)
                written.append(rows[row][: len(table)])
            for text in contents:
                known = [text[:n] for n in range(1, len(text) + 1) if text[:n] in written]
                if [written[block] for block in found.find(text)] != known:
                    yield rows, order, text


def test_what_is_found_is_all_that_was_noted_behind_the_same_text():
    assert not any(misfound())
    with TWINS.injected():
        assert any(misfound())


def entered(room, tokens, others=()):
    row = Sequence(0, list(tokens), 4)
    assert room.enter(row, others)
    row.target_cached = row.draft_cached = row.seq_len - 1
    return row


def test_full_blocks_are_found_and_the_last_token_is_always_left():
    room = PagedKVAllocator(BlockPool(30, 4), 2, "texts")
    first = entered(room, range(9))
    for tokens, found in ((range(9), 8), (range(8), 4), ([*range(7), 0, 8], 4), ([1, *range(1, 9)], 0), ([0], 0)):
        assert room.prefix_tokens(Sequence(0, list(tokens), 4)) == found
        row = entered(room, tokens)
        assert row.num_prefix_hits == found
        assert row.blocks[: found // 4] == first.blocks[: found // 4]
        assert not set(row.blocks[found // 4 :]) & set(first.blocks)


def test_blocks_given_back_are_found_until_they_are_needed_oldest_first():
    room = PagedKVAllocator(BlockPool(6, 2), 0, "texts")
    for tokens in ([1, 1, 1, 1, 1], [2, 2, 2, 2, 2]):
        room.leave(entered(room, tokens))
    assert (room.pool.num_used, len(room.pool.idle)) == (0, 4)
    assert entered(room, [2, 2, 2, 2, 2]).num_prefix_hits == 4
    room.pool.take(3)  # two were never used, one is the end of the first text
    assert len(room.pool.prefix_cache.find([(1, 1), (1, 1)])) == 1


def test_who_must_wait_uses_no_block():
    """Else the blocks of who waits at the head would always be those that were used last."""
    room = PagedKVAllocator(BlockPool(6, 2), 0, "texts")
    for tokens in ([1, 1, 1, 1, 1], [2, 2, 2, 2, 2]):
        room.leave(entered(room, tokens))
    idle, waiting = list(room.pool.idle), Sequence(0, [1, 1, 1, 1, 1, 1, 1], 7)
    for residents, enters in ([Sequence(0, [3] * 9, 4)], False), ([], True):
        room.span = 3
        assert room.enter(waiting, residents) == enters
        assert (list(room.pool.idle) == idle, bool(waiting.blocks)) == (not enters, enters)


@pytest.mark.parametrize(("taken", "enters"), [(1, True), (2, False)])
def test_blocks_that_are_found_are_no_longer_free_for_the_rest(taken, enters):
    room = PagedKVAllocator(BlockPool(5, 2), 0, "texts")
    room.leave(entered(room, [1, 1, 1, 1, 1]))  # leaves two blocks that nobody holds
    room.pool.take(taken)
    assert room.enter(Sequence(0, [1, 1, 1, 1, 1, 1, 1], 4), []) == enters  # it needs two blocks more


def test_of_two_equal_texts_one_is_found():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts")
    rows = [entered(room, [1, 2]), entered(room, [1, 2])]
    for row in rows:
        row.extend([3])
        row.target_cached = row.draft_cached = 2
        assert room.reserve([row])
    room.settle(rows)
    assert rows[0].blocks != rows[1].blocks
    assert entered(room, [1, 2, 3]).blocks[0] == rows[0].blocks[0]
    room.check_round(rows)


def test_what_the_draft_has_not_cached_is_not_found():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts")
    row = entered(room, [1, 2])
    row.extend([3])
    row.target_cached, row.draft_cached = 2, 1
    assert room.reserve([row])
    room.settle([row])
    assert entered(room, [1, 2, 3]).num_prefix_hits == 0


def test_rounds_are_not_shared_where_only_prefills_are():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "prompts")
    row = entered(room, [1, 2, 3])
    row.extend([4, 5])
    row.target_cached = row.draft_cached = 4
    room.settle([row])
    assert entered(room, [1, 2, 3, 4, 5]).num_prefix_hits == 2


def test_where_only_prompts_are_shared_nothing_is_found_behind_one():
    """Of a preempted row that enters again nothing is found behind its prompt, nor does it find more of others."""
    for own, other, found in ((5, 13, 4), (13, 5, 4), (4, 13, 0), (13, 4, 0)):  # a prompt's last token is not prefilled
        room = PagedKVAllocator(BlockPool(16, 4), 0, "prompts")
        rows = [Sequence(i, list(range(length)), 20) for i, length in enumerate((own, other))]
        for row in rows:
            row.token_ids = list(range(13))
            room.enter(row, [])
        assert rows[1].num_prefix_hits == found


def test_a_block_that_the_books_count_once_too_often_is_noticed():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts")
    row = entered(room, [1, 2, 3])
    room.check([row])
    room.pool.refs[row.blocks[0]] += 1
    with pytest.raises(InvariantViolation, match="INV-13"):
        room.check([row])


def test_a_shared_block_is_compared_with_the_row_that_wrote_it_too():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts")
    rows = [entered(room, [1, 2, 3]), entered(room, [1, 2, 9])]
    for row in rows:
        row.target_cached = row.draft_cached = 2
    room.check_round(rows)
    rows[0].token_ids[0] = 7
    with pytest.raises(InvariantViolation, match="INV-18"):
        room.check_round(rows[:1])


def test_a_prompt_in_chunks_can_be_found_as_far_as_it_is_cached():
    room = PagedKVAllocator(BlockPool(30, 2), 2, "texts", in_chunks=True)
    row = Sequence(0, list(range(9)), 4)
    assert room.enter(row, [])
    for cached in (0, 3, 6, 8):
        row.target_cached = row.draft_cached = cached
        room.note_chunks([row])
        assert entered(room, range(9)).num_prefix_hits == cached // 2 * 2
        room.check_round([row])


def test_what_a_round_has_cached_of_a_prompt_can_be_found_while_the_rest_waits():
    scheduler = ContinuousScheduler(2, 11)
    scheduler.allocator = PagedKVAllocator(BlockPool(30, 2), 4, "texts", in_chunks=True)
    first, second = Sequence(0, list(range(20)), 4), Sequence(1, list(range(20)), 4)
    scheduler.submit([first])
    assert scheduler.admit() == [first]
    (chunk,) = (plan := scheduler.choose()[0]).chunks
    first.target_cached = first.draft_cached = chunk.count
    scheduler.complete(plan)
    scheduler.submit([second])
    assert scheduler.admit() == [second]
    assert (chunk.count, second.num_prefix_hits) == (11, 10)


@pytest.mark.parametrize("shares", ["texts", "prompts"])
def test_what_a_row_has_freed_is_not_noted_again(shares):
    """A preempted row caches its text anew, more of it than its prompt; others take what it frees."""
    room = PagedKVAllocator(BlockPool(9, 2), 2, shares, in_chunks=True, first_seen=lambda query: query)
    row = Sequence(0, list(range(4)), 20)
    row.token_ids = list(range(12))
    assert room.enter(row, [])
    for cached in range(12):
        row.target_cached = row.draft_cached = cached
        room.note_chunks([row])
        room.check_round([row])
        room.pool.give_back(room.pool.take(room.pool.num_free))
    assert room.pool.null_block not in room.pool.prefix_cache
    assert row.blocks.count(room.pool.null_block) == 4
    room.leave(row)
    assert entered(room, range(12)).num_prefix_hits == 0


def test_a_row_that_has_given_back_one_block_still_shares_the_next():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts", first_seen=lambda query: query - 1)
    first, second = entered(room, range(6)), entered(room, range(6))
    assert second.blocks[:2] == first.blocks[:2]
    first.extend([6])
    first.target_cached = first.draft_cached = 6
    assert room.reserve([first])
    room.settle([first])
    assert first.blocks.count(room.pool.null_block) == 1
    room.check_round([first, second])


def test_a_block_that_can_be_found_is_not_written():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts")
    row = entered(room, [1, 2, 3])
    row.draft_cached = 1
    with pytest.raises(InvariantViolation, match="INV-18"):
        room.check_round([row])


def test_a_block_of_two_rows_is_not_written():
    room = PagedKVAllocator(BlockPool(9, 2), 2)
    rows = [entered(room, [1, 2, 3]), entered(room, [1, 2, 3])]
    room.pool.give_back(rows[1].blocks)
    rows[1].blocks = room.pool.share(list(rows[0].blocks))
    with pytest.raises(InvariantViolation, match="INV-14"):
        room.check_round(rows)


def test_a_text_of_another_beginning_is_told():
    room = PagedKVAllocator(BlockPool(9, 2), 2, "texts")
    row, other = entered(room, [1, 2, 3, 4, 5]), entered(room, [7, 2, 3, 4, 5])
    row.blocks, row.num_prefix_hits = room.pool.share(list(other.blocks)), 4
    with pytest.raises(InvariantViolation, match="INV-18"):
        room.check_round([row])


# --- the engine --------------------------------------------------------------------------------------------------

SETTINGS = {"max_new_tokens": 8, "num_speculative_tokens": 4, "batch_size": 3, "logprobs": 2}


def begun_alike(size):
    """Prompts that share their first tokens, up to numbers around multiples of a block."""
    common = [(7 * i) % 50 + 3 for i in range(3 * size + 2)]
    cuts = [2 * size - 1, 2 * size, 2 * size + 1, size, 3 * size + 1, 2 * size]
    return [[*common[:cut], 5 + i] for i, cut in enumerate(cuts)] + [common, common[: 2 * size]]


def logprobs_of(result):
    return [s.logprobs for s in result.sequences]


SHAPES = [
    ("fifo", 1, torch.float32),
    ("static", 4, torch.float32),
    ("grouped", 16, torch.float32),
    ("fifo", 64, torch.bfloat16),
    ("continuous", 4, torch.float32),
]


@pytest.mark.parametrize(("scheduler", "block_size", "dtype"), SHAPES, ids=str)
def test_bits_are_those_of_inplace_and_without_sharing(scheduler, block_size, dtype):
    pair = random_pair("llama", draft_noise=0.01, dtype=dtype)
    settings = SETTINGS | {"shape_stable": True, "block_size": block_size}
    inplace = generate(pair, begun_alike(block_size), method=f"inplace+{scheduler}", **settings)
    shared, alone = (
        generate(pair, begun_alike(block_size), method=f"paged+{scheduler}", prefix_sharing=sharing, **settings)
        for sharing in (True, False)
    )
    assert logprobs_of(shared) == logprobs_of(alone) == logprobs_of(inplace)
    assert (shared.stats.num_prefix_hits > 0, alone.stats.num_prefix_hits) == (True, 0)
    assert shared.stats.kv_live_bytes <= shared.stats.kv_peak_bytes <= alone.stats.kv_peak_bytes


@pytest.mark.parametrize("method", ["paged", "paged+continuous"])
def test_without_fixed_shapes_the_tokens_are_the_same(llama, method, rules):
    settings = {"method": method, "max_new_tokens": 8, "batch_size": 4, "block_size": 4, **rules}
    shared, alone = (generate(llama, begun_alike(4), prefix_sharing=sharing, **settings) for sharing in (True, False))
    assert [s.token_ids for s in shared.sequences] == [s.token_ids for s in alone.sequences]
    assert shared.stats.num_prefix_hits > 0


@hypothesis_settings(max_examples=max(30, hypothesis_settings().max_examples // 4))
@given(cases(cancellations=True), st.integers(0, 6))
def test_rows_that_begin_alike_give_the_oracles_tokens(case: Case, common: int):
    """In small pools, so that rows are preempted, too."""
    first = (3, 5, 7, 5, 3, 4)[:common]
    rows = tuple(replace(row, prompt=first + row.prompt, agreements=case.rows[0].agreements) for row in case.rows)
    case = replace(case, rows=rows, layout="paged", spare_blocks=case.spare_blocks or 0)
    found, wanted = run_case(case, checks="device"), oracle_outputs(case)
    ends = [
        len(o) if reason == "cancelled" else None for o, reason in zip(found.outputs, found.stop_reasons, strict=True)
    ]
    assert found.outputs == [w[:end] for w, end in zip(wanted, ends, strict=True)]


def batch_of_twins(number):
    tokens = Random(number).sample(range(VOCAB_SIZE), 6)
    rows = sharing_faults.twins(*(tuple(tokens[i : i + 2]) for i in (0, 2, 4)))
    return Case(layout="paged", scheduler="continuous", **TWINS.settings | {"rows": rows})


@pytest.mark.parametrize("number", range(12))
def test_a_text_that_two_rows_hold_keeps_its_number_whatever_is_noted_between(number):
    """Without it another row reads what was cached behind other tokens; INV-18 sees that without the numbers."""
    case = batch_of_twins(number)
    found, wanted = run_case(case, checks="device"), oracle_outputs(case)
    assert found.outputs == wanted
    assert found.stats.num_prefix_hits == SIZE
    with TWINS.injected():
        assert run_case(case, checks="host").outputs != wanted
        with pytest.raises(InvariantViolation, match="INV-18"):
            run_case(case, checks="device")


def test_k_v_that_are_shared_are_those_of_a_fresh_pass(llama):
    result = generate(llama, begun_alike(4), method="paged", block_size=4, checks="oracle", **SETTINGS)
    assert result.stats.num_prefix_hits > 0


def test_samples_are_those_of_as_many_prompts_and_share_their_blocks(llama):
    settings = {"max_new_tokens": 10, "batch_size": 5, "temperature": 0.9, "seed": 2, "block_size": 4}
    prompt, other = [*range(3, 16)], [9, 8, 7]
    wanted = generate(llama, [prompt] * 3 + [other] * 2, **settings)
    found = generate(llama, [Request(prompt, n=3), Request(other, n=2)], method="paged", **settings)
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in wanted.sequences]
    assert [(s.index, s.sample) for s in found.sequences] == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)]
    assert len({tuple(s.token_ids) for s in found.sequences}) == 5
    assert found.stats.num_prefix_hits == 2 * 12
