"""What proposes tokens: the settings of drafting."""

from dataclasses import dataclass
from typing import Literal, get_args

from refimpl.core.errors import require, shown
from refimpl.core.values import use_plain_numbers

DrafterName = Literal["model", "ngram", "hybrid"]

DRAFTERS: tuple[str, ...] = get_args(DrafterName)
WITHOUT_MODEL: tuple[str, ...] = ("ngram",)  # drafters that a pair without a draft can have


@dataclass(frozen=True, slots=True)
class DraftingConfig:
    """What proposes tokens for the target to verify. Greedy and coupled outputs do not depend on it.

    Attributes:
        drafter: ``"model"``: the pair's draft. ``"ngram"``: what followed the row's last tokens where they stood
            before, in the prompt or in the output (prompt lookup); no draft is loaded or run. ``"hybrid"``: the same,
            and the draft for tokens that were not found.
    """

    drafter: DrafterName = "model"

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        require(self.drafter in DRAFTERS, f"drafter must be one of {', '.join(DRAFTERS)}, not {shown(self.drafter)}")

    @property
    def uses_draft(self) -> bool:
        """Whether the pair's draft runs."""
        return self.drafter not in WITHOUT_MODEL

    @property
    def looks_up(self) -> bool:
        """Whether the host looks tokens up, which no recording can do."""
        return self.drafter != "model"
