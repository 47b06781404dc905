"""Small shapes of every layout and scheduler, every acceptance pattern.

The engine runs on a pair of perfect memories; the draft agrees with the target exactly where a pattern of bits says
so. Outputs must be those of decoding the table one token at a time, with the run-time checks at ``device``, and the
accepted drafts exactly those that agree: a fault of the draft's cache changes nothing else. Steps of columns, chunks of
prompts and blocks are so small that these rows cross their ends.
"""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from proofs.conformance.borders import BLOCK_SIZE, small_borders
from proofs.conformance.laws import Job
from proofs.conformance.perfect_memory import PerfectMemory, Text, pair_of, random_table
from proofs.report import FINDINGS, Verdict
from refimpl.core.config import LAYOUTS, SCHEDULERS, DecodeConfig, SamplingConfig
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord
from refimpl.models.adapter import Pair
from refimpl.oracle import autoregressive

Pattern = tuple[tuple[bool, ...], ...]
VOCAB_SIZE = 8
STOP = 7
METHODS = [f"{layout}+{scheduler}" for layout, scheduler in itertools.product(LAYOUTS, SCHEDULERS)]


@dataclass(frozen=True)
class Shape:
    """Jobs and how they are batched. Prompts start with the row's number, which tells the tables the row."""

    jobs: tuple[Job, ...]
    batch: int
    window: int
    aging: float = 2

    @property
    def patterns(self) -> Iterator[Pattern]:
        """Whether the draft agrees, for every row and every position that a draft can fill."""
        rows = [itertools.product((False, True), repeat=max(0, job.budget - 1)) for job in self.jobs]
        return itertools.product(*rows)


def shape(
    prompts: tuple[int, ...], budgets: tuple[int, ...], ks: tuple[int, ...], *batching: float, filler: int = 0
) -> Shape:
    jobs = [
        Job((i, *(filler,) * (n - 1)), budget, k, frozenset({STOP}))
        for i, (n, budget, k) in enumerate(zip(prompts, budgets, ks, strict=True))
    ]
    return Shape(tuple(jobs), *batching)


SHAPES = [
    shape((1,), (4,), (3,), 1, 1),
    shape((2, 2), (3, 3), (1, 2), 2, 2),
    shape((1, 4), (3, 3), (2, 2), 2, 2, filler=STOP),
    shape((1, 2), (2, 4), (3, 0), 2, 2),
    shape((1, 3, 2), (2, 2, 3), (2, 1, 1), 2, 3, 1),
    shape((1, 1, 1, 2), (2, 2, 2, 2), (1, 1, 1, 1), 2, 3),
    shape((2, 1, 1, 1), (3, 2, 2, 1), (1, 1, 1, 1), 2, 4, math.inf),
]


def target_choice(text: Text) -> int:
    """The target's most probable token: a fixed function of the row and its text, sometimes the stop token."""
    return random.Random(repr(text)).randrange(VOCAB_SIZE)


def greedy_pair(jobs: tuple[Job, ...], pattern: Pattern) -> Pair:
    """A draft that agrees with the target exactly where the pattern says."""

    def one_hot(token: int) -> tuple[float, ...]:
        return tuple(float(t == token) for t in range(VOCAB_SIZE))

    def draft(text: Text) -> tuple[float, ...]:
        row = text[0] if text[0] in range(len(jobs)) else 0
        at = len(text) - len(jobs[row].prompt)
        agrees = 0 <= at < len(pattern[row]) and pattern[row][at]
        return one_hot((target_choice(text) + (not agrees)) % VOCAB_SIZE)

    return pair_of(lambda text: one_hot(target_choice(text)), draft, VOCAB_SIZE)


@dataclass(frozen=True)
class Run:
    """A finished run of the engine, and what it should have said."""

    method: str
    shape: Shape
    rounds: list[RoundRecord]
    outputs: list[list[int]]
    expected: list[list[int]]
    pattern: Pattern | None = None
    remark: str = ""  # what was wrong on the way

    @property
    def fault(self) -> str | None:
        """What was wrong on the way, wrong text, or drafts lost that the pattern says are right."""
        if self.remark:
            return self.remark
        if self.outputs != self.expected:
            return f"{self.outputs}, expected {self.expected}"
        if self.pattern is None:
            return None
        for row in (row for record in self.rounds for row in record.rows):
            at = row.seq_len - len(self.shape.jobs[row.sequence].prompt)
            agreeing = itertools.takewhile(bool, self.pattern[row.sequence][at : at + row.drafted])
            if row.accepted != len(list(agreeing)):
                return f"{row.accepted} drafts accepted, expected {self.pattern[row.sequence][at:]} in {row}"
        return None


