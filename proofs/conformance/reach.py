"""What the runs of every acceptance pattern never come to.

Rejection sampling, cancelled sequences, drafters that look tokens up, pools of blocks that are too small for a batch,
and what callers ask for; and what must have happened in these runs, and in small borders, for the claims to mean
anything.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from proofs.conformance import asked, runs
from proofs.conformance.borders import BLOCK_SIZE, small_borders
from proofs.conformance.perfect_memory import PackingMemory, PerfectMemory
from proofs.conformance.runs import METHODS, SAMPLINGS, SHAPES, Run, Shape, sampled_pair, shape
from proofs.report import Verdict
from refimpl.core import kernels
from refimpl.core.config import SamplingConfig
from refimpl.core.execution import UNMOVED_LAYOUTS
from refimpl.decoding.engine import Engine
from refimpl.faults import FAULTS
from refimpl.layouts.packed import PackedBlock
from refimpl.placement import Move, RectanglePlacement

COUPLED = SAMPLINGS[0]
LONGER = [shape((2, 2), (8, 8), (1, 1), 2, 2), shape((3, 1, 4), (8, 6, 7), (2, 1, 2), 2, 3, 1), SHAPES[-1]]
UNEVEN = [shape((2, 1), (8, 8), (3, 0), 2, 2), shape((1, 3, 2), (7, 8, 6), (0, 3, 1), 2, 3, 1)]
Runs = Callable[..., Iterator[Run]]  # of a method and a counter of what was seen


def finished(engine: Engine, method: str, shape: Shape, expected: list[list[int]], seen: Counter[str]) -> Run:
    """Run an engine to its end and note what happened."""
    rounds, remark = [], ""
    while not engine.scheduler.done:
        rounds.append(engine.run_one_round())
        seen["drafted ahead"] += len(engine.scheduler.ahead)
        remark = remark or kept_by_waiting(engine)
    remark = remark or kept_by_finished(engine)
    for row in (row for record in rounds for row in record.rows):
        seen["looked up"] += row.looked_up
        seen[row.next_token] += 1
    seen["preempted"] += engine.num_preemptions
    left = engine.scheduler.allocator.num_blocks_used
    outputs = [row.generated for row in engine.sequences]
    return Run(method, shape, rounds, outputs if not left else [[-1]], expected, remark=remark)


def kept_by_waiting(engine: Engine) -> str:
    """What a sequence that waits has kept beside its tokens (INV-19)."""
    kept = [(s.index, s.target_cached, s.draft_cached or 0, s.blocks) for s in engine.scheduler.pool.waiting]
    return next((f"a sequence that waits has kept {each}" for each in kept if any(each[1:])), "")


def kept_by_finished(engine: Engine) -> str:
    """Rows of the pool that are somebody's after the run."""
    kept = [s.index for s in engine.sequences if s.slot >= 0]
    return f"sequences {kept} have ended, and keep their slots" if kept else ""


@cache
def alone(shape: Shape, sampling: SamplingConfig) -> list[list[int]]:
    """What each row has by itself under rejection sampling."""
    single = replace(shape, batch=1, window=1)
    engine = runs.engine_for("inplace+fifo", single, sampled_pair(), sampling, acceptance="rejection")
    return finished(engine, "inplace+fifo", single, [], Counter()).outputs


def rejection_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """A row's tokens are those that it has alone: its rounds begin where its own acceptance puts them."""
    for each, sampling in itertools.product(SHAPES, SAMPLINGS[:2]):
        engine = runs.engine_for(method, each, sampled_pair(), sampling, acceptance="rejection")
        yield finished(engine, method, each, alone(each, sampling), seen)


