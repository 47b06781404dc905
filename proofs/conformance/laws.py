"""The exact output law of the real engine, by enumeration.

Every random branch of a run is taken in turn, with its probability as a fraction; the law of the outputs must be the
product of the autoregressive laws, with total variation exactly 0. Asked twice under one key with the same weights, the
source answers the same. Draws under one key with other weights are taken as independent; the engine's are not.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from unittest.mock import patch

from proofs.conformance.borders import BLOCK_SIZE, small_borders
from proofs.conformance.branches import BranchSource
from proofs.conformance.perfect_memory import Table, Text, halving_table, pair_of, random_table
from proofs.report import FINDINGS, Verdict, ended_by
from refimpl import faults as zoo
from refimpl.core import kernels
from refimpl.core.config import LAYOUTS, SCHEDULERS, AcceptanceName, DecodeConfig, SamplingConfig
from refimpl.core.drafting import DraftingConfig
from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import rejection
from refimpl.decoding.engine import Engine
from refimpl.models.adapter import Pair
from refimpl.selfcheck.enumeration import scripts

Outputs = tuple[Text, ...]
Law = dict[Outputs, Fraction]
MODEL = DraftingConfig()
CAPACITY = DraftingConfig(draft_budget="capacity:1")  # of one draft for all rows
CONFIDENCE = DraftingConfig(draft_budget="confidence:0.3")
AS_IT_IS = SamplingConfig(temperature=1.0)
MAX_PATHS = 20_000  # an enumeration that reaches this was truncated: a failure


@dataclass(frozen=True)
class Job:
    """One sequence: prompt, budget, drafts a round, stop tokens."""

    prompt: Text
    budget: int
    k: int
    stops: frozenset[int] = frozenset()

    @property
    def end(self) -> int:
        return len(self.prompt) + self.budget


def config_of(
    method: str, checks: str, drafting: DraftingConfig, acceptance: AcceptanceName, sampling: SamplingConfig
) -> DecodeConfig:
    """Settings of runs that are enumerated."""
    return DecodeConfig(
        method=method,
        batch_size=2,
        window_size=2 + method.endswith("grouped"),
        aging_bound=1,
        acceptance=acceptance,
        sampling=sampling,
        checks=checks,
        block_size=BLOCK_SIZE,
        drafter=drafting.drafter,  # type: ignore[arg-type]
        draft_budget=drafting.draft_budget,
    )


def engine_law(config: DecodeConfig, jobs: list[Job], pair: Pair) -> tuple[Law, int]:
    """Law of the outputs of complete runs, and the number of paths."""
    law: Law = defaultdict(Fraction)
    no_cache = {} if config.drafting.uses_draft else {"draft_cached": None}

    def source_of(script: list[int]) -> BranchSource:
        rows = [
            Sequence(i, list(j.prompt), j.budget, j.k, j.stops, sequence_id=i, **no_cache) for i, j in enumerate(jobs)
        ]
        return BranchSource(script, rows)

    paths = 0
    with small_borders():
        for source in scripts(source_of):
            rows = list(source.sequences)
            for _ in Engine(pair, rows, config, source).rounds():
                pass
            law[tuple(tuple(row.generated) for row in rows)] += source.weight
            paths += 1
            if paths >= MAX_PATHS:
                raise RuntimeError("enumeration truncated")
    return law, paths


def autoregressive_law(jobs: list[Job], target: Table) -> Law:
    """Product of the rows' laws, one token at a time."""
    laws = [dict(row_law(job, target, ())) for job in jobs]
    joint: Law = {}
    for texts in itertools.product(*laws):
        weight = Fraction(1)
        for law, text in zip(laws, texts, strict=True):
            weight *= law[text]
        joint[texts] = weight
    return joint