def sequences_of(shape: Shape, seed: int) -> list[Sequence]:
    return [
        Sequence(i, list(j.prompt), j.budget, j.k, j.stops, sequence_id=i, seed=seed) for i, j in enumerate(shape.jobs)
    ]


def autoregressive_outputs(shape: Shape, pair: Pair, sampling: SamplingConfig) -> list[list[int]]:
    rows = sequences_of(shape, sampling.seed)
    return [[t for t, _ in autoregressive.decode(pair.target.fresh_row(), row, VOCAB_SIZE, sampling)] for row in rows]


@cache
def greedy_outputs(shape: Shape) -> list[list[int]]:
    """Whatever the draft: only the target counts."""
    return autoregressive_outputs(shape, greedy_pair(shape.jobs, next(shape.patterns)), SamplingConfig())


@cache
def sampled_outputs(shape: Shape, sampling: SamplingConfig) -> list[list[int]]:
    """Of the pair of random tables."""
    return autoregressive_outputs(shape, sampled_pair(), sampling)


def engine_for(method: str, shape: Shape, pair: Pair, sampling: SamplingConfig, **settings: Any) -> Engine:
    config = DecodeConfig(
        method=method,
        batch_size=shape.batch,
        window_size=shape.window,
        aging_bound=shape.aging,
        sampling=sampling,
        block_size=BLOCK_SIZE,
        **{"checks": "device", **settings},
    )
    sequences = sequences_of(shape, sampling.seed)
    if not config.drafting.uses_draft:
        for sequence in sequences:
            sequence.draft_cached = None
    return Engine(pair, sequences, config)


def finished(engine: Engine) -> tuple[list[RoundRecord], list[list[int]]]:
    with small_borders():
        return list(engine.rounds()), [row.generated for row in engine.sequences]


def greedy_runs(method: str) -> Iterator[Run]:
    for shape_ in SHAPES:
        for pattern in shape_.patterns:
            engine = engine_for(method, shape_, greedy_pair(shape_.jobs, pattern), SamplingConfig())
            yield Run(method, shape_, *finished(engine), greedy_outputs(shape_), pattern)


def sampled_pair(kind: type[PerfectMemory] = PerfectMemory) -> Pair:
    target = random_table("target", VOCAB_SIZE, zeros=True)
    draft = random_table("draft", VOCAB_SIZE, zeros=False)
    return pair_of(target, draft, VOCAB_SIZE, kind)


SAMPLINGS = [
    SamplingConfig(temperature=0.25, seed=0),
    SamplingConfig(temperature=0.25, seed=1, top_k=3),
    SamplingConfig(temperature=0.25, seed=2, top_p=0.5),
    SamplingConfig(temperature=0.5, seed=3, top_k=4, top_p=0.7),
]


def coupled_runs(method: str) -> Iterator[Run]:
    for shape_, sampling in itertools.product(SHAPES, SAMPLINGS):
        engine = engine_for(method, shape_, sampled_pair(), sampling)
        yield Run(method, shape_, *finished(engine), sampled_outputs(shape_, sampling))


EQUAL = "equal to autoregressive decoding"


def verdict(name: str, runs: Iterator[Run], equal: str = EQUAL) -> tuple[Verdict, list[Run]]:
    """Whether all runs are right, and those that were finished; an error of the engine ends the others."""
    done: list[Run] = []
    raised = ""
    try:
        done.extend(runs)
    except FINDINGS as error:
        raised = f"run {len(done)}: {type(error).__name__}: {error}"
    wrong = [r.fault for r in done if r.fault]
    detail = "; ".join([*[f"{len(wrong)} wrong, first {fault}" for fault in wrong[:1]], *[raised] * bool(raised)])
    ok = not wrong and not raised and bool(done)
    return Verdict(f"{name}: {len(done)} runs {equal}", ok, detail, raised=bool(raised) and not wrong), done


def check() -> Iterator[tuple[str, Verdict, list[Run]]]:
    """Every method, what is said of it, and its runs."""
    for method in METHODS:
        for rule, some_runs in (("greedy, every acceptance pattern", greedy_runs), ("coupled", coupled_runs)):
            yield method, *verdict(f"{method}, {rule}", some_runs(method))
