"""Run ordinary Python on integers that stand for all integers: every question with two answers is followed both ways.

`Number` is enough of an integer for code that adds, compares, and takes the largest of a list. A comparison is a
question to z3. Where both answers are possible the code runs once for each, so that all runs together cover all
numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import z3

R = TypeVar("R")
MAX_PATHS = 10_000


@dataclass
class Decisions:
    """The answers of one run, the first of them prescribed.

    Attributes:
        given: what holds of the numbers.
        answers: prescribed, and then as they were found.
        conditions: what the answers say.
        others: answers of runs that are still to be made.
    """

    given: Sequence[z3.BoolRef]
    answers: list[bool]
    conditions: list[z3.BoolRef] = field(default_factory=list)
    others: list[list[bool]] = field(default_factory=list)

    def decide(self, question: z3.BoolRef) -> bool:
        """The prescribed answer; else one that is possible, the other is kept for later."""
        at = len(self.conditions)
        if at == len(self.answers):
            possible = [answer for answer in (True, False) if self._is_possible(_said(question, answer))]
            self.others += [[*self.answers, answer] for answer in possible[1:]]
            self.answers.append(possible[0])
        self.conditions.append(_said(question, self.answers[at]))
        return self.answers[at]

    def _is_possible(self, condition: z3.BoolRef) -> bool:
        solver = z3.Solver()
        solver.add(*self.given, *self.conditions, condition)
        answer = solver.check()
        if answer == z3.unknown:
            raise RuntimeError(f"z3 does not know whether a way is possible: {solver.reason_unknown()}")
        return bool(answer == z3.sat)


@dataclass(frozen=True, eq=False)
class Number:
    """An integer or real that is any number at all."""

    term: z3.ArithRef
    decisions: Decisions

    def __add__(self, other: "Number | int") -> "Number":
        return Number(self.term + _term(other), self.decisions)

    def __sub__(self, other: "Number | int") -> "Number":
        return Number(self.term - _term(other), self.decisions)

    def __rmul__(self, other: float) -> "Number":
        return Number(z3.ToReal(self.term) * z3.Q(*other.as_integer_ratio()), self.decisions)

    def __floordiv__(self, other: int) -> "Number":
        return Number(self.term / other, self.decisions)  # of integers, and rounded down for a positive divisor

    def __lt__(self, other: "Number | int") -> bool:
        return self.decisions.decide(self.term < _term(other))

    def __le__(self, other: "Number | int") -> bool:
        return self.decisions.decide(self.term <= _term(other))

    def __gt__(self, other: "Number | int") -> bool:
        return self.decisions.decide(self.term > _term(other))

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Number | int)
        return self.decisions.decide(self.term == _term(other))

    def __bool__(self) -> bool:
        return self.decisions.decide(self.term != 0)

    __hash__ = None  # type: ignore[assignment]  # equality is a question


@dataclass(frozen=True)
class Path(Generic[R]):
    """One way through the code: what holds of the numbers on it, and what came out."""

    conditions: Sequence[z3.BoolRef]
    result: R

    @property
    def taken(self) -> z3.BoolRef:
        """Of which numbers it is the way."""
        return z3.And(*self.conditions)

    def implies(self, claim: z3.BoolRef) -> z3.BoolRef:
        """The claim, on this path."""
        return z3.Implies(self.taken, claim)


def all_paths(given: Sequence[z3.BoolRef], run: Callable[[Callable[[z3.ArithRef], Number]], R]) -> list[Path[R]]:
    """Every way through `run`, which is handed a function from terms to numbers."""
    waiting: list[list[bool]] = [[]]
    paths = []
    while waiting:
        decisions = Decisions(given, waiting.pop())
        result = run(lambda term, decisions=decisions: Number(term, decisions))
        paths.append(Path(decisions.conditions, result))
        waiting += decisions.others
        assert len(paths) <= MAX_PATHS, "too many ways through the code"
    return paths


def _said(question: z3.BoolRef, answer: bool) -> z3.BoolRef:
    return question if answer else z3.Not(question)


def _term(value: "Number | int") -> z3.ArithRef | int:
    return value.term if isinstance(value, Number) else value
