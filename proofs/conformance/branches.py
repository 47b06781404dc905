"""Every random branch of a run in turn, each with its probability as a fraction."""

from fractions import Fraction
from typing import NamedTuple
from unittest.mock import patch

import torch

from proofs.report import FoundError
from refimpl.core.sequence import Sequence
from refimpl.decoding import sampling
from refimpl.decoding.sampling import Purpose, RowKeys
from refimpl.selfcheck.enumeration import ScriptedSource

CERTAIN = 1e-30  # a number in the race that no other token wins against


class Place(NamedTuple):
    """What a number is for, and the engine's own stream that it comes from."""

    sequence: int
    position: int
    purpose: Purpose
    stream: int


class BranchSource(ScriptedSource):
    """Answers by a script of branch numbers.

    The engine's own race and its own test run; only the numbers that they ask for are replaced. One stream has one
    number, whoever asks. What can no longer matter (rows that have finished, positions past a row's budget) gets a
    fixed answer.
    """

    def __init__(self, script: list[int], sequences: list[Sequence]):
        super().__init__(script, sequences)
        self._drawn: dict = {}
        self._uniform: dict = {}
        self._owners: dict = {}

    def draw(self, weights, keys, position, purpose):
        """The engine's own race, with numbers in which the token of the branch wins."""

        def exponentials(keys, position, purpose, size):
            rows = zip(weights, self._places(keys, position, purpose), strict=True)
            chosen = [[self._token(w, place) for w, place in zip(*row, strict=True)] for row in rows]
            noise = torch.full((*position.shape, size), 1.0, dtype=torch.float64)
            return noise.scatter_(-1, torch.tensor(chosen)[..., None], CERTAIN)

        with patch.object(sampling, "exponentials", exponentials):
            return super().draw(weights, keys, position, purpose)

    def accepts(self, target_probability, draft_probability, keys, position):
        """The engine's own test, with a number on the side of the branch."""

        def uniform(keys, position, purpose):
            places = self._places(keys, position, purpose)
            rows = zip(target_probability.tolist(), draft_probability.tolist(), places, strict=True)
            numbers = [[self._number(*each) for each in zip(*row, strict=True)] for row in rows]
            return torch.tensor(numbers, dtype=torch.float64).reshape(position.shape)

        with patch.object(sampling, "uniform", uniform):
            return super().accepts(target_probability, draft_probability, keys, position)

    def _places(self, keys: RowKeys, position: torch.Tensor, purpose: Purpose) -> list[list[Place]]:
        """What the numbers are for.

        Raises:
            FoundError: a stream that is asked for something else, too.
        """
        streams, sequences = sampling._stream(keys, position, purpose).tolist(), keys.sequence.tolist()
        rows = zip(sequences, position.tolist(), streams, strict=True)
        places = [
            [Place(sequence, at, purpose, stream) for at, stream in zip(*row, strict=True)] for sequence, *row in rows
        ]
        for place in (place for row in places for place in row):
            owner = self._owners.setdefault(place.stream, place)
            if owner != place:
                raise FoundError(f"{owner} and {place} share a stream")
        return places

    def _token(self, weights: torch.Tensor, place: Place) -> int:
        masses = tuple(Fraction(w) for w in weights.tolist())
        tokens = [t for t, mass in enumerate(masses) if mass]
        if not self.matters(place.sequence, place.position, place.purpose):
            return tokens[-1] if tokens else 0
        key = (place.stream, masses)
        if key not in self._drawn:
            total = sum(masses)
            self._drawn[key] = tokens[self.branch([masses[t] / total for t in tokens])]
        return self._drawn[key]

    def _number(self, p: float, q: float, place: Place) -> float:
        """The key's uniform number: below p/q or not, by the branch, in the interval that it is known to lie in."""
        if not self.matters(place.sequence, place.position, place.purpose):
            return 0.0
        low, high = self._uniform.get(place.stream, (Fraction(0), Fraction(1)))
        threshold = min(max(Fraction(p) / Fraction(q), low), high)
        share = (threshold - low) / (high - low)
        yes = share == 1 or (share > 0 and self.branch([share, 1 - share]) == 0)
        self._uniform[place.stream] = low, high = (low, threshold) if yes else (threshold, high)
        return float((low + high) / 2)
