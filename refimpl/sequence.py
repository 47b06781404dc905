"""One sequence on its way through the engine: host integers only, no tensors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from refimpl import kernels

StopReason = Literal["stop", "length", "cancelled"]
TextStop = Callable[[list[int]], bool]


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, what was generated after it, and how much of both each model has cached.

    Lengths are stored once: `seq_len` is the length of `token_ids`; raggedness is never inferred from token values
    (INV-8).

    Attributes:
        index: place of the prompt in the caller's list.
        sequence_id: key of the sequence's random numbers (INV-12).
        token_ids: prompt tokens followed by generated tokens.
        prompt_len: how many of `token_ids` are the prompt.
        max_new_tokens: budget of generated tokens, exact.
        num_speculative_tokens: drafts a round, at most.
        stop_token_ids: a generated token among these ends the sequence and is kept as its last token.
        stops_text: told the generated tokens so far, says whether a stop string has appeared.
        target_cached, draft_cached: leading tokens whose K/V the model holds.
        ticket: order of submission, set by the pool.
        slot: row of the K/V store, set by the engine while the sequence is in the window.
    """

    index: int
    token_ids: list[int]
    max_new_tokens: int
    num_speculative_tokens: int = 5
    stop_token_ids: frozenset[int] = frozenset()
    sequence_id: int = 0
    seed: int = 0
    stops_text: TextStop | None = None
    prompt_len: int = field(init=False)
    target_cached: int = 0
    draft_cached: int = 0
    stop_reason: StopReason | None = None
    ticket: int = -1
    slot: int = -1

    def __post_init__(self) -> None:
        self.prompt_len = len(self.token_ids)

    @property
    def seq_len(self) -> int:
        """Real tokens: prompt and generated."""
        return len(self.token_ids)

    @property
    def generated(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.prompt_len :]

    @property
    def num_generated(self) -> int:
        """How many tokens were generated."""
        return self.seq_len - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens left in the budget."""
        return self.max_new_tokens - self.num_generated

    @property
    def finished(self) -> bool:
        """Whether the sequence has a reason to run no more."""
        return self.stop_reason is not None

    @property
    def draft_lag(self) -> int:
        """Tokens the draft has not cached: 1; 2 after a full acceptance (INV-6); more after rounds without drafts."""
        return kernels.lag(self.seq_len, self.draft_cached)

    @property
    def cache_state(self) -> int:
        """What must agree, beside the length, among the members of a group (INV-11).

        A sequence without a slot is indexed as the prefill is about to leave it: with a lag of 1.
        """
        return self.draft_lag if self.slot >= 0 else 1

    @property
    def draft_limit(self) -> int:
        """Drafts that this row can use in the coming round."""
        return kernels.draft_limit(self.num_speculative_tokens, self.remaining)

    def extend(self, tokens: list[int]) -> int:
        """Append a round's tokens up to the first stop and within the budget; return how many were kept (INV-7).

        A stop token beats the budget when both fall on the same token.
        """
        before = self.seq_len
        for token in tokens[: self.remaining]:
            self.token_ids.append(token)
            if token in self.stop_token_ids or (self.stops_text and self.stops_text(self.generated)):
                self.stop_reason = "stop"
                break
        if not self.finished and self.remaining == 0:
            self.stop_reason = "length"
        return self.seq_len - before
