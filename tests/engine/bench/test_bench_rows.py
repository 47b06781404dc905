"""Rows of benchmarks, from samples and clocks made by hand."""

import re
from collections import deque
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from refimpl import Request
from refimpl.bench import demo, serving
from refimpl.bench.anatomy import _mean_of, counted_bytes
from refimpl.bench.anatomy_rows import AnatomyRun
from refimpl.bench.anatomy_rows import make_row as make_anatomy_row
from refimpl.bench.engines import Sample, _forward_s, round_s, run_method
from refimpl.bench.rows import make_row
from refimpl.bench.run import ASSISTED, BATCHED, PLAIN, Interleaved, make_bench
from refimpl.bench.settings import PLAIN_DECODING, BenchSettings
from refimpl.bench.work import Rates, Work
from refimpl.commands.bench_tables import print_bench_table
from refimpl.core.records import RowOutcome
from refimpl.core.stats import AcceptanceStats, RunStats
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts.store import KVStore
from refimpl.pairs.random_pairs import random_pair
from refimpl.streaming import TokenEvent

RATES = Rates(bytes_per_s=100.0, flops_per_s=1000.0)
STAGES = {"draft": 0.5, "verify": 1.0, "realign": 0.25, "host": 0.25}  # of two rounds
ROUNDS = AcceptanceStats(row_rounds=8, drafted=16, accepted=4, generated=12, histogram=(4, 4))


def sample(seconds, **more):
    """Twelve tokens in two rounds of a second each, whose passes need 10 and 20 bytes, 50 and 500 FLOPs."""
    passes = (Work(10.0, 50.0), Work(20.0, 500.0))
    rounds = {"passes_s": 2.0, "rounds": 2, "stage_s": STAGES, "forward_s": 1.25, "acceptance": ROUNDS}
    return Sample(seconds, 12, passes, **rounds | more)


def test_a_row_by_hand():
    """Speeds of 6, 4 and 3 tokens a second, beside 12, 6 and 2 of plain generation, which makes 24 tokens."""
    plain = [Sample(seconds, 24) for seconds in (2.0, 4.0, 12.0)]
    first = [sample(seconds) for seconds in (2.0, 1.0, 3.0)]
    row = make_row("inplace", 8, [sample(2.0), sample(3.0), sample(4.0)], plain, first, RATES, busy_s=0.75)
    assert (row.tokens_per_s_min, row.tokens_per_s, row.tokens_per_s_max) == (3, 4, 6)
    assert row.ratio_to_hf_generate == pytest.approx(4 / 6)  # of 6/12, 4/6 and 3/2
    assert row.ratio_to_first_method == 0.75  # of 6/6, 4/12 and 3/4; medians over each other would be 4/6
    assert (row.mean_acceptance_length, row.draft_acceptance_rate) == (1.5, 0.25)
    assert (row.rounds, row.rows_per_round) == (2, 4)
    assert (row.ms_per_round, row.ms_draft, row.ms_verify, row.ms_realign, row.ms_host) == (1000, 250, 500, 125, 125)
    assert (row.share_draft, row.share_verify, row.share_realign, row.share_host) == (0.25, 0.5, 0.125, 0.125)
    assert (row.ms_idle, row.share_idle, row.share_outside_forward) == (250, 0.25, 0.375)
    assert (row.bytes_per_round, row.flops_per_round) == (15, 275)
    assert row.floor_ms_per_round == pytest.approx(1e3 * (0.1 + 0.5) / 2)  # the first pass waits for bytes
    assert row.fraction_of_floor == pytest.approx(0.3)


def test_acceptance_beside_the_least_that_pays_off():
    """Rounds of one draft: half of them accept it; they take 1.25, 1.5 and 4 times as long as a step without."""
    halves = AcceptanceStats(row_rounds=8, drafted=8, accepted=4, generated=12, histogram=(4, 4))
    plain = [sample(1.0, passes_s=2 / slower) for slower in (1.25, 4.0, 1.5)]
    drafted = [sample(1.0, acceptance=halves, drafts=1)] * 3
    row = make_row("inplace", 8, drafted, plain, plain, RATES, undrafted=plain)
    assert (row.num_speculative_tokens, row.acceptance_probability) == (1, pytest.approx(0.5))
    assert row.break_even_acceptance == pytest.approx(0.5)
    never = plain[1:2]
    assert make_row("inplace", 8, drafted[:1], never, never, RATES, undrafted=never).break_even_acceptance is None
    assert make_row("rollback", 8, drafted, plain, plain, RATES).break_even_acceptance is None


