"""Prompts in chunks beside the rows that decode."""

from collections.abc import Iterable
from typing import Self

from refimpl.core.engine_settings import EngineSettings
from refimpl.scheduling.base import Chunk, RoundPlan, Scheduler, T


class ContinuousScheduler(Scheduler[T]):
    """Every row that decodes runs in every round; what is left of a budget of tokens goes to prompts, oldest first.

    A sequence enters only while the verify tokens of the whole window stay within the budget. Its own are not needed
    before its prompt is cached. So no row that decodes ever waits, and in every round the oldest prompt gets at least
    one token (INV-17): a long prompt delays the others by no more than a round of the budget takes.

    Where prefill is joint, a row decodes in the round of its last chunk if its verify tokens fit beside it, too.

    Args:
        batch_size: rows a round runs at most, B.
        token_budget: tokens of a round, those of prompts included; at least k + 1 for every sequence.
        options: those of every scheduler.
    """

    token_budget: int

    def __init__(self, batch_size: int, token_budget: int, **options: bool):
        super().__init__(batch_size, batch_size, **options)
        self.token_budget = token_budget

    @classmethod
    def of(cls, settings: EngineSettings, **options: bool) -> Self:
        """With the token budget of a run."""
        return cls(settings.resolved_batch_size, settings.resolved_token_budget or 0, **options)

    def enters(self, sequence: T, residents: Iterable[T]) -> bool:
        """Whether a verify pass of all of them, once their prompts are cached, stays within the budget, too."""
        residents = list(residents)
        tokens = sum(verify_tokens(each) for each in (*residents, sequence))
        return tokens <= self.token_budget and super().enters(sequence, residents)

    def select(self) -> RoundPlan[T]:
        """Run all rows whose prompts are cached, and share the rest of the budget among the others in order."""
        window = self.pool.window.values()
        members = [sequence for sequence in window if not sequence.to_prefill]
        left, chunks = self.token_budget - sum(map(verify_tokens, members)), []
        for sequence in window:
            if (count := min(left, sequence.to_prefill)) > 0:
                chunks.append(Chunk(sequence, count))
                left -= count
                if self._joins(sequence, count, left):
                    members.append(sequence)
                    left -= verify_tokens(sequence)
        return RoundPlan(tuple(members), "continuous", tuple(chunks))

    def _joins(self, sequence: T, count: int, left: int) -> bool:
        """Whether a row decodes in the round of a chunk of so many tokens, beside which so many are left."""
        whole = count == sequence.to_prefill
        return self.joint_prefill and whole and verify_tokens(sequence) <= left


def verify_tokens(sequence: T) -> int:
    """Tokens that a row feeds in a verify pass at most: its drafts, and the token before them."""
    return sequence.draft_limit + 1
