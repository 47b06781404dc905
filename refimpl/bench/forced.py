"""Distributions of accepted drafts for timing: written as text, turned into probabilities of 0 … k.

| text | meaning |
|---|---|
| ``iid:A`` | each draft is accepted with probability A as long as all before it were |
| ``rate:R`` | ``iid`` with the A that gives accepted / drafted = R |
| ``trace:FILE`` | the histogram of a recorded trace |
"""

from collections import Counter
from pathlib import Path

from refimpl.core.errors import InputError
from refimpl.core.independent import probability_of
from refimpl.core.reading import read_mappings


def iid_lengths(acceptance_probability: float, k: int) -> tuple[float, ...]:
    """Truncated geometric: probabilities of 0 … k accepted drafts."""
    a = acceptance_probability
    return (*((1 - a) * a**n for n in range(k)), a**k)


def rate_lengths(draft_acceptance_rate: float, k: int) -> tuple[float, ...]:
    """The `iid` distribution whose mean is ``draft_acceptance_rate * k``."""
    found = iid_of_length(1 + draft_acceptance_rate * k, k)
    assert found is not None, "a rate is at most 1"
    return iid_lengths(found, k)


def iid_of_length(length: float, k: int) -> float | None:
    """The A of ``iid:A`` with which k drafts give a row so many tokens a round; 0 for one or less, None for too many.

    A draft is accepted with probability A as long as all before it were, and the target adds a token: a row gets
    1 + A + … + A^k tokens, which is (1 − A^(k+1)) / (1 − A). Of a round's seconds over those of a step without drafts,
    which gives a row one token, this is the least acceptance at which drafts pay off.
    """
    if length > k + 1:
        return None
    return probability_of(max(length, 1.0), k)


def trace_lengths(path: Path, k: int) -> tuple[float, ...]:
    """Histogram of the accepted drafts of a trace's row-rounds that drafted k tokens.

    Raises:
        InputError: the file is no trace, or holds no such row-round.
    """
    try:
        rows = (row for number, row in read_mappings(path) if number > 1 and "chunk" not in row)
        counts = Counter(row["accepted"] for row in rows if row["drafted"] == k)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not a trace of this engine") from error
    if not counts:
        raise InputError(f"{path} holds no row-round with {k} drafts")
    return tuple(counts[n] / counts.total() for n in range(k + 1))


def parse_forced(text: str, k: int) -> tuple[float, ...]:
    """Probabilities of 0 … k accepted drafts from a text like ``iid:0.8``.

    Raises:
        InputError: the text is not of a known form, or its number is out of range.
    """
    kind, _, value = text.partition(":")
    if kind == "trace" and value:
        return trace_lengths(Path(value), k)
    try:
        number = float(value)
    except ValueError as error:
        raise InputError(f"acceptance {text!r}: write iid:A, rate:R or trace:FILE") from error
    if kind not in ("iid", "rate") or not 0 <= number <= 1:
        raise InputError(f"acceptance {text!r}: write iid:A or rate:R with a number in 0 … 1, or trace:FILE")
    return iid_lengths(number, k) if kind == "iid" else rate_lengths(number, k)