def test_the_table_shows_ratios_to_plain_generation_and_to_the_first_method(capsys):
    row = asdict(make_row("inplace", 8, [sample(2.0)], [sample(3.0)], [sample(5.0)], RATES))
    print_bench_table([row], RATES, json_=False)
    assert re.findall(r"\d\.\d\d×", capsys.readouterr().out) == ["1.50×", "2.50×"]


def test_the_table_leaves_empty_what_was_not_measured_of_an_engine(capsys):
    """On a CPU the memory is not known, and engines of transformers have no rounds."""
    ours, theirs = sample(2.0, peak_bytes=3 * 10**9), Sample(2.0, 12, passes_s=2.0)
    rows = [asdict(make_row("any", 8, [each], [ours], [ours], RATES)) for each in (ours, theirs)]
    print_bench_table(rows, RATES, json_=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if "any" in line]
    assert ["3.0 GB" in line for line in lines] == [True, False]
    assert [line.count("%") for line in lines] == [6, 0]


def test_without_times_of_passes_realignment_and_host_are_what_is_outside():
    row = make_row("inplace", 8, [sample(2.0, forward_s=None)], [sample(2.0)], [sample(1.0)], RATES)
    assert (row.share_outside_forward, row.ms_idle, row.ratio_to_hf_generate) == (0.25, None, 1)


@pytest.mark.parametrize(("methods", "size", "first"), [
    (("eqspec", "inplace"), 2, "eqspec model"), (("speculative", "paged"), 1, "speculative model"),
    (("speculative", "paged"), 2, "paged model"), (("speculative",), 2, "autoregressive_batched"),
])  # fmt: skip
def test_rows_are_compared_with_the_first_method_that_runs_within_a_repeat(llama, methods, size, first):
    """Every engine takes as many seconds as its place in the order; every other repeat runs it backwards."""
    drafters = tuple((name, {"drafter": name}) for name in ("model", "ngram"))
    settings = BenchSettings((size,), methods, repeats=3, variants=drafters)
    bench = Interleaved(make_bench(llama, settings), [[5, 6]] * 2, None, None)
    order, names = [], list(bench.runs[size])

    def run(name, _):
        order.append(name)
        return sample(float((len(order) - 1) % len(names) + 1))

    bench.runs[size] = {name: partial(run, name) for name in names}
    for repeat in range(3):
        bench.rates.append(RATES)
        bench._visit(size, repeat)
    assert order == [*names, *reversed(names), *names]
    for row in bench.report(complete=True).rows:
        place, of_first = names.index(row.engine), names.index(first)
        assert row.ratio_to_first_method == pytest.approx((of_first + 1) / (place + 1))
        assert row.ratio_to_hf_generate == pytest.approx((names.index(PLAIN) + 1) / (place + 1))


def record(prefill_s, record_s, round_s, *, passes=2, moves=0):
    row = RowOutcome(0, 5, 1, passes, passes, 0, 1, "recovered", False, draft_passes=passes)
    stages = {"prefill_s": prefill_s, "record_s": record_s, "round_s": round_s, "realign_s": 0.5}
    return RoundRecord(0, "fifo", (row,), stages, moves)


def test_a_round_is_timed_without_its_prefill_and_its_recording():
    assert round_s(record(1.0, 2.0, 7.0)) == 4


