"""Do two samples of continuations have the same distribution?"""

from collections import Counter

import scipy.stats

CELL_SIZE = 20  # outcomes of a cell of the chi-squared test, at least
Tokens = tuple[int, ...]


def law_p_value(found: list[Tokens], wanted: list[Tokens]) -> float:
    """P-value of the null that both samples of continuations have one law: of the whole, and of each of its tokens."""
    longest = max(len(tokens) for tokens in found + wanted)
    views = [slice(None), *(slice(i, i + 1) for i in range(longest))]
    p_values = [two_sample_p_value(*(Counter(tokens[v] for tokens in s) for s in (found, wanted))) for v in views]
    return min(1.0, len(views) * min(p_values))


def two_sample_p_value(first: Counter[Tokens], second: Counter[Tokens]) -> float:
    """Pearson's chi-squared test that two equally large samples have one law.

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
    return float(scipy.stats.chi2_contingency(list(zip(*cells, strict=True))).pvalue) if len(cells) > 1 else 1.0
