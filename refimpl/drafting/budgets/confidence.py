"""Draft on as long as the draft model is sure."""

from collections.abc import Sequence as Seq
from typing import ClassVar

from refimpl.drafting.budgets.base import DraftBudget, Score


class ConfidenceBudget(DraftBudget):
    """A row stops before the first draft whose estimated survival is below a threshold.

    The estimate is the product of the draft's largest probabilities, known before the token is drawn. Stopping after
    drawing an unlikely token, and dropping it, would change the law of rejection sampling.

    Args:
        threshold: of the survival, in 0 … 1.
    """

    score: Score | None = "confidence"
    stops: ClassVar[bool] = True

    def __init__(self, threshold: float):
        self.threshold = threshold

    def go_on(self, survival: Seq[float]) -> list[bool]:
        """Compare with the threshold."""
        return [estimate >= self.threshold for estimate in survival]
