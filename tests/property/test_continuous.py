"""Prompts in chunks beside rows that decode: the same tokens, within a budget, and nobody waits."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refimpl import InputError, Request, generate
from refimpl.core.config import make_config
from refimpl.decoding import rounds
from refimpl.decoding.engine import Engine
from refimpl.decoding.prefill import note_chunks
from refimpl.pairs.random_pairs import random_pair
from refimpl.requests import prepare
from refimpl.scheduling import BlockPool, ContinuousScheduler, PagedKVAllocator, make_scheduler
from refimpl.selfcheck.cases import Case, oracle_outputs, run_case
from refimpl.selfcheck.strategies import cases

PROMPTS = [[7, 1 + i, 2, 9, 4, 4, 1][: 1 + 2 * i % 7] * (1 + i) for i in range(6)]


@dataclass(eq=False)
class Item:
    """A sequence as a scheduler sees it."""

    seq_len: int
    most_tokens: int
    k: int
    cached: int = 0
    cache_state: int = 1
    ticket: int = -1
    priority: int = 0
    num_prefix_hits: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def finished(self):
        return self.seq_len >= self.most_tokens

    @property
    def cached_at_entry(self):
        return self.seq_len - 1

    @property
    def cached_by_all(self):
        return self.cached

    @property
    def draft_limit(self):
        return min(self.k, self.most_tokens - self.seq_len - 1)

    @property
    def to_prefill(self):
        return self.seq_len - 1 - self.cached

    def block_tokens(self, start, stop):
        return id(self), start


items = st.builds(lambda n, budget, k: Item(n, n + budget, k), st.integers(1, 30), st.integers(1, 9), st.integers(0, 4))


@given(st.lists(items, min_size=1, max_size=7), st.integers(5, 40), st.integers(1, 4), st.booleans(), st.data())
def test_budget_progress_and_order(some, budget, batch_size, joint, data):
    """INV-17 from the outside, with short pools, arrivals between rounds, and any number of accepted drafts."""
    scheduler = ContinuousScheduler(batch_size, budget, joint_prefill=joint)
    longest = -(-max(item.most_tokens for item in some) // 4)
    scheduler.allocator = PagedKVAllocator(BlockPool(longest + data.draw(st.integers(0, 12)), 4), 4)
    rounds, early = 0, data.draw(st.integers(1, len(some)))
    scheduler.submit(some[:early])
    while not scheduler.done or rounds == 0:
        for item in scheduler.admit():
            item.cached = 0
        plan, sent_back = scheduler.choose()
        window = list(scheduler.pool.window.values())
        assert not set(map(id, sent_back)) & set(map(id, window))
        assert sum(m.draft_limit + 1 for m in plan.members) + sum(c.count for c in plan.chunks) <= budget
        decoding = [item for item in window if not item.to_prefill]
        joining = list(plan.members)[len(decoding) :]
        assert list(plan.members) == decoding + joining
        last = [chunk.sequence for chunk in plan.chunks if chunk.count == chunk.sequence.to_prefill]
        assert all(item in last for item in joining)
        assert len(joining) >= len(last) - 1 if joint else not joining, "where there was room for a chunk behind it"
        prompts = [item for item in window if item.to_prefill]
        assert [c.sequence for c in plan.chunks] == prompts[: len(plan.chunks)]
        assert all(c.count == c.sequence.to_prefill for c in plan.chunks[:-1])
        assert window[0] in plan.members or window[0] is plan.chunks[0].sequence, "the oldest goes on"
        for chunk in plan.chunks:
            chunk.sequence.cached += chunk.count
        for item in plan.members:
            item.seq_len += data.draw(st.integers(1, item.draft_limit + 1))
            item.cached = item.seq_len - 1
        scheduler.complete(plan)
        scheduler.allocator.check(scheduler.pool.window.values())
        rounds += 1
        if rounds == 2:
            scheduler.submit(some[early:])
        assert rounds <= 300
    assert scheduler.pool.num_finished == (len(some) if rounds > 2 else scheduler.pool.num_submitted)


@given(cases(), st.integers(0, 9))
def test_chunks_of_any_size_do_not_change_a_token(case: Case, spare_tokens):
    layout = case.layout if case.layout != "inplace" else "paged"
    case = replace(case, layout=layout, scheduler="continuous", spare_tokens=spare_tokens)
    assert run_case(case, checks="device").outputs == oracle_outputs(case)


@pytest.mark.parametrize(("method", "token_budget"), [("paged+continuous", 17), ("masked+continuous", None)])
def test_packed_chunks_give_the_tokens_of_whole_prompts(llama, method, rules, token_budget):
    settings = {"batch_size": 4, "max_new_tokens": 8, "checks": "device", **rules}
    found = generate(llama, PROMPTS, method=method, token_budget=token_budget, **settings)
    wanted = generate(llama, PROMPTS, method="inplace", **settings)
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in wanted.sequences]


def test_sequences_preempted_in_the_middle_of_a_prompt_give_the_same_tokens(llama, rules):
    settings = {"batch_size": 4, "max_new_tokens": 12, **rules}
    wanted = [s.token_ids for s in generate(llama, PROMPTS, **settings).sequences]
    config = make_config(method="paged+continuous", block_size=2, token_budget=24, **settings)
    engine = Engine(llama, prepare(llama, PROMPTS, config), config)
    in_prompt = Counter()
    for number, _ in enumerate(engine.rounds()):
        residents = list(engine.scheduler.pool.window.values())[1:]
        for sequence in residents[::-1] if number % 4 == 1 else ():
            in_prompt[0 < sequence.target_cached < sequence.seq_len - 1] += 1
            engine.scheduler.preempt(sequence)
            engine._preempt(sequence)
    assert all(in_prompt[middle] for middle in (False, True))
    assert [s.generated for s in engine.sequences] == wanted


def test_a_prompt_of_2000_tokens_that_joins_eight_rows_delays_none_of_them():
    """Counted in tokens of a round: with the default budget, at most a fourth of a round with the whole prompt."""
    config = make_config(method="inplace+continuous", batch_size=9, num_speculative_tokens=5)
    scheduler = make_scheduler(config)
    rows, joining = [Item(10, 1000, 5, 9) for _ in range(8)], Item(2000, 2064, 5)
    scheduler.submit([*rows, joining])
    scheduler.admit()
    fed = []
    while joining.to_prefill:
        plan, _ = scheduler.choose()
        assert list(plan.members) == rows
        fed.append(sum(m.draft_limit + 1 for m in plan.members) + sum(c.count for c in plan.chunks))
        joining.cached += sum(c.count for c in plan.chunks)
    assert len(fed) == 8
    assert max(fed) <= (8 * 6 + 1999) / 4


def test_prompts_of_one_token_decode_at_once(llama):
    found = generate(llama, [[3], [4]], method="paged+continuous", max_new_tokens=5)
    assert not any(record.chunks for record in found.rounds)


def test_a_row_must_fit_into_the_budget(llama):
    with pytest.raises(InputError, match="token_budget 5 is too small: a row with 5 drafts takes 6 tokens"):
        generate(llama, [[1]], method="inplace+continuous", token_budget=5)
    request = Request([1], num_speculative_tokens=9)
    with pytest.raises(InputError, match="token_budget 6 is too small: a row with 9 drafts takes 10 tokens"):
        generate(llama, [request], method="inplace+continuous", token_budget=6)


def test_rounds_with_chunks_are_not_recorded(llama):
    with pytest.raises(InputError, match="cuda_graphs need rows that stay where they are"):
        generate(llama, [[1]], method="inplace+continuous", cuda_graphs=True)


def test_bits_of_one_shape_are_those_of_whole_prompts(llama):
    settings = {"shape_stable": True, "batch_size": 4, "max_new_tokens": 8, "logprobs": 2}
    wanted = generate(llama, PROMPTS, method="inplace", **settings)
    found = generate(llama, PROMPTS, method="paged+continuous", token_budget=30, **settings)
    assert [s.logprobs for s in found.sequences] == [s.logprobs for s in wanted.sequences]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64])
def test_chunks_of_every_size_that_divides_a_pass_keep_every_bit(size, dtype, monkeypatch):
    """Of log-probabilities, with and without sharing. One row at a time and no drafts: a budget is a chunk."""
    pair = random_pair("llama", draft_noise=0.01, dtype=dtype)
    prompts = [[3 + (i * j * 7 + j) % 40 for j in range(20 + 37 * i)] for i in range(4)]
    settings = {"shape_stable": True, "batch_size": 1, "max_new_tokens": 4, "logprobs": 2, "num_speculative_tokens": 0}
    wanted = generate(pair, prompts, method="inplace", **settings)
    counts: list[int] = []

    def counted(cached, chunks):
        counts.extend(chunk.count for chunk in chunks)
        note_chunks(cached, chunks)

    monkeypatch.setattr(rounds, "note_chunks", counted)
    for sharing in (True, False):
        found = generate(
            pair, prompts, method="paged+continuous", token_budget=size, prefix_sharing=sharing, **settings
        )
        assert [s.logprobs for s in found.sequences] == [s.logprobs for s in wanted.sequences]
    assert max(counts) == size
