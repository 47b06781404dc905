"""Bytes and operations of a round's passes, counted by hand."""

from dataclasses import replace
from typing import get_args

import pytest

from refimpl.bench.engines import run_method
from refimpl.bench.run import make_bench
from refimpl.bench.settings import BenchSettings
from refimpl.bench.work import Feed, ModelWork, Rates, Work, round_passes
from refimpl.core.execution import ExecutionName
from refimpl.core.records import RowOutcome
from refimpl.decoding.trace import RoundRecord
from refimpl.pairs.random_pairs import random_pair

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM, VOCAB, ITEM = 32, 48, 2, 4, 2, 8, 61, 8
MATRICES = LAYERS * (2 * HIDDEN * HEADS * DIM + 2 * HIDDEN * KV_HEADS * DIM + 3 * HIDDEN * INNER)
HEAD = HIDDEN * VOCAB
NORMS = (2 * LAYERS + 1) * HIDDEN
KV = LAYERS * 2 * KV_HEADS * DIM * ITEM


def outcome(seq_len, draft_lag, drafted, draft_passes):
    row = RowOutcome(0, seq_len, draft_lag, drafted, drafted, 0, 1, "recovered", False)
    return replace(row, draft_passes=draft_passes)


class TestWork:
    def test_a_pass_is_what_one_counts_by_hand(self, llama):
        work = ModelWork.of(llama.target)
        assert (work.layer_weights, work.head_weights, work.kv_bytes_per_token) == (MATRICES, HEAD, KV)
        assert work.weight_bytes == (MATRICES + HEAD + NORMS) * ITEM
        found = work.forward_pass([Feed(cached=10, fed=3, num_logits=2)])
        seen = 11 + 12 + 13
        flops = 2 * MATRICES * 3 + 2 * HEAD * 2 + 4 * HEADS * DIM * LAYERS * seen
        assert found == Work(work.weight_bytes + 13 * KV, flops)

    def test_weights_are_read_once_whatever_the_batch(self, llama):
        work = ModelWork.of(llama.target)
        one, four = (work.forward_pass([Feed(10, 1, 1)] * n) for n in (1, 4))
        assert four.num_bytes - one.num_bytes == 3 * 11 * KV
        assert four.flops == 4 * one.flops

    @pytest.mark.parametrize("kind", ["opt", "gpt2"])
    def test_learned_positions_are_looked_up_not_read(self, kind):
        model = random_pair(kind).target.model
        tables = sum(p.numel() for n, p in model.named_parameters() if any(w in n for w in ("positions", "wpe")))
        read = sum(p.numel() for p in model.parameters()) - tables
        assert tables
        assert ModelWork.of(random_pair(kind).target).weight_bytes == read * ITEM

    def test_a_round_has_a_pass_per_draft_and_one_to_verify(self, llama):
        target, draft = ModelWork.of(llama.target), ModelWork.of(llama.draft)
        record = RoundRecord(0, "static", (outcome(20, 2, 3, 3), outcome(10, 1, 1, 3)), {}, 0)
        assert list(round_passes(record, target, draft)) == [
            draft.forward_pass([Feed(18, 2, 1), Feed(9, 1, 1)]),
            draft.forward_pass([Feed(20, 1, 1)]),
            draft.forward_pass([Feed(21, 1, 1)]),
            target.forward_pass([Feed(19, 4, 4), Feed(9, 2, 2)]),
        ]
        by_head = RoundRecord(0, "static", (outcome(20, 1, 3, 0),), {}, 0)
        assert list(round_passes(by_head, target, draft)) == [target.forward_pass([Feed(19, 4, 4)])]

    def test_the_floor_adds_up_the_slower_side_of_each_pass(self):
        rates = Rates(bytes_per_s=10, flops_per_s=100)
        assert rates.floor_s([Work(20, 100), Work(10, 500)]) == 2 + 5


def test_which_passes_are_those_of_a_round_is_not_known_where_it_drafts_for_the_next_one(llama):
    bench = make_bench(llama, BenchSettings(max_new_tokens=7))
    times = {
        name: run_method(bench, [[3], [4]], "inplace", 2, execution=name).forward_s for name in get_args(ExecutionName)
    }
    assert times["serial"] > 0
    assert times["overlapped"] is None