def lookup_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Coupled tokens do not depend on what is proposed."""
    for each, drafter in itertools.product(LONGER, ("ngram", "suffix", "hybrid")):
        expected = runs.sampled_outputs(each, COUPLED)
        engine = runs.engine_for(method, each, sampled_pair(), COUPLED, drafter=drafter)
        yield finished(engine, method, each, expected, seen)


def cancelled_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """A cancelled row keeps what it has, the others do not notice."""
    for each in LONGER:
        for row, after in itertools.product(range(len(each.jobs)), range(2)):
            expected = [*runs.sampled_outputs(each, COUPLED)]
            engine = runs.engine_for(method, each, sampled_pair(), COUPLED)
            for _ in range(after):
                engine.run_one_round()
            sequence = engine.sequences[row]
            expected[row] = expected[row][: sequence.num_generated]
            engine.cancel(sequence)
            seen["cancelled"] += sequence.stop_reason == "cancelled"
            yield finished(engine, method, each, expected, seen)


def preempted_runs(method: str, seen: Counter[str], **settings: Any) -> Iterator[Run]:
    """Nothing of a sequence that was sent back survives but its tokens (INV-19)."""
    for each, spare in itertools.product(map(without_stops, LONGER), range(4)):
        expected = runs.sampled_outputs(each, COUPLED)
        short = kv_memory_gib(each, spare)
        engine = runs.engine_for(method, each, sampled_pair(), COUPLED, kv_memory_gib=short, **settings)
        yield finished(engine, method, each, expected, seen)


def without_stops(shape: Shape) -> Shape:
    """Every row spends its budget, so that blocks run short."""
    return replace(shape, jobs=tuple(replace(job, stops=frozenset()) for job in shape.jobs))


def kv_memory_gib(shape: Shape, spare: int) -> float:
    """Room for the longest row's blocks, so many more, and scratch."""
    blocks = -(-max(job.end for job in shape.jobs) // BLOCK_SIZE) + spare + 1
    pair = sampled_pair()
    per_token = sum(model.kv_shape.bytes_per_token for model in pair.models(True))
    return blocks * BLOCK_SIZE * per_token / 2**30


def replayed_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Rounds that were recorded, and passes of one shape."""
    for each, settings in itertools.product(
        map(without_stops, LONGER), ({"cuda_graphs": True}, {"shape_stable": True})
    ):
        expected = runs.sampled_outputs(each, COUPLED)
        engine = runs.engine_for(method, each, sampled_pair(), COUPLED, checks="host", **settings)
        seen[next(iter(settings))] += 1
        yield finished(engine, method, each, expected, seen)


def overlapped_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Rows whose drafts were made beside the round before."""
    for each in LONGER:
        expected = runs.sampled_outputs(each, COUPLED)
        engine = runs.engine_for(method, each, sampled_pair(), COUPLED, execution="overlapped")
        yield finished(engine, method, each, expected, seen)


def joint_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Rows that decode in the pass that caches their prompt, as rectangles, and in packed passes."""
    for each, kind in itertools.product(LONGER, (PerfectMemory, PackingMemory)):
        engine = runs.engine_for(method, each, sampled_pair(kind), COUPLED, joint_prefill=True)
        done = finished(engine, method, each, runs.sampled_outputs(each, COUPLED), seen)
        seen["joined"] += any({i for i, _ in r.chunks} & {row.sequence for row in r.rows} for r in done.rounds)
        yield done


def packed_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Rows that draft much beside rows that draft nothing: their verify passes are packed."""
    for each in UNEVEN:
        pair = sampled_pair(PackingMemory)
        forward = pair.target.forward_packed

        def counting(block: PackedBlock, num_logits: int, forward: Any = forward) -> Any:
            seen["packed rows"] += block.rectangle is not None
            return forward(block, num_logits)

        with patch.object(pair.target, "forward_packed", counting):
            engine = runs.engine_for(method, each, pair, COUPLED)
            yield finished(engine, method, each, runs.sampled_outputs(each, COUPLED), seen)


KINDS: dict[str, Runs] = {
    "rejection sampling": rejection_runs,
    "drafts looked up": lookup_runs,
    "cancelled": cancelled_runs,
    "in a pool that is too small": preempted_runs,
    "overlapped": overlapped_runs,
    "prompts beside drafts": joint_runs,
    "rows packed": packed_runs,
    "recorded, and in passes of one shape": replayed_runs,
    "seeds and ids of requests": asked.keyed_runs,
    "stop strings": asked.stopped_runs,
    "log-probabilities": asked.logprob_runs,
    "long prompts": asked.chunked_runs,
}
FEW = (
    "recorded, and in passes of one shape",
    "rows packed",
    "seeds and ids of requests",
    "stop strings",
    "long prompts",
)
EQUAL_TO = {"rejection sampling": "equal to those of each row alone"}


def applies(kind: str, method: str) -> bool:
    """Blocks are paged; what is recorded is in place; and a rollback cuts a row's rounds by those of others."""
    if kind == "recorded, and in passes of one shape":
        return method in ("inplace+static", "inplace+fifo")
    if kind == "in a pool that is too small":
        return method.startswith("paged")
    if kind == "prompts beside drafts":
        return method.startswith(UNMOVED_LAYOUTS)
    if kind == "overlapped":
        return method in ("inplace+fifo", "paged+fifo")
    return not (method.startswith("rollback") and kind == "rejection sampling")


@contextmanager
def counted_moves(seen: Counter[str]) -> Iterator[None]:
    begin = RectanglePlacement.begin

    def counting(self: RectanglePlacement, *arguments: Any) -> Move | None:
        move = begin(self, *arguments)
        seen[move.kind if move else "nothing moves"] += 1
        return move

    with small_borders(), patch.object(RectanglePlacement, "begin", counting):
        yield


def check() -> Iterator[Verdict]:
    """Every kind under every method, and whether the runs have come to what they are for."""
    seen: Counter[str] = Counter()
    with counted_moves(seen):
        for method, (kind, some_runs) in itertools.product(METHODS, KINDS.items()):
            if applies(kind, method):
                yield runs.verdict(f"{method}, {kind}", some_runs(method, seen), EQUAL_TO.get(kind, runs.EQUAL))[0]
    wanted = {"load", "grow", "realign", "compact", "recovered", "bonus", "looked up", "cancelled", "preempted"}
    wanted |= {"cuda_graphs", "shape_stable", "stop strings", "chunks", "packed rows", "drafted ahead", "joined"}
    missing = wanted - set(+seen)
    yield Verdict(
        "the runs move K/V in every way, reject, look up, cancel and preempt", not missing, f"never {missing}"
    )


# Of the engine's own zoo: faults of blocks, in pools that are too small; and faults that change the tokens of LONGER.
SHORT_ZOO = ("position-taken-for-slot", "place-in-block-forgotten")
LONGER_ZOO = (
    "bsp-as-shipped",
    "positions-off-by-one",
    "batch-maximum-positions",
    "bonus-at-wrong-position",
    "rejected-entry-left-visible",
    "pads-pile-up",
    "values-left-behind",
    "rejected-entry-not-overwritten",
    "window-at-its-first-position",
    "logits-in-another-order",
    "next-token-counted-as-cached",
    "stop-does-not-cut",
    "stop-only-at-block-end",
    "budget-one-too-large",
    "budget-one-too-small",
    "dsd-next-token-from-draft",
    "shared-random-stream",
    "noise-keyed-by-batch-row",
)


def check_faults() -> Iterator[Verdict]:
    """Expected failures, with every run-time check off; what is right is computed before a fault is planted."""
    for each in [*LONGER, *map(without_stops, LONGER)]:
        runs.sampled_outputs(each, COUPLED)
    for name in (*SHORT_ZOO, *LONGER_ZOO):
        fault = FAULTS[name]
        with small_borders(), fault.injected():
            short = preempted_runs("paged+fifo", Counter(), checks="off")
            some = short if name in SHORT_ZOO else unchecked_runs(f"{fault.layouts[0]}+{fault.schedulers[0]}")
            yield expected_failure(f"zoo: {name}", runs.verdict(name, some)[0])


def refusals() -> Iterator[Verdict]:
    """Expected failures: with a mask that shows too much, the engine's own check ends the run."""
    for settings in ({}, {"shape_stable": True}):
        engine = runs.engine_for("inplace+fifo", LONGER[0], sampled_pair(), COUPLED, **settings)
        with small_borders(), patch.object(kernels, "visible_by_position", lambda slot, query: slot <= query + 1):
            found = runs.verdict("", (finished(e, "", LONGER[0], [], Counter()) for e in [engine]))[0]
        shown = ", in passes of one shape" if settings else ""
        refused = replace(found, ok="INV-3" not in found.detail)
        yield expected_failure(f"a query that sees a later position is refused{shown}", refused)


def expected_failure(name: str, found: Verdict) -> Verdict:
    detail = found.detail or "no run notices"
    return Verdict(f"expected failure: {name}: {detail}", not found.ok, raised=found.raised)


def unchecked_runs(method: str) -> Iterator[Run]:
    for each in LONGER:
        engine = runs.engine_for(method, each, sampled_pair(), COUPLED, checks="off")
        yield finished(engine, method, each, runs.sampled_outputs(each, COUPLED), Counter())