def test_passes_of_a_round_are_the_last_before_its_end():
    """A prompt was cached before the first one, in two passes."""
    clock = [50.0, 60.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert _forward_s([record(0, 0, 9, passes=2), record(0, 0, 9, passes=1)], [5, 7], clock) == 1 + 2 + 3 + 4 + 5


def test_means_of_a_run_of_the_anatomy_leave_prefills_out():
    found = _mean_of([record(1.0, 0.0, 3.0, moves=2), record(0.0, 0.0, 4.0, moves=1)], num_bytes=80)
    assert found == AnatomyRun(operations=1.5, num_bytes=40, realign_s=0.5, round_s=3)


def test_a_row_of_the_anatomy_by_hand():
    runs = [AnatomyRun(2.0, 80.0, realign_s, 4.0) for realign_s in (1.0, 2.0, 9.0)]
    row = make_anatomy_row("eqspec", 4, 64, runs, RATES)
    assert (row.realign_ms_per_round, row.ms_per_round) == (2000, 4000)
    assert row.share_realign == 0.5
    assert (row.bytes_per_s, row.fraction_of_bandwidth) == (40, 0.4)


def test_bytes_are_read_and_written(llama):
    shape = llama.target.kv_shape
    source, other = (KVStore.empty(shape, 2, 5, tagged=False) for _ in range(2))
    with counted_bytes() as moved:
        other.copy_slots(source, torch.tensor([0, 7, 3]), torch.tensor([1, 2, 9]))
        source.gather(torch.tensor([[1, 2], [3, 4]]), torch.empty(4 * shape.elements_per_token, dtype=shape.dtype))
    assert moved == [2 * 3 * shape.bytes_per_token, 2 * 4 * shape.bytes_per_token]


def test_a_row_of_the_demonstration_by_hand():
    """Three repeats, in one of which an output differs; each ratio is of one repeat."""
    right, wrong = [[1, 2], [3]], [[1, 2], [4]]
    stats = [RunStats(stage_s={"verify": 3.0, "realign": 1.0, "prefill": each}) for each in (0.0, 4.0, 12.0)]
    runs = [
        demo._Run(speed, out, s) for speed, out, s in zip((8.0, 9.0, 20.0), (right, wrong, right), stats, strict=True)
    ]
    plain = [demo._Run(speed, right) for speed in (2.0, 9.0, 10.0)]
    row = demo._row(("inplace", 8), runs, plain, right)
    assert (row.exact, row.prompts, row.tokens_per_s, row.ratio_to_transformers) == (1, 2, 9, 2)
    assert row.share_realign == 0.125


class ServedRun:
    """Request 0 comes at 0 and has tokens at 1, 2 and 4; request 1 comes at 0.5, and has its only ones at 4."""

    num_finished = 2

    def __iter__(self):
        for index, time_s, stop in ((0, 1.0, None), (0, 2.0, None), (0, 4.0, "length"), (1, 4.0, "length")):
            yield TokenEvent(index, (7,), stop, time_s=time_s)

    def result(self):
        counted = AcceptanceStats(row_rounds=4, generated=4, histogram=(4,))
        return Served(RunStats(acceptance=counted, wall_s=3.0, num_preemptions=5), {"method": "inplace"})


@dataclass(frozen=True)
class Served:
    stats: RunStats
    header: dict


def test_waits_of_a_served_run_by_hand(monkeypatch):
    runs = deque([[], ServedRun()])  # the first one warms up
    monkeypatch.setattr(serving, "stream", lambda *_, **__: runs.popleft())
    monkeypatch.setattr(serving, "Reference", lambda *_: SimpleNamespace(time_several=lambda _: None, mean_s=0.25))
    pair = SimpleNamespace(vocab_size=9)
    row, result = serving.serve(pair, [Request([1]), Request([2], arrival_s=0.5)], "inplace")
    assert result.header == {"method": "inplace", "reference_s": 0.25}
    assert (row.requests, row.tokens, row.seconds, row.tokens_per_s) == (2, 4, 4, 1)
    assert (row.busy_share, row.preemptions) == (0.75, 5)
    assert (row.first_token.p50_s, row.first_token.p90_s) == pytest.approx((2.25, 3.25))  # of 1 and 3.5
    assert (row.inter_token.p50_s, row.inter_token.p99_s) == pytest.approx((1.5, 1.99))  # of 1 and 2
    assert (row.latency.p50_s, row.latency.p90_s) == pytest.approx((3.75, 3.95))  # of 4 and 3.5


def test_shares_are_of_all_stages():
    stats = RunStats(wall_s=100.0, stage_s={"draft": 1.0, "verify": 3.0})
    assert (stats.share("draft"), stats.share("host"), RunStats().share("draft")) == (0.25, 0, 0)
    assert replace(stats, acceptance=ROUNDS).tokens_per_s == 0.12


def test_plain_decoding_does_not_run_the_draft():
    """Whatever the benchmark is asked to draft with; its prompts are not cached either."""
    pair = random_pair("llama", draft_noise=0.01)
    settings = BenchSettings((2,), max_new_tokens=4, options=(("draft_budget", "by_load:1=2"),))
    bench, fed = make_bench(pair, settings), []
    bench.draft.model.register_forward_pre_hook(lambda *_: fed.append("draft"))
    sample = run_method(bench, [[1, 2, 3], [4, 5]], "inplace", 2, **PLAIN_DECODING)
    assert sample.tokens == 8
    assert not fed
    run_method(bench, [[1, 2, 3], [4, 5]], "inplace", 2)
    assert fed


@pytest.mark.parametrize("left_out", [set(), {"eager"}, {"assisted"}], ids=lambda names: "".join(names) or "none")
def test_rows_for_comparison_can_be_left_out(left_out):
    settings = BenchSettings((1, 2), ("inplace",), 3, 4, cuda_graphs=True, **dict.fromkeys(left_out, False))
    runs = Interleaved(make_bench(random_pair("llama"), settings), [[5, 6]], None, None).runs
    named = {"eager": "inplace_eager", "assisted": ASSISTED}
    assert set(runs[1]) == {PLAIN, BATCHED, "inplace", *named.values()} - {named[name] for name in left_out}
    assert ASSISTED not in runs[2]
