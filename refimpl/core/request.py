"""One prompt with settings of its own, and where its generation ends."""

import math
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from refimpl.core.errors import require, shown
from refimpl.core.values import MAX_SPECULATIVE_TOKENS, is_list, is_number, require_int, use_plain_numbers

MAX_SAMPLES = 4096  # of one request
MAX_ARRIVAL_S = 10**9  # thirty years; more is a slip


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its own settings; None takes the setting of the DecodeConfig.

    Attributes:
        prompt: text, or token ids.
        max_new_tokens: budget of generated tokens.
        num_speculative_tokens: drafts a round.
        stop_token_ids: replaces the pair's stop tokens; may be empty.
        stop_strings: generation ends when the generated text contains one of them.
        seed: replaces SamplingConfig.seed.
        sequence_id: key of the random numbers; None takes the place in the results. Where prompts come while a run goes
            on, those that come later skip places whose key one of the same seed was given before.
        n: samples to draw, each a sequence of its own. The i-th of them has the key `sequence_id` + i. At temperature 0
            all are equal.
        arrival_s: seconds after the start of the run at which it comes, in ascending order over the prompts; until then
            nothing of it is decoded. One that is submitted to a stream comes at that moment, and may not have another.
            `autoregressive`, which decodes one prompt after the other, does not wait.
    """

    prompt: str | Seq[int]
    max_new_tokens: int | None = None
    num_speculative_tokens: int | None = None
    stop_token_ids: Seq[int] | None = None
    stop_strings: Seq[str] | None = None
    seed: int | None = None
    sequence_id: int | None = None
    n: int = 1
    arrival_s: float = 0.0

    def __post_init__(self) -> None:
        use_plain_numbers(self, leave="prompt")
        for name, low, high in (("max_new_tokens", 1, math.inf), ("num_speculative_tokens", 0, MAX_SPECULATIVE_TOKENS)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), low, high)
        require_int("n", self.n, 1, MAX_SAMPLES)
        for name, more in (("seed", 0), ("sequence_id", self.n - 1)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), -(2**63), 2**63 - 1 - more)
        require(
            is_number(self.arrival_s) and 0 <= self.arrival_s <= MAX_ARRIVAL_S,
            f"arrival_s must be a number of seconds in 0 … {MAX_ARRIVAL_S}, not {shown(self.arrival_s)}",
        )
        check_stops(self.stop_token_ids, () if self.stop_strings is None else self.stop_strings)


def check_stops(stop_token_ids: Collection[int] | None, stop_strings: Seq[str], vocab_size: float = math.inf) -> None:
    """Raise InputError unless stop tokens are a list of ids and stop strings a list of texts, none of them empty."""
    require(is_list(stop_strings, Collection), f"stop_strings must be a list of texts, not {shown(stop_strings)}")
    for text in stop_strings:
        require(isinstance(text, str), f"a stop string must be a text, not {shown(text)}")
        require(text != "", "a stop string must not be empty")
    if stop_token_ids is not None:
        right = is_list(stop_token_ids, Collection)
        require(right, f"stop_token_ids must be a list of token ids, not {shown(stop_token_ids)}")
        for token in stop_token_ids:
            require_int("a stop token id", token, 0, vocab_size - 1)
