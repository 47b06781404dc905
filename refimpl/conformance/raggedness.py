"""Wrong rows in batches of prompts of more and more different lengths."""

import random
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import scipy.stats

from refimpl.conformance.cases import EngineCase
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import Description, EngineSettings, NotSupported, Prompts
from refimpl.conformance.subject import Subject, difference

SPREADS = (0, 2, 6, 12)  # tokens between the shortest and the longest prompt of a batch
ROWS, BATCHES_PER_SPREAD = 4, 5
SETTINGS = EngineSettings(max_new_tokens=12, batch_size=ROWS, num_speculative_tokens=3)
CHANCE = 0.02  # that a profile without a trend is said to grow


@dataclass(frozen=True)
class Raggedness:
    """Wrong rows by spread of prompt lengths, and in each batch of that spread."""

    spreads: tuple[int, ...] = ()
    wrong_rows: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    by_batch: tuple[tuple[int, ...], ...] = ()

    @property
    def p_value(self) -> float:
        """Exact permutation test, one-sided, that batches of equally long prompts have as many wrong rows as others.

        It permutes batches: the rows of one may all be wrong for one reason.
        """
        even, *ragged = self.by_batch
        samples = (even, list(chain(*ragged)))
        every: dict[str, Any] = {"vectorized": True, "n_resamples": np.inf}  # permutation
        found = scipy.stats.permutation_test(samples, lambda even, _, axis: even.sum(axis), alternative="less", **every)
        return float(found.pvalue)

    @property
    def verdict(self) -> str:
        """One of four sentences."""
        if not self.rows:
            return "not measured"
        if not any(self.wrong_rows):
            return "no wrong rows at any spread"
        return "grows with raggedness" if self.p_value < CHANCE else "does not grow with raggedness"


def raggedness(subject: Subject, case: EngineCase) -> None:
    """No row is wrong at any spread of prompt lengths (one fixed test); the profile is the subject's."""
    wrong, first = [list[int]() for _ in SPREADS], None
    for number, start in enumerate(range(0, len(case.prompts), ROWS)):
        prompts, at = case.prompts[start : start + ROWS], number // BATCHES_PER_SPREAD
        subject.calls.clear()
        try:
            found, wanted = subject.run(prompts, case.settings), subject.reference(prompts, case.settings)
        except NotSupported as refusal:
            raise first or refusal from None
        wrong[at].append(sum(f != w for f, w in zip(found, wanted, strict=True)))
        if wrong[at][-1] and not first:
            first = difference(found, wanted, f"prompts that differ by {SPREADS[at]} tokens in length")
            first.calls = tuple(subject.calls)
    num_rows = (ROWS * BATCHES_PER_SPREAD,) * len(SPREADS)
    subject.profile = Raggedness(SPREADS, tuple(map(sum, wrong)), num_rows, tuple(map(tuple, wrong)))
    if first:
        raise first


def ragged_cases(_: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """Batches of four prompts, five at each spread of lengths, one after the other."""
    batches = (_prompts(engine.vocab_size, *which) for which in product(SPREADS, range(BATCHES_PER_SPREAD)))
    return (EngineCase(tuple(chain(*batches)), SETTINGS),)


def _prompts(vocab_size: int, spread: int, number: int) -> Prompts:
    rng = random.Random(f"{spread}:{number}")
    lengths = [4 + round(i * spread / (ROWS - 1)) for i in range(ROWS)]
    rng.shuffle(lengths)
    return tuple(tuple(rng.randrange(vocab_size) for _ in range(n)) for n in lengths)
