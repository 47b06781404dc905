"""Block verification as Coq states it and as the engine's rule computes it: the same tests, the same weights.

The rule is run on laws whose probabilities are multiples of 1/8, those of the draft powers of two. Then nothing that it
computes is rounded, and its numbers are compared as fractions. What it compares with a random number is recorded, and
which tests pass is set from outside.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from refimpl.core import kernels
from refimpl.core.config import SamplingConfig
from refimpl.decoding.acceptance.block import BlockRule
from refimpl.decoding.acceptance.records import DrawnMass, RowNumbers
from refimpl.decoding.sampling import RandomSource, RowKeys

DEN, SIZE, K, ROUNDS = 8, 3, 3, 60  # common denominator, tokens, drafts, rounds
DRAFT = [*itertools.permutations((4, 2, 2)), (4, 4, 0), (0, 4, 4), (8, 0, 0)]
TARGET = [law for law in itertools.product(range(DEN + 1), repeat=SIZE) if sum(law) == DEN]
Laws = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Round:
    """Drafts of one row, its limit, and both models' laws at every depth, in eighths."""

    limit: int
    drafts: tuple[int, ...]
    target: Laws  # [k + 1, vocab]
    draft: Laws  # [k, vocab]

    def question(self, word: str, *more: int) -> str:
        """As a line of numbers."""
        laws = itertools.chain(*self.target, *self.draft)
        return " ".join(map(str, (word, DEN, self.limit, K, SIZE, *self.drafts, *laws, *more)))


class SetTests(RandomSource):
    """Records what each test compares, and passes those that it is told to."""

    def __init__(self, passed: Tensor):
        self.passed = passed

    def accepts(self, target_probability: Tensor, draft_probability: Tensor, *_: Any) -> Tensor:
        self.rest, self.total = target_probability, draft_probability
        return self.passed


def rounds() -> list[Round]:
    """Rounds by chance: every limit, drafts that the draft's laws can draw."""
    chance = random.Random(0)
    found = []
    for i in range(ROUNDS):
        draft = tuple(chance.choices(DRAFT, k=K))
        drafts = tuple(chance.choices(range(SIZE), law)[0] for law in draft)
        found.append(Round(i % (K + 1), drafts, tuple(chance.choices(TARGET, k=K + 1)), draft))
    return found


def decided(some: Sequence[Round], accepted: int) -> tuple[SetTests, Tensor, Tensor]:
    """Run the rule where tests up to a depth pass, and those behind a row's limit; the source, depths and weights."""
    limits = torch.tensor([r.limit for r in some])
    depth = torch.arange(1, K + 1)
    source = SetTests((depth <= accepted) | (depth > limits[:, None]))
    draft, target = (
        torch.tensor(laws).double() / DEN for laws in zip(*[(r.draft, r.target) for r in some], strict=True)
    )
    drawn = DrawnMass.of("draft", draft, torch.tensor([r.drafts for r in some]), limits)
    keys = RowKeys(torch.zeros_like(limits), torch.zeros_like(limits))
    position = torch.zeros(len(some), K + 1, dtype=torch.long)
    found = BlockRule(SamplingConfig(), source)._accept(drawn, draft, target, RowNumbers(keys, position, limits))
    return (source, *found)


def tests(some: Sequence[Round]) -> Iterator[tuple[str, Fraction]]:
    """How probable it is that each test passes."""
    source, _, _ = decided(some, K)
    for row, depth in itertools.product(range(len(some)), range(K)):
        rest, total = (Fraction(numbers[row, depth].item()) for numbers in (source.rest, source.total))
        yield some[row].question("passes", depth + 1), rest / total


def weights(some: Sequence[Round]) -> Iterator[tuple[str, Fraction | int]]:
    """How many drafts are accepted where tests up to a depth pass, and the law of the token after them."""
    for wanted in range(K + 1):
        source, accepted, found = decided(some, wanted)
        for row, drafted in enumerate(some):
            depth, left = int(accepted[row]), [Fraction(weight) for weight in found[row].tolist()]
            yield flags(drafted.limit, source.passed[row].tolist()), depth
            for token in range(SIZE):
                yield drafted.question("left", depth, token), left[token] / sum(left)


def flags(limit: int, passed: Sequence[int]) -> str:
    """The question which draft is the last to be accepted."""
    return " ".join(map(str, ("last", limit, *map(int, passed))))


def deepest() -> Iterator[tuple[str, int]]:
    """The last draft that is accepted, for all flags and limits."""
    for k in range(5):
        for limit, *passed in itertools.product(range(k + 1), *[(0, 1)] * k):
            yield flags(limit, passed), kernels.last_accepted(passed, limit)


def questions() -> Iterator[tuple[str, Fraction | int]]:
    """Questions to Coq, and the engine's answers."""
    some = rounds()
    yield from deepest()
    yield from tests(some)
    yield from weights(some)
