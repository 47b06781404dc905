"""``python -m proofs.conformance.runs``: small shapes of every layout and scheduler, every acceptance pattern.

The engine runs on a pair of perfect memories; the draft agrees with the target exactly where a pattern of bits says
so. Outputs must be those of decoding the table one token at a time, with the run-time checks at ``device``, and the
accepted drafts exactly those that agree: a fault of the draft's cache changes nothing else.
"""

import itertools
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from proofs.conformance.laws import Job, Verdict
from proofs.conformance.perfect_memory import Text, pair_of, random_table
from proofs.report import report
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


def shape(prompts: tuple[int, ...], budgets: tuple[int, ...], ks: tuple[int, ...], *batching: float) -> Shape:
    jobs = [
        Job((i, *(0,) * (n - 1)), budget, k, frozenset({STOP}))
        for i, (n, budget, k) in enumerate(zip(prompts, budgets, ks, strict=True))
    ]
    return Shape(tuple(jobs), *batching)


SHAPES = [
    shape((1,), (4,), (3,), 1, 1),
    shape((2, 2), (3, 3), (1, 2), 2, 2),
    shape((1, 3), (3, 3), (2, 2), 2, 2),
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

    @property
    def fault(self) -> str | None:
        """Wrong text, or drafts lost that the pattern says are right."""
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


def run(method: str, shape: Shape, pair: Pair, sampling: SamplingConfig, pattern: Pattern | None = None) -> Run:
    rows = [
        Sequence(i, list(j.prompt), j.budget, j.k, j.stops, sequence_id=i, seed=sampling.seed)
        for i, j in enumerate(shape.jobs)
    ]
    expected = [
        [t for t, _ in autoregressive.decode(pair.target.fresh_row(), row, VOCAB_SIZE, sampling)] for row in rows
    ]
    config = DecodeConfig(
        method=method,
        batch_size=shape.batch,
        window_size=shape.window,
        aging_bound=shape.aging,
        sampling=sampling,
        checks="device",
    )
    rounds = list(Engine(pair, rows, config).rounds())
    return Run(method, shape, rounds, [row.generated for row in rows], expected, pattern)


def greedy_runs(method: str) -> Iterator[Run]:
    for shape_ in SHAPES:
        for pattern in shape_.patterns:
            yield run(method, shape_, greedy_pair(shape_.jobs, pattern), SamplingConfig(), pattern)


def coupled_runs(method: str, seeds: range = range(4)) -> Iterator[Run]:
    target = random_table("target", VOCAB_SIZE, zeros=True)
    draft = random_table("draft", VOCAB_SIZE, zeros=False)
    for shape_, seed in itertools.product(SHAPES, seeds):
        yield run(method, shape_, pair_of(target, draft, VOCAB_SIZE), SamplingConfig(temperature=0.25, seed=seed))


def verdict(name: str, runs: Iterator[Run]) -> tuple[Verdict, list[Run]]:
    done: list[Run] = []
    try:
        done.extend(runs)
    except Exception as error:
        return Verdict(name, False, f"run {len(done)}: {type(error).__name__}: {error}"), done
    wrong = [r.fault for r in done if r.fault]
    detail = f"{len(wrong)} wrong, first {wrong[0]}" if wrong else ""
    return Verdict(f"{name}: {len(done)} runs equal to autoregressive decoding", not wrong and bool(done), detail), done


def check() -> tuple[list[Verdict], list[Run]]:
    """Verdicts, and all runs for the trace checker."""
    verdicts, runs = [], []
    for method in METHODS:
        for rule, some_runs in (("greedy, every acceptance pattern", greedy_runs), ("coupled", coupled_runs)):
            judged, done = verdict(f"{method}, {rule}", some_runs(method))
            verdicts.append(judged)
            runs += done
    return verdicts, runs


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(report("runs", check()[0]))
