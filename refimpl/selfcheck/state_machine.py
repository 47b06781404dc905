"""Small grammars of tokens, to compare others with."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class StateMachine:
    """Where tokens lead from each state; a text begins in state 0.

    Attributes:
        steps: of each state, the state behind each token that it allows.
        ends: states in which a text is whole.
        vocab_size: of the masks.
    """

    steps: Seq[Mapping[int, int]]
    ends: Seq[int]
    vocab_size: int

    def __call__(self) -> "Walk":
        """A matcher."""
        return Walk(self)


class Walk:
    """A `Matcher`: the states that a text has come through."""

    def __init__(self, machine: StateMachine):
        self._machine, self._states = machine, [0]

    @property
    def can_end(self) -> bool:
        """See `Matcher`."""
        return self._states[-1] in self._machine.ends

    def allowed(self) -> np.ndarray:
        """See `Matcher`."""
        mask = np.zeros(self._machine.vocab_size, dtype=np.bool_)
        mask[list(self._machine.steps[self._states[-1]])] = True
        return mask

    def advance(self, tokens: list[int]) -> int:
        """See `Matcher`."""
        for count, token in enumerate(tokens):
            if token not in (steps := self._machine.steps[self._states[-1]]):
                return count
            self._states.append(steps[token])
        return len(tokens)

    def roll_back(self, count: int) -> None:
        """See `Matcher`."""
        del self._states[len(self._states) - count :]
