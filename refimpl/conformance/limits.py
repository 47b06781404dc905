"""How far the cases of the kit go. Loads nothing heavy: the options of the command are made of it."""

from dataclasses import dataclass, replace

from refimpl.conformance.protocol import EngineSettings
from refimpl.core.declared import Range, check_fields, documented, setting
from refimpl.core.errors import require

LONG_BATCH = 4
ROWS, DRAFTS, TOKENS = (Range(1, most, integer=True) for most in (4096, 1024, 2**17))


@documented
@dataclass(frozen=True)
class Limits:
    """How far the cases go; the kit knows nothing about what an engine does beyond.

    Raises:
        InputError: a limit out of its range, or `k` together with `max_k`.
    """

    prompt_tokens: int = setting(
        130, "Longest prompt of the long case, in tokens.", TOKENS, option=("--prompt-length", "--long-prompt")
    )
    new_tokens: int = setting(66, "New tokens of the long case.", TOKENS, option=("--long-output",))
    law_samples: int = setting(
        4096, "Continuations that judge the law of samples; 16384 show subtle errors.",
        Range(100, 10**6, integer=True), option=(),
    )  # fmt: skip
    max_batch: int | None = setting(
        None, "Largest batch. 1 tests an engine that takes one row at a time.", ROWS, none="what the cases have",
        option=(),
    )  # fmt: skip
    max_k: int | None = setting(
        None, "Most tokens drafted per row and round.", DRAFTS, none="what the cases have", option=()
    )
    k: int | None = setting(
        None, "An engine built for one number of drafts: ask for it alone, and for 0.", DRAFTS, none="several",
        option=("--k",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.k is None or self.max_k is None, "k and max_k exclude each other: give one of them")

    def bounded(self, settings: EngineSettings) -> EngineSettings:
        """The settings, within the largest batch and number of drafts."""
        batch_size = min(settings.batch_size, self.max_batch or settings.batch_size)
        asked = settings.num_speculative_tokens
        drafts = self.k if self.k and asked else min(asked, self.max_k or asked)
        return replace(settings, batch_size=batch_size, num_speculative_tokens=drafts)
