"""Overlapped execution: the tokens, bits and laws of ordinary decoding, and drafts made before the round in flight."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from proofs.conformance import cohorts
from refimpl import InputError, InvariantViolation, generate, verify
from refimpl.core.config import make_config
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import pool_gib
from refimpl.decoding.overlapped import OverlappedPasses
from refimpl.decoding.passes import EagerPasses
from refimpl.faults import FAULTS
from refimpl.pairs.names import TINY
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair
from refimpl.prompts import read_prompts
from refimpl.requests import prepare
from refimpl.scheduling import OverlappedScheduler
from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case
from refimpl.selfcheck.enumeration import law_config
from refimpl.selfcheck.fraction_model import fraction_pair
from refimpl.selfcheck.law import variation
from refimpl.selfcheck.strategies import DRAFTINGS, cases
from tests.outputs import tokens

SETTINGS = {"max_new_tokens": 10, "num_speculative_tokens": 4, "stop_token_ids": [5]}
OVERLAPPED = {"execution": "overlapped", **SETTINGS}


@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_random_models_in_float64(ragged_prompts, kind):
    pair = random_pair(kind, draft_noise=0.01)
    wanted = tokens(generate(pair, ragged_prompts, method="autoregressive", **SETTINGS))
    for method in ("inplace", "paged"):
        assert tokens(generate(pair, ragged_prompts, method=method, batch_size=4, **OVERLAPPED)) == wanted


@given(case=cases(sampled=True, cancellations=True, recurrent=True))
def test_every_case_is_exact(case: Case):
    """Whatever is accepted, drafted, budgeted, cancelled or preempted."""
    layout = case.layout if case.layout == "paged" else "inplace"
    case = replace(case, layout=layout, scheduler="fifo", execution="overlapped", cuda_graphs=False)
    run = run_case(case, checks="oracle")
    for found, wanted, reason in zip(run.outputs, oracle_outputs(case), run.stop_reasons, strict=True):
        assert found == (wanted[: len(found)] if reason == "cancelled" else wanted)


def test_bundled_prompts_in_float32(tiny):
    prompts = read_prompts(TINY / "prompts.jsonl", "first", 4)
    settings = {"max_new_tokens": 10, "max_prompt_tokens": 40, "execution": "overlapped"}
    assert verify(tiny, prompts, methods=["inplace", "paged"], batch_sizes=[3], **settings).exact


@pytest.mark.nightly
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "coupled"])
@pytest.mark.parametrize("drafting", DRAFTINGS, ids=lambda d: f"{d.drafter}-{d.draft_budget}")
def test_all_bundled_prompts_with_every_drafter_and_budget(tiny, drafting, sampling):
    prompts = read_prompts(TINY / "prompts.jsonl", "first")
    settings = {"drafting": drafting, "execution": "overlapped", **sampling}
    assert verify(tiny, prompts, methods=["inplace", "paged"], batch_sizes=[8], **settings).exact


def test_every_bit_is_plain_decodings(tiny):
    """In shapes that do not change, which rows of a pass are idle does not matter."""
    prompts = read_prompts(TINY / "prompts.jsonl", "first", 3)
    settings = {"max_new_tokens": 6, "max_prompt_tokens": 40, "logprobs": 2, "shape_stable": True, "batch_size": 2}
    wanted = generate(tiny, prompts, method="autoregressive", **settings)
    for method in ("inplace", "paged"):
        found = generate(tiny, prompts, method=method, execution="overlapped", **settings)
        assert [s.logprobs for s in found.sequences] == [s.logprobs for s in wanted.sequences]


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_samples_are_those_of_serial_execution(ragged_prompts, rule):
    """Where a row's rounds begin depends on itself alone, and so does what it draws."""
    pair = random_pair("llama", draft_noise=0.3)
    settings = {"acceptance": rule, "temperature": 1.0, "method": "inplace", "batch_size": 4}
    serial = tokens(generate(pair, ragged_prompts, **SETTINGS, **settings))
    assert tokens(generate(pair, ragged_prompts, **OVERLAPPED, **settings)) == serial


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(
    ("drafts", "budget"),
    [
        (1, {}),
        (2, {"draft_budget": "capacity:1"}),
        (1, {"draft_budget": "goodput:1=1.6"}),
    ],
)
def test_joint_law_of_two_cohorts(rule, drafts, budget):
    """Every branch of a run, in exact fractions: long enough that the capacity and the history cut drafts."""
    requests = [Request([0], 3, drafts), Request([1, 0], 2, drafts)]
    config = law_config(execution="overlapped", acceptance=rule, **budget)
    assert variation(fraction_pair(2, seed=3), requests, config) == 0


def test_drafts_are_made_behind_the_verify_pass_and_before_its_outcome(llama, monkeypatch):
    """Five rows, three of them in the first cohort: what is drafted ahead is what the next round verifies."""
    seen = []
    for name in ("draft", "verify"):
        original = getattr(EagerPasses, name)

        def noted(self, members, *args, name=name, original=original):
            seen.append((name, [(m.index, m.seq_len) for m in members]))
            return original(self, members, *args)

        monkeypatch.setattr(EagerPasses, name, noted)
    config = make_config(method="inplace", batch_size=5, **OVERLAPPED)
    engine = Engine(llama, prepare(llama, [[7, 1], [2], [3, 9], [4], [6]], config), config)
    starts = [(s.index, s.seq_len) for s in engine.sequences]
    first, second = engine.run_one_round(), engine.run_one_round()
    third = [(row.sequence, row.seq_len + row.kept) for row in first.rows]
    assert seen == [
        ("draft", starts[:3]), ("verify", starts[:3]), ("draft", starts[3:]),
        ("verify", starts[3:]), ("draft", third),
    ]  # fmt: skip
    assert [row.sequence for row in second.rows] == [3, 4]


