"""Wrong rows in batches of prompts of more and more different lengths."""

import random
from dataclasses import dataclass
from itertools import product

import scipy.stats

from refimpl.conformance.properties import require_equal
from refimpl.conformance.protocol import EngineSettings, NotSupported, Prompts
from refimpl.conformance.subject import CaseFailure, Subject

SPREADS = (0, 2, 6, 12)  # tokens between the shortest and the longest prompt of a batch
BATCHES_PER_SPREAD = 3
SETTINGS = EngineSettings(max_new_tokens=12, batch_size=4, num_speculative_tokens=3)
CHANCE = 0.02  # that a profile without a trend is said to grow


@dataclass(frozen=True)
class Raggedness:
    """Wrong rows by spread of prompt lengths."""

    spreads: tuple[int, ...] = ()
    wrong_rows: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of rows that differ from the reference."""
        return tuple(w / n for w, n in zip(self.wrong_rows, self.rows, strict=True))

    @property
    def p_value(self) -> float:
        """Fisher's exact test, one-sided, that rows of equally long prompts are wrong as often as all others."""
        (even, *ragged), (num_even, *num_ragged) = self.wrong_rows, self.rows
        table = [[even, num_even - even], [sum(ragged), sum(num_ragged) - sum(ragged)]]
        return float(scipy.stats.fisher_exact(table, alternative="less").pvalue)

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
    wrong, failures = [0] * len(SPREADS), list[CaseFailure]()
    for i, number in product(range(len(SPREADS)), range(BATCHES_PER_SPREAD)):
        try:
            num_wrong, failure = _judge(subject, SPREADS[i], number)
        except NotSupported as refusal:
            raise failures[0] if failures else refusal from None
        wrong[i] += num_wrong
        failures += [failure] if failure else []
    profile = Raggedness(SPREADS, tuple(wrong), (4 * BATCHES_PER_SPREAD,) * len(SPREADS))
    return profile, failures[0] if failures else None


def _judge(subject: Subject, spread: int, number: int) -> tuple[int, CaseFailure | None]:
    prompts = _prompts(subject.engine.vocab_size, spread, number)
    subject.calls.clear()
    found, wanted = subject.run(prompts, SETTINGS), subject.reference(prompts, SETTINGS)
    num_wrong = sum(f != w for f, w in zip(found, wanted, strict=True))
    try:
        require_equal(found, wanted, f"prompts that differ by {spread} tokens in length")
    except CaseFailure as failure:
        failure.calls = tuple(subject.calls)
        return num_wrong, failure
    return num_wrong, None


def _prompts(vocab_size: int, spread: int, number: int) -> Prompts:
    rng = random.Random(f"{spread}:{number}")
    lengths = [4 + round(i * spread / 3) for i in range(4)]
    rng.shuffle(lengths)
    return tuple(tuple(rng.randrange(vocab_size) for _ in range(n)) for n in lengths)
