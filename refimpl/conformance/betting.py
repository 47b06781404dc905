"""Are tokens drawn from a known law? Bets against it, at the odds that it gives: who grows rich has refuted it.

Under the law no bettor's expected wealth grows, whatever the bets depend on so far. So wealth that starts at 1 ever
reaches 1 / rate with a chance of at most `rate` (Ville's inequality): tokens may be judged one after the other, and a
run may end as soon as that happens. Some bettors expect another temperature; others start from the law (a Dirichlet
prior) and learn how often each token comes after each prefix, or each token and each rank after all prefixes. Their
mean wealth is what counts.
"""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats

TILTS = (0.8, 1.25)  # powers of the law that bettors expect, half and half with the law itself
STRENGTHS = (10.0, 200.0)  # of the prior of those who learn, in observations
NUM_BETTORS = len(TILTS) + len(STRENGTHS) + 2
SEEN_BEFORE, MOST_PREFIXES = 4, 64  # nobody bets after a prefix that is rare, as its law costs a pass of the model
SEEN = 0.999  # chance of a rejection from which on a bias counts as surely seen
Prefix = tuple[int, ...]


class _Learner:
    """Observed tokens beside those that the law expects, over some prefixes."""

    def __init__(self, size: int, strength: float):
        self.strength, self.observed, self.expected = strength, np.zeros(size), np.zeros(size)

    def bet(self, law: np.ndarray, token: int) -> float:
        """Logarithm of what a bet returns; then learn."""
        weights = (self.observed + self.strength * law) / (self.expected + self.strength * law + 1e-300)
        gain = math.log(weights[token] / (law @ weights))
        self.observed[token] += 1
        self.expected += law
        return gain


def law_at(temperature: float, logprobs: list[float]) -> np.ndarray:
    """Probabilities at a temperature, from logarithms at temperature 1."""
    return scipy.special.softmax(np.array(logprobs) / temperature)


class Bets:
    """Wealth of all bettors.

    Args:
        law: log-probabilities of all tokens after a prefix, at temperature 1.
        temperature: of the samples.

    Attributes:
        log_wealth: logarithm of the largest mean wealth so far.
    """

    def __init__(self, law: Callable[[list[int]], list[float]], temperature: float):
        self._law, self.temperature = law, temperature
        self.log_wealth, self._wealth = 0.0, np.zeros(NUM_BETTORS)
        self._seen, self._known = Counter[Prefix](), dict[Prefix, np.ndarray]()
        self._learners = dict[Prefix, list[_Learner]]()
        self._pooled: tuple[_Learner, ...] = ()

    def see(self, prompt: Prefix, tokens: list[int]) -> None:
        """Bet on each token of a sample."""
        for i, token in enumerate(tokens):
            prefix = (*prompt, *tokens[:i])
            if (law := self._law_after(prefix)) is not None:
                self._wealth += self._gains(prefix, law, token, verified=i > 0)
                mean = float(scipy.special.logsumexp(self._wealth)) - math.log(NUM_BETTORS)
                self.log_wealth = max(self.log_wealth, mean)

    def visible_bias(self, rate: float, prompt: Prefix) -> tuple[float, float]:
        """Probability of a token and the bias of it that is surely seen: of the likeliest where most was drawn.

        After n draws the logarithm of a learner's wealth is about half of Pearson's statistic times n / (n + strength),
        less half a logarithm of 1 + n / strength for each token that may come.
        """
        prefix = max((p for p in self._known if p != prompt), key=self._seen.__getitem__, default=prompt)
        law, drawn = self._known[prefix], self._seen[prefix]
        freedom = max(1, int((law * drawn >= 1).sum()) - 1)
        needed = min(self._needed(rate, drawn, freedom, strength) for strength in STRENGTHS)
        likely = float(law.max())
        return likely, math.sqrt(needed / drawn * likely * (1 - likely))

    def _needed(self, rate: float, drawn: int, freedom: int, strength: float) -> float:
        """Shift of the chi-squared law from which on this learner rejects for sure."""
        cost = 2 * math.log(NUM_BETTORS / rate) + freedom * math.log1p(drawn / strength)
        critical = cost * (drawn + strength) / drawn
        return scipy.optimize.brentq(
            lambda shift: SEEN - float(scipy.stats.ncx2.sf(critical, freedom, shift)), 1e-3, 100 * critical
        )

    def _law_after(self, prefix: Prefix) -> np.ndarray | None:
        self._seen[prefix] += 1
        if prefix not in self._known and self._seen[prefix] > SEEN_BEFORE and len(self._known) < MOST_PREFIXES:
            law = self._known[prefix] = law_at(self.temperature, self._law(list(prefix)))
            self._learners[prefix] = [_Learner(law.size, strength) for strength in STRENGTHS]
        return self._known.get(prefix)

    def _gains(self, prefix: Prefix, law: np.ndarray, token: int, *, verified: bool) -> list[float]:
        """Logarithms of what each bet returns; those of whom all prefixes teach leave the prompt's own pass out."""
        tilted = [law[token] ** (tilt - 1) / (law**tilt).sum() for tilt in TILTS]
        gains = [math.log(0.5 + 0.5 * odds) for odds in tilted]
        gains += [learner.bet(law, token) for learner in self._learners[prefix]]
        if not verified:
            return [*gains, 0.0, 0.0]
        by_id, by_rank = self._pooled or (_Learner(law.size, STRENGTHS[0]), _Learner(law.size, STRENGTHS[0]))
        self._pooled, order = (by_id, by_rank), np.argsort(-law)
        return [*gains, by_id.bet(law, token), by_rank.bet(law[order], int(np.argmax(order == token)))]
