"""Run the real engine along every branch of its random choices, with exact probabilities."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from refimpl.core.config import DecodeConfig, make_config
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.selfcheck.fraction_model import JointLaw, Penalties, joint, sequence_law


@cache
def exact(mass: float) -> Fraction:
    """The fraction of small denominator that a rounded probability stands for."""
    fraction = Fraction(mass).limit_denominator(70_000)
    if abs(fraction - Fraction(mass)) > Fraction(1, 10**13):
        raise ValueError(f"{mass!r} is no fraction of small denominator")
    return fraction


class ScriptedSource(RandomSource):
    """Takes scripted branches, the first one beyond the script, and multiplies their probabilities.

    Attributes:
        script: the branch to take at each point.
        sequences: of the run.
        widths: branches that there were at each point.
        weight: probability of those that were taken.
    """

    def __init__(self, script: list[int], sequences: Seq[Sequence] = ()):
        self.script, self.sequences = script, sequences
        self.widths, self.weight = list[int](), Fraction(1)

    def matters(self, sequence: int, position: int, purpose: Purpose) -> bool:
        """Whether a number can change the output: the row has not finished, and its budget does not end before."""
        row, behind = self.sequences[sequence], purpose in (Purpose.DRAFT, Purpose.ACCEPT)  # one more token follows
        return not row.finished and position + behind < row.most_tokens

    def branch(self, shares: list[Fraction]) -> int:
        """Take one of several branches, of these probabilities."""
        if len(shares) == 1:
            return 0
        at = len(self.widths)
        self.widths.append(len(shares))
        chosen = self.script[at] if at < len(self.script) else 0
        self.weight *= shares[chosen]
        return chosen


class BranchingSource(ScriptedSource):
    """Takes the branches of weights and tests as they are asked for.

    What the keyed generator would answer twice alike is answered alike here: a token by its key and weights, and
    acceptance by the interval in which earlier answers have put the key's uniform number. Where the batch is
    rectangular but a row can emit nothing, the answer is fixed.
    """

    def __init__(self, script: list[int]):
        super().__init__(script)
        self._tokens: dict[tuple[Any, ...], int] = {}
        self._interval: dict[tuple[int, int, int], tuple[Fraction, Fraction]] = {}

    def draw(self, weights: Tensor, keys: RowKeys, position: Tensor, purpose: Purpose) -> Tensor:
        """Take a branch for each token."""
        starts = [0] * len(weights) if keys.start is None else keys.start.tolist()
        rows = [
            [self._token(w, (int(keys.sequence[i]), p, purpose, starts[i])) for w, p in zip(ws, ps, strict=True)]
            for i, (ws, ps) in enumerate(zip(weights.tolist(), position.tolist(), strict=True))
        ]
        return torch.tensor(rows)

    def accepts(self, target_probability: Tensor, draft_probability: Tensor, keys: RowKeys, position: Tensor) -> Tensor:
        """Take a branch for each test."""
        p, q = target_probability.tolist(), draft_probability.tolist()
        starts = [0] * len(p) if keys.start is None else keys.start.tolist()
        rows = [
            [
                self._accept(exact(a) / exact(b), (int(keys.sequence[i]), at, starts[i]))
                for a, b, at in zip(*lists, strict=True)
            ]
            for i, lists in enumerate(zip(p, q, position.tolist(), strict=True))
        ]
        return torch.tensor(rows)

    def _token(self, weights: list[float], key: tuple[int, int, Purpose, int]) -> int:
        masses = [exact(w) for w in weights]
        tokens = [t for t, mass in enumerate(masses) if mass]
        if not self.matters(*key[:3]):
            return tokens[-1]
        drawn = (key, *masses)
        if drawn not in self._tokens:
            self._tokens[drawn] = tokens[self.branch([masses[t] / sum(masses) for t in tokens])]
        return self._tokens[drawn]

    def _accept(self, ratio: Fraction, key: tuple[int, int, int]) -> bool:
        if not self.matters(*key[:2], Purpose.ACCEPT):
            return True
        low, high = self._interval.get(key, (Fraction(0), Fraction(1)))
        cut = min(max(ratio, low), high)
        shares = [(cut - low) / (high - low), (high - cut) / (high - low)]
        yes = shares[1] == 0 or (shares[0] > 0 and self.branch(shares) == 0)
        self._interval[key] = (low, cut) if yes else (cut, high)
        return yes


Source = TypeVar("Source", bound=ScriptedSource)


def scripts(make: Callable[[list[int]], Source]) -> Iterator[Source]:
    """One source per path, depth first, until every branch was taken."""
    script: list[int] = []
    while True:
        source = make(script)
        yield source
        script = script + [0] * (len(source.widths) - len(script))
        while script and script[-1] == source.widths[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1


def engine_law(pair: Pair, requests: list[Request], config: DecodeConfig) -> JointLaw:
    """Exact joint law of the outputs of the real engine."""
    law: JointLaw = {}
    for source in scripts(BranchingSource):
        source.sequences = sequences = prepare(pair, requests, config)
        for _ in Engine(pair, sequences, config, source).rounds():
            pass
        outputs = tuple(tuple(s.generated) for s in sequences)
        law[outputs] = law.get(outputs, Fraction(0)) + source.weight
    return law


def target_law(
    pair: Pair, requests: list[Request], sharpness: int = 1, top_k: int = 0, penalties: Penalties | None = None
) -> JointLaw:
    """Exact joint law of autoregressive sampling from the target, a `FractionModel`."""
    table = pair.target.table  # type: ignore[attr-defined]
    laws = []
    for request in requests:
        prompt, budget = [int(token) for token in request.prompt], request.max_new_tokens or 0
        stop = next(iter(request.stop_token_ids or ()), None)
        laws.append(sequence_law(table, prompt, budget, stop, sharpness, top_k, penalties))
    return joint(laws)


def total_variation(a: JointLaw, b: JointLaw) -> Fraction:
    """Largest difference in the probability of any event."""
    return sum((abs(a.get(x, Fraction(0)) - b.get(x, Fraction(0))) for x in {*a, *b}), Fraction(0)) / 2


def law_config(method: str = "inplace+fifo", **settings: Any) -> DecodeConfig:
    """Settings of a run that can be enumerated: two rows, rejection sampling at temperature 1 unless told otherwise."""
    usual = {"acceptance": "rejection", "temperature": 1.0, "window_size": 2, "aging_bound": 1, "checks": "host"}
    return make_config(method=method, batch_size=2, **usual | settings)