def row_law(job: Job, target: Table, generated: Text) -> Iterator[tuple[Text, Fraction]]:
    if len(generated) == job.budget or (generated and generated[-1] in job.stops):
        yield generated, Fraction(1)
        return
    for token, mass in enumerate(target(job.prompt + generated)):
        if mass:
            for text, weight in row_law(job, target, (*generated, token)):
                yield text, weight * Fraction(mass)


def total_variation(law: Law, other: Law) -> Fraction:
    return sum((abs(law.get(x, Fraction(0)) - other.get(x, Fraction(0))) for x in {*law, *other}), Fraction(0)) / 2


Shape = tuple[int, list[Job]]  # size of the vocabulary, sequences
SHAPES: dict[str, Shape] = {
    "ragged prompts, k = 1, one stop token": (2, [Job((0,), 2, 1), Job((1, 0, 1), 3, 1, frozenset({1}))]),
    "three rows, two at a time": (2, [Job((0,), 2, 1), Job((1,), 1, 1), Job((0, 1), 2, 1)]),
}
LARGER: dict[str, Shape] = {
    "three drafts beside one, a stop token in the prompt": (2, [Job((1, 0), 4, 3, frozenset({1})), Job((0,), 2, 2)]),
    "three tokens, k = 2 beside k = 1": (3, [Job((2,), 2, 2), Job((1, 0), 2, 1, frozenset({2}))]),
}
ROLLED_BACK = {"two rows, k = 2": (2, [Job((0,), 3, 2), Job((1, 1), 3, 2)])}  # the batch minimum cuts both
LOOKED_UP = {"what stood before is proposed": (2, [Job((0, 1, 0), 3, 2), Job((0, 1), 2, 1)])}
BLOCKS = {
    "two drafts beside one": (2, [Job((0,), 3, 2), Job((1, 0), 2, 1)]),
    "three tokens, two drafts": (3, [Job((0, 2), 3, 2)]),
}
LONG_SHAPES = ROLLED_BACK | LARGER | {"three drafts beside a row that ends": (2, [Job((0,), 4, 3), Job((1, 0), 1, 1)])}

# What breaks the law: method, kernel, and its wrong variant.
FAULTS: dict[str, tuple[str, str, Callable]] = {
    "rows are not realigned": ("realigned+static", "realign_shift", lambda old, new: 0),
    "mask one slot too wide": (
        "realigned+static",
        "visible_left_padded",
        lambda key, query, pads: (key >= pads) & (key <= query + 1),
    ),
    "stale slots are visible": ("inplace+fifo", "visible_by_position", lambda slot, query: (slot >= 0) & (query >= 0)),
    "masked slots do not die": ("masked+static", "masked_slot_position", lambda position, cached, after: position),
}
# Faults of the engine's own zoo that change only the law, under the rule that they need: method, drafting, shape.
RAGGED, REPEATED = SHAPES["ragged prompts, k = 1, one stop token"], LOOKED_UP["what stood before is proposed"]
ZOO: dict[str, tuple[str, DraftingConfig, Shape]] = {
    "residual-forgotten": ("inplace+static", MODEL, RAGGED),
    "rollback-draws-again": ("rollback+static", MODEL, RAGGED),
    "looked-up-with-the-q-of-a-draw": ("inplace+fifo", DraftingConfig("ngram"), REPEATED),
    "block-with-the-residual-of-a-token": ("inplace+fifo", MODEL, (3, [Job((1,), 3, 2)])),
    "block-ends-at-the-first-rejection": ("inplace+fifo", MODEL, BLOCKS["two drafts beside one"]),
    "block-draws-with-old-numbers": ("inplace+fifo", MODEL, BLOCKS["three tokens, two drafts"]),
    "own-token-score": ("inplace+fifo", CAPACITY, RAGGED),
    "stop-and-drop": ("inplace+fifo", CONFIDENCE, RAGGED),
}


def tables(vocab_size: int, acceptance: AcceptanceName) -> tuple[Table, Table]:
    """Target with zeros, draft without: every token may be proposed, some must be rejected."""
    exact = acceptance == "block"  # it divides by the draft's probabilities
    draft = halving_table("draft", vocab_size) if exact else random_table("draft", vocab_size, zeros=False)
    return random_table("target", vocab_size, zeros=True), draft


