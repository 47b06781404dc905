"""What a round did to a row: the record that statistics, checks and traces are made of."""

from dataclasses import dataclass
from typing import Literal

Stage = Literal["prefill", "draft", "verify", "realign", "record"]
STAGES: tuple[Stage, ...] = ("prefill", "draft", "verify", "realign", "record")
NextToken = Literal["recovered", "bonus", "draft"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of an emitted token under the target's unprocessed distribution, and the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What a round did to one row; all lengths in tokens.

    Attributes:
        sequence: index of the sequence.
        seq_len: before the round.
        draft_lag: tokens that the draft had not cached before the round; 0 where no model drafts. Where it is above 2
            and the draft runs, all but one of them are cached first, as a prompt is.
        k: drafts of the batch in this round.
        drafted: drafts that this row was offered and could use.
        accepted: longest accepted prefix of them.
        kept: tokens committed, after stop, budget and rollback.
        next_token: what the last committed token is.
        finished: whether the row ended here.
        logprobs: per committed token, log-probability and the alternatives asked for.
        looked_up: leading drafts that were looked up, not drawn from a model.
        draft_passes: of the draft in this round.
        survival: estimates for the drafts that were drawn, where the draft budget reads any.
    """

    sequence: int
    seq_len: int
    draft_lag: int
    k: int
    drafted: int
    accepted: int
    kept: int
    next_token: NextToken
    finished: bool
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    looked_up: int = 0
    draft_passes: int = 0
    survival: tuple[float, ...] = ()
