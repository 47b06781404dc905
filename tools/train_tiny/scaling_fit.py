"""A law of acceptance fitted to drafts of several sizes and trainings: coefficients, with intervals, and errors.

A draft's acceptance probability is the one at which independent drafts yield its mean acceptance length. Its logit is
linear in the logarithms of training tokens and of parameters, so that rounds are bounded by k + 1 tokens. A straight
line of the lengths themselves, as Scylla found (arXiv 2505.07858), is fitted beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import t

from refimpl.core.errors import require
from refimpl.core.independent import probability_of, tokens_per_round

LEVEL = 0.95
NAMES = ("intercept", "per_tenfold_tokens", "per_tenfold_parameters")


@dataclass(frozen=True)
class Trained:
    """A draft model that was trained and judged.

    Attributes:
        parameters: all of them, embeddings included.
        training_tokens: that it was trained on.
        mean_acceptance_length: of rounds with k drafts.
    """

    parameters: int
    training_tokens: int
    mean_acceptance_length: float


@dataclass(frozen=True, eq=False)
class Line:
    """Least squares of values with independent errors of one size.

    Attributes:
        coefficients: ``[p]``.
        halves: of the 95 % intervals of the coefficients ``[p]``.
        left_out: what the others predict of each value ``[n]``.
    """

    coefficients: np.ndarray
    halves: np.ndarray
    left_out: np.ndarray

    def intervals(self) -> list[list[float]]:
        """Every coefficient with the ends of its interval ``[p][3]``."""
        found = self.coefficients, self.coefficients - self.halves, self.coefficients + self.halves
        return np.column_stack(found).tolist()


def fit_line(x: np.ndarray, y: np.ndarray) -> Line:
    """Fit values ``[n]`` to columns ``[n, p]``, n > p."""
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    residuals, free = y - x @ coefficients, len(y) - x.shape[1]
    leverage = ((x @ inverse) * x).sum(axis=1)
    halves = t.ppf((1 + LEVEL) / 2, free) * np.sqrt(inverse.diagonal() * (residuals @ residuals) / free)
    return Line(coefficients, halves, y - residuals / (1 - leverage))


def columns(drafts: Sequence[Trained]) -> np.ndarray:
    """One, and the logarithms of training tokens and parameters ``[n, 3]``."""
    sizes = np.array([(draft.training_tokens, draft.parameters) for draft in drafts], dtype=float)
    return np.column_stack([np.ones(len(drafts)), np.log10(sizes)])


def fit_law(drafts: Sequence[Trained], k: int) -> dict[str, Any]:
    """The law as the simulator reads it, its intervals and errors, and the straight line.

    Raises:
        InputError: a draft that is never right, or always.
    """
    for draft in drafts:
        name = f"a draft of {draft.parameters} parameters and {draft.training_tokens} training tokens"
        require(draft.mean_acceptance_length > 1, f"{name} is never right: train it longer")
        require(draft.mean_acceptance_length < k + 1, f"{name} is always right: ask for more than {k} drafts")
    x, lengths = columns(drafts), np.array([draft.mean_acceptance_length for draft in drafts])
    y = logit([probability_of(length, k) for length in lengths])
    bounded, straight = fit_line(x, y), fit_line(x, lengths)
    predicted = np.array([tokens_per_round(alpha, k) for alpha in expit(bounded.left_out)])
    return {
        "law": dict(zip(NAMES, bounded.coefficients.tolist(), strict=True)) | ranges(drafts),
        "intervals": dict(zip(NAMES, bounded.intervals(), strict=True)),
        "left_out_tokens": root_mean_square(predicted - lengths),
        "straight": dict(zip(NAMES, straight.intervals(), strict=True))
        | {"left_out_tokens": root_mean_square(straight.left_out - lengths)},
    }


def root_mean_square(errors: np.ndarray) -> float:
    """The root of the mean square ``[n]``."""
    return float(np.sqrt(np.mean(errors**2)))


def ranges(drafts: Sequence[Trained]) -> dict[str, int]:
    """The least and the most training tokens and parameters."""
    return {
        f"{word}_{name}": end(getattr(draft, name) for draft in drafts)
        for name in ("training_tokens", "parameters")
        for word, end in (("least", min), ("most", max))
    }
