"""What a round yields where each draft is accepted independently: α is that probability, k the drafts of a round."""

from scipy.optimize import brentq


def tokens_per_round(alpha: float, k: int) -> float:
    """Mean tokens of a row and round, (1 - α^(k+1)) / (1 - α) (Leviathan et al. 2023, equation 1)."""
    return k + 1.0 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def probability_of(tokens: float, k: int) -> float:
    """The α at which k ≥ 1 drafts yield so many tokens per round; NaN where none does (not 1 ≤ tokens ≤ k + 1)."""
    if not 1 <= tokens <= k + 1:
        return float("nan")
    return float(brentq(lambda alpha: tokens_per_round(alpha, k) - tokens, 0, 1))
