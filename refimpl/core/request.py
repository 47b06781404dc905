"""One prompt with settings of its own."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from refimpl.core.config import MAX_LOGPROBS, SamplingConfig
from refimpl.core.declared import Range
from refimpl.core.errors import require, shown
from refimpl.core.processing import Processing
from refimpl.core.tokens import check_stops
from refimpl.core.values import MAX_SPECULATIVE_TOKENS, is_number, require_int, use_plain_numbers

MAX_SAMPLES = 4096  # of one request
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # a seed is a key of a sequence, not a shape
PRIORITY = Range(-(2**31), 2**31 - 1, integer=True)
MAX_ARRIVAL_S = 10**9  # thirty years; more is a slip


@dataclass(frozen=True, slots=True)
class Request(Processing):
    """One prompt with its own settings; None takes the setting of the DecodeConfig. See `Processing` for further ones.

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
        priority: of those that wait, the smallest enters first, of equal ones the first that came; where memory runs
            out, the largest of those that run waits again, the last that came first. It changes no token.
        temperature, top_k, top_p, min_p: replace those of SamplingConfig.
        logprobs: likeliest tokens to report log-probabilities of.
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
    priority: int = 0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        use_plain_numbers(self, leave="prompt")
        Processing.__post_init__(self)
        most_drafts = MAX_SPECULATIVE_TOKENS
        ranges = {
            "max_new_tokens": (1, math.inf),
            "num_speculative_tokens": (0, most_drafts),
            "logprobs": (0, MAX_LOGPROBS),
        }
        for name, (low, high) in ranges.items():
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
        PRIORITY.check(self.priority, "priority")
        check_stops(self.stop_token_ids, () if self.stop_strings is None else self.stop_strings)
        self.shape(SamplingConfig())

    def shape(self, usual: SamplingConfig) -> SamplingConfig:
        """How the distribution of this prompt's tokens is shaped; what it leaves open is as usual.

        Raises:
            InputError: a value is out of range.
        """
        own = {name: getattr(self, name) for name in OF_SAMPLING if getattr(self, name) is not None}
        return replace(usual, **own) if own else usual
