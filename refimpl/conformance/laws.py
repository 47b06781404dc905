"""Do two samples of continuations have the same distribution? Does something happen as often as it should?"""

import math
from collections import Counter
from dataclasses import dataclass

import scipy.optimize
import scipy.stats

SEEN = 0.999  # chance of a rejection from which on a difference counts as surely seen
CELL_SIZE = 20  # outcomes of a cell of the chi-squared test, at least
Tokens = tuple[int, ...]
Cells = list[list[int]]  # counts in the first sample and in the second


@dataclass(frozen=True)
class LawComparison:
    """Two equally large samples of continuations, compared as a whole and token by token.

    Attributes:
        p_value: of the null that both have one law (Bonferroni over the comparisons).
        num_cells: outcomes of the whole that are told apart, rare ones together. Samples of one cell tell nothing.
        num_comparisons: the whole, and each of its tokens.
        size: continuations of each sample.
    """

    p_value: float
    num_cells: int
    num_comparisons: int
    size: int

    def visible_difference(self, rate: float) -> float:
        """Total variation of two laws, in 0 … 1, from which on the null is rejected with a chance of `SEEN` or more.

        Where two laws differ by d in total variation over the cells, the statistic of samples of n has about a
        noncentral chi-squared law, shifted by at least 2 n d² (by Cauchy and Schwarz, for any place of the difference);
        where it lies in few cells, less is seen, too.

        Args:
            rate: of false alarms.
        """
        freedom = self.num_cells - 1
        critical = scipy.stats.chi2.isf(rate / self.num_comparisons, freedom)

        def missing(shift: float) -> float:
            return SEEN - float(scipy.stats.ncx2.sf(critical, freedom, shift))

        shift = float(scipy.optimize.brentq(missing, critical / 100, 100 * critical))
        return min(1.0, math.sqrt(shift / (2 * self.size)))


def compare_laws(found: list[Tokens], wanted: list[Tokens]) -> LawComparison:
    """Compare two equally large samples of continuations: the whole, and each of its tokens."""
    longest = max(len(tokens) for tokens in found + wanted)
    views = [slice(None), *(slice(i, i + 1) for i in range(longest))]
    cells = [_cells(*(Counter(tokens[v] for tokens in sample) for sample in (found, wanted))) for v in views]
    p_value = min(1.0, len(views) * min(map(_p_value, cells)))
    return LawComparison(p_value, len(cells[0]), len(views), len(found))


def _cells(first: Counter[Tokens], second: Counter[Tokens]) -> Cells:
    """Counts in cells of at least CELL_SIZE outcomes, if there are so many.

    Outcomes that are rare in both together share a cell with their neighbours in order, so that a large vocabulary
    leaves cells to compare, also where no outcome occurs twice.
    """
    both, cells = first + second, [[0, 0]]
    for key in sorted(both, key=lambda key: (both[key] >= CELL_SIZE, key)):
        if sum(cells[-1]) >= CELL_SIZE:
            cells.append([0, 0])
        cells[-1][0] += first[key]
        cells[-1][1] += second[key]
    if len(cells) > 1 and sum(cells[-1]) < CELL_SIZE:
        last = cells.pop()
        cells[-1] = [a + b for a, b in zip(cells[-1], last, strict=True)]
    return cells


def _p_value(cells: Cells) -> float:
    """Pearson's chi-squared test that both samples have one law."""
    return float(scipy.stats.chi2_contingency(list(zip(*cells, strict=True))).pvalue) if len(cells) > 1 else 1.0


def binomial_p_value(successes: int, trials: int, chance: float) -> float:
    """Exact test, two-sided, that each trial succeeds with this chance: twice the smaller tail."""
    law = scipy.stats.binom(trials, chance)
    return min(1.0, 2 * float(min(law.cdf(successes), law.sf(successes - 1))))


def visible_rate(trials: int, chance: float, rate: float) -> float:
    """Difference from a chance from which on that test rejects with a probability of `SEEN` or more.

    Args:
        trials, chance: of the test.
        rate: of false alarms.
    """
    law = scipy.stats.binom(trials, chance)
    few, many = law.ppf(rate / 2) - 1, law.isf(rate / 2) + 1  # are rejected, as what is beyond
    less = scipy.stats.beta.ppf(1 - SEEN, few + 1, trials - few) if few >= 0 else 0.0
    more = scipy.stats.beta.ppf(SEEN, many, trials - many + 1) if many <= trials else 1.0
    return float(max(chance - less, more - chance))
