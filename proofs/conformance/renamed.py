"""Other names for the tokens change no length (INV-8): the counterpart of `renaming` in proofs/coq/Selection.v.

Every run of the smallest shapes is made twice, the second time with all ids permuted, so that prompts, drafts and
outputs have other ids and every id is somewhere a pad's. The records of the rounds must be equal but for the tokens.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proofs.conformance import runs
from proofs.conformance.borders import small_borders
from proofs.conformance.perfect_memory import Text, pair_of
from proofs.conformance.runs import METHODS, SHAPES, STOP, VOCAB_SIZE, Shape
from proofs.report import Verdict
from refimpl.core.config import SamplingConfig
from refimpl.faults import FAULTS

NAMES = tuple((id * 3 + 5) % VOCAB_SIZE for id in range(VOCAB_SIZE))  # a permutation without a fixed point
AGREES = (True, False, True, True)
OTHER_ROUNDS = "other rounds"
ZOO = ("pad-found-by-token-value",)


def draft_choice(text: Text) -> int:
    """The target's choice, or another, by the length of the text."""
    return (runs.target_choice(text) + (not AGREES[len(text) % len(AGREES)])) % VOCAB_SIZE


def records(method: str, shape: Shape, names: tuple[int, ...], checks: str) -> list[Any]:
    """Rounds of a run whose tokens have these names, without the tokens."""
    back = {name: id for id, name in enumerate(names)}

    def table(choice: Any) -> Any:
        return lambda text: tuple(
            float(t == names[choice(tuple(back.get(x, x) for x in text))]) for t in range(VOCAB_SIZE)
        )

    jobs = tuple(
        replace(job, prompt=tuple(names[t] for t in job.prompt), stops=frozenset({names[STOP]})) for job in shape.jobs
    )
    pair = pair_of(table(runs.target_choice), table(draft_choice), VOCAB_SIZE)
    engine = runs.engine_for(method, replace(shape, jobs=jobs), pair, SamplingConfig(), checks=checks)
    return [tuple(replace(row, tokens=()) for row in record.rows) for record in engine.rounds()]


def verdict(method: str, checks: str = "host") -> Verdict:
    """Every shape under one method."""
    name = f"{method}: other names for the tokens change no length (INV-8)"
    with small_borders():
        for shape in SHAPES:
            first, second = (records(method, shape, names, checks) for names in (tuple(range(VOCAB_SIZE)), NAMES))
            if first != second:
                return Verdict(name, False, f"{OTHER_ROUNDS} in {shape}")
    return Verdict(name, True)


def check() -> Iterator[Verdict]:
    """Every method, and the fault that looks for a pad."""
    yield from map(verdict, METHODS)
    for name in ZOO:
        with FAULTS[name].injected():
            found = verdict("inplace+fifo", checks="off")
        yield Verdict(f"expected failure: zoo: {name}: {found.detail}", found.detail.startswith(OTHER_ROUNDS))
