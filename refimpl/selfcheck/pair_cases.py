"""A case on a tiny random Hugging Face pair: the real modeling code of an architecture, random weights, float64."""

from dataclasses import dataclass, replace
from functools import lru_cache

from refimpl.models.adapter import Pair
from refimpl.pairs.random_pairs import random_pair
from refimpl.selfcheck.cases import Case, Row, oracle_outputs
from refimpl.selfcheck.properties import PropertyFailure, output_equals_oracle


@dataclass(frozen=True)
class PairCase:
    """A pair, and a case whose rows have no scripts.

    Attributes:
        kind: architecture, one of `TINY_ARCHITECTURES`.
        seed: of the weights.
        draft_noise: what the draft's weights differ by; 0 makes it the target.
        vocab_size: of both.
        case: prompts and settings; a row's `stop_at` counts in what the target generates.
    """

    kind: str
    seed: int
    draft_noise: float
    vocab_size: int
    case: Case

    @property
    def pair(self) -> Pair:
        """The pair, built once."""
        return _pair(self.kind, self.seed, self.draft_noise, self.vocab_size)

    @property
    def resolved(self) -> Case:
        """The case with stop tokens that this target generates where the rows say so."""
        free = [replace(row, stop_at=None) for row in self.case.rows]
        outputs = oracle_outputs(replace(self.case, rows=tuple(free)), self.pair)
        rows = [_with_stop(row, tokens) for row, tokens in zip(self.case.rows, outputs, strict=True)]
        return replace(self.case, rows=tuple(rows))

    def check(self, checks: str = "device") -> None:
        """Require the oracle's tokens.

        Raises:
            PropertyFailure: they differ; told round by round.
            InvariantViolation: a check of the level failed.
        """
        try:
            output_equals_oracle(self.resolved, checks, self.pair)
        except PropertyFailure as failure:
            about = f"{self.kind} of {self.vocab_size} tokens, seed {self.seed}, draft noise {self.draft_noise}"
            raise PropertyFailure(failure.name, failure.reason, f"{about}\n{failure.story}") from None


def _with_stop(row: Row, tokens: list[int]) -> Row:
    return row if row.stop_at is None else replace(row, stop_at=None, stop_tokens=(tokens[row.stop_at],))


@lru_cache(maxsize=256)
def _pair(kind: str, seed: int, draft_noise: float, vocab_size: int) -> Pair:
    return random_pair(kind, seed=seed, draft_noise=draft_noise, vocab_size=vocab_size)