def distance(
    method: str,
    vocab_size: int,
    jobs: list[Job],
    checks: str = "host",
    drafting: DraftingConfig = MODEL,
    acceptance: AcceptanceName = "rejection",
) -> tuple[Fraction, int]:
    """Total variation between the engine's law and the autoregressive one, and the number of paths."""
    target, draft = tables(vocab_size, acceptance)
    config = config_of(method, checks, drafting, acceptance, AS_IT_IS)
    with patch.object(rejection, "probabilities", lambda logits, config: logits):
        law, paths = engine_law(config, jobs, pair_of(target, draft, vocab_size))
    return total_variation(law, autoregressive_law(jobs, target)), paths


def verdict(
    method: str, name: str, shape: Shape, drafting: DraftingConfig = MODEL, acceptance: AcceptanceName = "rejection"
) -> Verdict:
    """Whether the law of a shape is exact."""
    try:
        tv, paths = distance(method, *shape, drafting=drafting, acceptance=acceptance)
    except FINDINGS as error:
        return ended_by(error, f"{method}, {name}")
    return Verdict(f"{method}, {name}: total variation {tv} over {paths} paths", tv == 0)


def check(shapes: dict[str, Shape]) -> Iterator[Verdict]:
    """Every shape under every layout and scheduler."""
    for layout, scheduler in itertools.product(LAYOUTS, SCHEDULERS):
        yield from (verdict(f"{layout}+{scheduler}", *shape) for shape in shapes.items())


def check_some() -> Iterator[Verdict]:
    """Shapes that are run under some methods only: under all they would cost too much, or show too little."""
    yield from (verdict("rollback+static", *shape) for shape in ROLLED_BACK.items())
    for layout, scheduler in zip(LAYOUTS, itertools.cycle(SCHEDULERS), strict=False):
        yield from (verdict(f"{layout}+{scheduler}", *shape) for shape in LARGER.items())
    for method, drafter in itertools.product(
        ("inplace+fifo", "realigned+static", "paged+grouped"), ("ngram", "suffix", "hybrid")
    ):
        for name, shape in LOOKED_UP.items():
            yield verdict(method, f"{drafter}: {name}", shape, DraftingConfig(drafter))
    for drafting, (method, shape) in itertools.product(
        (CAPACITY, CONFIDENCE), (("inplace+fifo", RAGGED), ("paged+continuous", REPEATED))
    ):
        yield verdict(method, f"budget by {drafting.budget_name}", shape, drafting)
    for method, (name, shape) in itertools.product(
        ("inplace+fifo", "rollback+static", "paged+grouped"), BLOCKS.items()
    ):
        yield verdict(method, f"block: {name}", shape, acceptance="block")


def check_faults() -> Iterator[Verdict]:
    """Expected failures: the enumeration must see that the law is off, with every run-time check switched off."""
    for name, (method, kernel, wrong) in FAULTS.items():
        with patch.object(kernels, kernel, wrong):
            yield off_law(name, method, RAGGED)
    for name, (method, drafting, shape) in ZOO.items():
        with (
            zoo.FAULTS[name].injected(),
            patch.object(zoo.acceptance_faults, "probabilities", lambda logits, config: logits),
        ):
            acceptance = zoo.FAULTS[name].settings["acceptance"]
            yield off_law(f"zoo: {name}", method, shape, drafting, acceptance)


def off_law(
    name: str, method: str, shape: Shape, drafting: DraftingConfig = MODEL, acceptance: AcceptanceName = "rejection"
) -> Verdict:
    tv, _ = distance(method, *shape, checks="off", drafting=drafting, acceptance=acceptance)
    return Verdict(f"expected failure: {name}: total variation {tv} = {float(tv):.3f}", tv > 0)
