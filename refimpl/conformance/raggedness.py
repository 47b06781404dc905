"""Wrong rows in batches of prompts of more and more different lengths."""

import random
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import scipy.stats

from refimpl.conformance.protocol import EngineSettings, NotSupported, Prompts
from refimpl.conformance.subject import CaseFailure, Subject, difference

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


def measure_raggedness(subject: Subject) -> tuple[Raggedness, CaseFailure | None]:
    """Count wrong rows; return the first of them, too.

    Raises:
        CaseFailure: a row is wrong, and the engine refuses a later batch.
        NotSupported, EngineFailure: the engine refuses a batch, or fails.
    """
    wrong, first = [list[int]() for _ in SPREADS], None
    for i, number in product(range(len(SPREADS)), range(BATCHES_PER_SPREAD)):
        prompts = _prompts(subject.stated.vocab_size, SPREADS[i], number)
        subject.calls.clear()
        try:
            found, wanted = subject.run(prompts, SETTINGS), subject.reference(prompts, SETTINGS)
        except NotSupported as refusal:
            raise first or refusal from None
        wrong[i].append(sum(f != w for f, w in zip(found, wanted, strict=True)))
        if wrong[i][-1] and not first:
            first = difference(found, wanted, f"prompts that differ by {SPREADS[i]} tokens in length")
            first.calls = tuple(subject.calls)
    num_rows = (ROWS * BATCHES_PER_SPREAD,) * len(SPREADS)
    return Raggedness(SPREADS, tuple(map(sum, wrong)), num_rows, tuple(map(tuple, wrong))), first


def _prompts(vocab_size: int, spread: int, number: int) -> Prompts:
    rng = random.Random(f"{spread}:{number}")
    lengths = [4 + round(i * spread / (ROWS - 1)) for i in range(ROWS)]
    rng.shuffle(lengths)
    return tuple(tuple(rng.randrange(vocab_size) for _ in range(n)) for n in lengths)