def test_every_history_of_six_rows():
    """Balance, bounded waiting, and that the next round verifies what was drafted; and a fault is found."""
    assert [verdict for verdict in cohorts.check() if not verdict.ok] == []


def test_cohorts_are_balanced_when_rows_have_left():
    scheduler = OverlappedScheduler(6, 6)
    scheduler.submit([Sequence(i, [1], 9) for i in range(6)])
    scheduler.admit()
    plans = []
    for ends in ((), (3, 5), (), (), ()):
        plan = scheduler.select()
        plans.append([[row.index for row in rows] for rows in (plan.members, plan.ahead)])
        for row in plan.members:
            row.stop_reason = "stop" if row.index in ends else None
        scheduler.complete(plan)
    assert plans == [
        [[0, 1, 2], [3, 4, 5]], [[3, 4, 5], [0, 1, 2]], [[0, 1, 2], [4]], [[4], [0, 1]], [[0, 1], [2, 4]],
    ]  # fmt: skip


def test_blocks_run_out(llama):
    """Preempted rows lose their drafts, and those that are left are drafted again."""
    prompts = [[3 + i, 1, 4, 1][: 1 + i % 4] for i in range(6)]
    settings = {"max_new_tokens": 12, "num_speculative_tokens": 3, "method": "paged", "block_size": 2, "batch_size": 6}
    wanted = tokens(generate(llama, prompts, method="autoregressive", max_new_tokens=12))
    found = generate(
        llama, prompts, execution="overlapped", checks="oracle", kv_memory_gib=pool_gib(llama, 12, 2), **settings
    )
    assert tokens(found) == wanted
    assert found.stats.num_preemptions > 0


@pytest.mark.parametrize("fault", ["stale-offer", "drafted-while-verified"])
def test_cohorts_out_of_step_are_noticed(fault):
    rows = (Row((1, 2), 9, agreements=(False, True, True)), Row((3,), 4))
    with FAULTS[fault].injected(), pytest.raises(InvariantViolation, match="INV-21"):
        run_case(Case(rows, execution="overlapped"), checks="host")


def test_an_offer_for_another_length_is_noticed(llama, monkeypatch):
    """The text of a row grows between its drafts and their verification."""
    original = OverlappedPasses._draft

    def draft(self, rows):
        return replace(original(self, rows), lengths=tuple(m.seq_len - 1 for m in rows))

    monkeypatch.setattr(OverlappedPasses, "_draft", draft)
    with pytest.raises(InvariantViolation, match=r"INV-21 in row 1: .*expected 2.*found 1"):
        generate(llama, [[1, 2], [3, 4]], batch_size=2, **OVERLAPPED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "eqspec"},
            "execution 'overlapped' needs rows that stay where they are and run in turns: realigned",
        ),
        ({"method": "paged+continuous"}, "run in turns: paged.continuous does not have them; choose inplace or paged"),
        ({"cuda_graphs": True}, "cuda_graphs record whole rounds: choose execution 'serial', not 'overlapped'"),
    ],
)
def test_what_it_cannot_have(settings, message):
    with pytest.raises(InputError, match=message):
        make_config(**{"execution": "overlapped"} | settings)


def test_a_draft_ahead_does_not_touch_the_layout_of_the_target(llama):
    config = make_config(method="inplace", batch_size=4, **OVERLAPPED)
    engine = Engine(llama, prepare(llama, [[1], [2], [3], [4]], config), config)
    engine.run_one_round()
    assert [row.sequence for row in engine.context.target.layout.rows] == [0, 1]
    assert [row.sequence for row in engine.context.drafter.cached.layout.rows] == [2, 3]
    assert not torch.equal(engine.context.drafter.cached.layout.pool.data[..., 2, :, :], torch.zeros(1).double())


def test_the_timer_of_a_gpu_does_not_wait_for_drafts_made_ahead(llama, monkeypatch):
    """Taking a round's times waits for its events: none of work that is launched for the next round is among them."""
    ahead, known = set(), []

    class Event:
        def __init__(self, enable_timing):
            known.append(self)

        def record(self):
            pass

        def synchronize(self):
            assert self not in ahead

        def elapsed_time(self, stop):
            return 1.0

    def noted(self, rows):
        first = len(known)
        after(self, rows)
        ahead.update(known[first:])

    def run(self, members, *arguments):
        ahead.clear()
        return verified(self, members, *arguments)

    after, verified = OverlappedPasses.after, OverlappedPasses.run
    monkeypatch.setattr(OverlappedPasses, "after", noted)
    monkeypatch.setattr(OverlappedPasses, "run", run)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    config = make_config(batch_size=4, **OVERLAPPED)
    engine = Engine(llama, prepare(llama, [[7, 1], [2], [3, 9], [4], [6]], config), config)
    monkeypatch.setattr(engine.timer, "_cuda", True)
    records = list(engine.rounds())
    drafted = [record for record in records if any(row.drafted for row in record.rows)]
    assert len(drafted) > 3
    assert all(record.stage_s["draft_s"] > 0 for record in drafted)
