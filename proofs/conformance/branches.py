"""Every random branch of a run in turn, each with its probability as a fraction."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from unittest.mock import patch

import torch

from refimpl.core.sequence import Sequence
from refimpl.decoding import sampling
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys

CERTAIN = 1e-30  # a number in the race that no other token wins against


@dataclass
class BranchSource(RandomSource):
    """Answers by a script of branch numbers; beyond it takes the first branch, and notes how many there were.

    What can no longer matter (rows that have finished, positions past a row's budget) gets a fixed answer.
    """

    script: list[int]
    sequences: list[Sequence]
    branches: list[int] = field(default_factory=list)
    weight: Fraction = Fraction(1)
    _drawn: dict = field(default_factory=dict)
    _uniform: dict = field(default_factory=dict)

    def draw(self, weights, keys, position, purpose):
        """The engine's own race, with numbers in which the token of the branch wins."""
        starts = _starts(keys)
        chosen = [
            [
                self._token(weights[i, j], int(keys.sequence[i]), int(position[i, j]), purpose, starts[i])
                for j in range(position.shape[1])
            ]
            for i in range(position.shape[0])
        ]
        noise = torch.full(weights.shape, 1.0, dtype=torch.float64)
        noise.scatter_(-1, torch.tensor(chosen)[..., None], CERTAIN)
        with patch.object(sampling, "exponentials", lambda *_: noise):
            return super().draw(weights, keys, position, purpose)

    def accepts(self, target_probability, draft_probability, keys, position):
        """The engine's own test, with a number on the side of the branch."""
        p, q, starts = target_probability.tolist(), draft_probability.tolist(), _starts(keys)
        numbers = [
            [
                self._number(
                    Fraction(p[i][j]), Fraction(q[i][j]), int(keys.sequence[i]), int(position[i, j]), starts[i]
                )
                for j in range(len(p[i]))
            ]
            for i in range(len(p))
        ]
        uniform = torch.tensor(numbers, dtype=torch.float64).reshape(position.shape)
        with patch.object(sampling, "uniform", lambda *_: uniform):
            return super().accepts(target_probability, draft_probability, keys, position)

    def _matters(self, sequence: int, position: int, purpose: Purpose) -> bool:
        row = self.sequences[sequence]
        end = row.prompt_len + row.max_new_tokens
        return not row.finished and position < (end if purpose is Purpose.NEXT else end - 1)

    def _token(self, weights: torch.Tensor, sequence: int, position: int, purpose: Purpose, start: int) -> int:
        masses = tuple(Fraction(w) for w in weights.tolist())
        tokens = [t for t, mass in enumerate(masses) if mass]
        if not self._matters(sequence, position, purpose):
            return tokens[-1] if tokens else 0
        key = (sequence, position, purpose, start, masses)
        if key not in self._drawn:
            total = sum(masses)
            self._drawn[key] = tokens[self._branch([masses[t] / total for t in tokens])]
        return self._drawn[key]

    def _number(self, p: Fraction, q: Fraction, sequence: int, position: int, start: int) -> float:
        """The key's uniform number: below p/q or not, by the branch, in the interval that it is known to lie in."""
        if not self._matters(sequence, position, Purpose.ACCEPT):
            return 0.0
        low, high = self._uniform.get((sequence, position, start), (Fraction(0), Fraction(1)))
        threshold = min(max(p / q, low), high)
        share = (threshold - low) / (high - low)
        yes = share == 1 or (share > 0 and self._branch([share, 1 - share]) == 0)
        self._uniform[sequence, position, start] = low, high = (low, threshold) if yes else (threshold, high)
        return float((low + high) / 2)

    def _branch(self, probabilities: list[Fraction]) -> int:
        if len(probabilities) == 1:
            return 0
        at = len(self.branches)
        chosen = self.script[at] if at < len(self.script) else 0
        self.branches.append(len(probabilities))
        self.weight *= probabilities[chosen]
        return chosen


def _starts(keys: RowKeys) -> list[int]:
    """Where the rounds of the rows began, if their numbers depend on it."""
    return [0] * len(keys.seed) if keys.start is None else keys.start.tolist()


def scripts(run: Callable[[list[int]], list[int]]) -> Iterator[None]:
    """Call `run` with every script; it returns how many branches there were at each point."""
    script: list[int] = []
    while True:
        counts = run(script)
        yield
        script = script + [0] * (len(counts) - len(script))
        while script and script[-1] == counts[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1
