"""One sequence on its way through the engine: host integers only, no tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from refimpl.core import kernels
from refimpl.core.config import SamplingConfig
from refimpl.core.processing import Processing

MOST_LAG = 2  # tokens that a draft has not cached after a round that it drafted for (INV-6)
StopReason = Literal["stop", "length", "cancelled"]
REWRITTEN = 16  # characters before those of a token that it may change: blanks before a sign, an unfinished character
UNFINISHED = "\ufffd"  # what a character is shown as while some of its bytes are missing
MOST_PARTS = 4  # tokens that one character is spelt with, at most


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Texts that end a sequence, looked for in all of its generated text at every token.

    A token changes the text at its end alone, so it is there that a stop string appears. All of the text is decoded
    only where its end has one, or where no part of it can be decoded by itself: not for every token of a long row.

    Attributes:
        strings: any of these ends it.
        decode: generated tokens to text, the same text as the result's.
    """

    strings: tuple[str, ...]
    decode: Callable[[list[int]], str]

    def appear_in(self, generated: list[int]) -> bool:
        """Whether the tokens' text contains a stop string; without the last token it does not."""
        return self._stand_in(self._end(generated)) and self._stand_in(self.decode(generated))

    def _stand_in(self, text: str) -> bool:
        return any(stop in text for stop in self.strings)

    def _end(self, generated: list[int]) -> str:
        """Text of the last tokens: what the last one may have changed, and a stop string before it, at least."""
        enough = max(map(len, self.strings)) + REWRITTEN + len(self.decode(generated[-1:]))
        first = len(generated) - enough
        while True:
            for begin in range(first, first - MOST_PARTS, -1):
                text = self.decode(generated[max(0, begin) :])
                if begin <= 0 or (len(text) >= enough and not text.startswith(UNFINISHED)):
                    return text
            first -= len(generated) - first  # twice as many tokens

    def cut(self, text: str) -> str:
        """The text before the first stop string in it."""
        starts = [text.find(stop) for stop in self.strings]
        return text[: min((start for start in starts if start >= 0), default=len(text))]


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, what was generated after it, and how much of both each model has cached.

    Lengths are stored once: `seq_len` is the length of `token_ids`; raggedness is never inferred from token values
    (INV-8).

    Attributes:
        index: place in the caller's list, a prompt of n samples counted n times.
        sequence_id: key of the sequence's random numbers (INV-12).
        token_ids: prompt tokens followed by generated tokens.
        prompt_len: how many of `token_ids` are the prompt.
        max_new_tokens: budget of generated tokens, exact.
        num_speculative_tokens: drafts a round, at most.
        stop_token_ids: a generated token among these ends the sequence and is kept as its last token.
        stop_strings: end the sequence, too, and stay out of its text.
        sampling: shape of the distribution that its tokens are drawn from, where that is not the run's; its seed does
            not count.
        logprobs: likeliest tokens to report log-probabilities of; None for as many as the run.
        processing: what its text does to its logits; None for nothing.
        target_cached, draft_cached: leading tokens whose K/V the model has cached; None where no model drafts.
        draft_context: positions that the draft knows; a row that is as long has no drafts any more.
        num_evaluated, num_accepted: drafts that the target has decided on, and those it accepted, at positions that
            were committed.
        priority: of those that wait, who enters first, and of those that run, who is preempted last: the smallest.
        ticket: order of submission, set by the pool.
        slot: row of the K/V store, set by the engine while the sequence is in the window.
        blocks: of both models' K/V, in order of position, where the layout is paged; the pool's null block for those
            that no later query sees.
        num_prefix_hits: leading tokens whose blocks others had filled when it entered the window.
    """

    index: int
    token_ids: list[int]
    max_new_tokens: int
    num_speculative_tokens: int = 5
    stop_token_ids: frozenset[int] = frozenset()
    sequence_id: int = 0
    seed: int = 0
    stop_strings: StopStrings | None = None
    sampling: SamplingConfig | None = None
    logprobs: int | None = None
    processing: Processing | None = None
    prompt_len: int = field(init=False)
    target_cached: int = 0
    draft_cached: int | None = 0
    draft_context: float = math.inf
    num_evaluated: int = 0
    num_accepted: int = 0
    stop_reason: StopReason | None = None
    priority: int = 0
    ticket: int = -1
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    num_prefix_hits: int = 0

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
    def most_tokens(self) -> int:
        """Tokens of the prompt and the whole budget."""
        return self.prompt_len + self.max_new_tokens

    @property
    def finished(self) -> bool:
        """Whether the sequence has a reason to run no more."""
        return self.stop_reason is not None

    @property
    def draft_lag(self) -> int:
        """Tokens the draft has not cached: 1; 2 after a full acceptance (INV-6); more after rounds that it sat out.

        0 where no model drafts.
        """
        return 0 if self.draft_cached is None else kernels.lag(self.seq_len, self.draft_cached)

    @property
    def cached_by_all(self) -> int:
        """Leading tokens that every model has cached."""
        return self.target_cached if self.draft_cached is None else min(self.target_cached, self.draft_cached)

    @property
    def cached_at_entry(self) -> int:
        """Leading tokens that every model caches where the text is cached as the sequence enters."""
        return 0 if self.outgrew_draft else self.seq_len - 1

    @property
    def cache_state(self) -> int:
        """What must be equal among the members of a group, in addition to the length (INV-11).

        The lag with which the draft would begin: 1 for a sequence that is about to be prefilled, and where the draft
        would first catch up on rounds that it sat out. A row that never has drafts counts as such a one.
        """
        if self.draft_cached is None:
            return 0
        cached = self.slot >= 0 and not self.to_prefill
        begins_behind = cached and self.num_speculative_tokens > 0 and self.draft_lag <= MOST_LAG
        return self.draft_lag if begins_behind else 1

    @property
    def draft_limit(self) -> int:
        """Drafts that this row can use in the coming round."""
        limit = kernels.draft_limit(self.num_speculative_tokens, self.remaining)
        return int(max(0, min(limit, self.draft_context - self.seq_len)))

    @property
    def outgrew_draft(self) -> bool:
        """Whether the row fills the draft's context: the draft is fed nothing of it any more."""
        return self.seq_len >= self.draft_context

    def block_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens from `start` to `stop`."""
        return tuple(self.token_ids[start:stop])

    @property
    def to_prefill(self) -> int:
        """Tokens that the target must cache before this row can decode: all but the last."""
        return self.seq_len - 1 - self.target_cached

    def note_drafts(self, drafted: int, accepted: int, kept: int) -> None:
        """Count a round's drafts at the `kept` positions that it committed; those behind them may be drawn again."""
        committed = min(accepted, kept)
        self.num_accepted += committed
        self.num_evaluated += committed + (accepted < min(drafted, kept))

    def stops_at(self, token: int) -> bool:
        """Whether `token`, the last that was generated, ends the sequence, whatever the budget."""
        return token in self.stop_token_ids or (
            self.stop_strings is not None and self.stop_strings.appear_in(self.generated)
        )

    def extend(self, tokens: list[int]) -> int:
        """Append a round's tokens up to the first stop and within the budget; return how many were kept (INV-7).

        A stop token beats the budget when both fall on the same token.
        """
        before = self.seq_len
        for token in tokens[: self.remaining]:
            self.token_ids.append(token)
            if self.stops_at(token):
                self.stop_reason = "stop"
                break
        if not self.finished and self.remaining == 0:
            self.stop_reason = "length"
        return self.seq_len - before
