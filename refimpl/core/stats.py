"""Acceptance and run statistics, with the identities that define them.

| name                      | definition                                                                       |
|---------------------------|----------------------------------------------------------------------------------|
| draft_acceptance_rate     | accepted / drafted                                                               |
| mean_acceptance_length    | 1 + accepted / row-rounds, the recovered or bonus token included                 |
| tokens_per_row_round      | generated / row-rounds: the same after cuts by a stop, a budget or a rollback    |
| tokens_per_verified_token | generated / (drafted + row-rounds): a pass feeds a row its drafts and one more   |
| per_position[i]           | share of row-rounds whose first i+1 drafts were all accepted (unconditional)     |
| grouping_rate             | grouped rounds of at least two rows / rounds                                     |

A rate over a run is a ratio of sums, in which every token (every row-round) weighs the same: token-weighted. The
`request_weighted_…` figures are means over requests of each request's own ratio, in which a short answer weighs as
much as a long one.
"""

import sys
import warnings
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from refimpl.core.records import RowOutcome

COLLAPSE_LENGTH = 1.05
COLLAPSE_ROW_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class AcceptanceStats:
    """Counts over row-rounds; every rate is derived from them.

    Attributes:
        row_rounds: (row, round) pairs.
        drafted, accepted: tokens.
        generated: tokens committed.
        cut: tokens accepted or chosen by the target but dropped by a stop, a budget or a rollback.
        histogram: row-rounds by number of accepted drafts, 0 … most drafted by a row.
    """

    row_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    generated: int = 0
    cut: int = 0
    histogram: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if sum(self.histogram) != self.row_rounds:
            raise ValueError(f"histogram sums to {sum(self.histogram)}, not to {self.row_rounds} row-rounds")
        if sum(i * n for i, n in enumerate(self.histogram)) != self.accepted:
            raise ValueError(f"histogram does not add up to {self.accepted} accepted tokens")
        if self.accepted + self.row_rounds - self.cut != self.generated:
            raise ValueError(f"generated {self.generated} is not accepted + row-rounds − cut")

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a row gains per round before cuts; 0 when there was no round."""
        return 1 + self.accepted / self.row_rounds if self.row_rounds else 0.0

    @property
    def tokens_per_row_round(self) -> float:
        """Tokens that a row commits per round; 0 when there was no round."""
        return self.generated / self.row_rounds if self.row_rounds else 0.0

    @property
    def tokens_per_verified_token(self) -> float:
        """Tokens committed per token that was fed to be verified; 0 when there was no round."""
        return self.generated / (self.drafted + self.row_rounds) if self.row_rounds else 0.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """Unconditional acceptance per draft position."""
        return tuple(sum(self.histogram[i + 1 :]) / self.row_rounds for i in range(len(self.histogram) - 1))


def acceptance_stats(records: Iterable[RowOutcome]) -> AcceptanceStats:
    """Count row-rounds."""
    rows = list(records)
    longest = max((r.drafted for r in rows), default=-1)
    return AcceptanceStats(
        row_rounds=len(rows),
        drafted=sum(r.drafted for r in rows),
        accepted=sum(r.accepted for r in rows),
        generated=sum(r.kept for r in rows),
        cut=sum(r.accepted + 1 - r.kept for r in rows),
        histogram=tuple(sum(r.accepted == n for r in rows) for n in range(longest + 1)),
    )


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """What one drafter has offered and what of it survived.

    Attributes:
        offers: row-rounds in which it offered a draft.
        drafted, accepted: its tokens.
    """

    offers: int
    drafted: int
    accepted: int


def drafter_stats(
    records: Iterable[RowOutcome], lookup: str = "ngram", drawn_by: str = "model"
) -> dict[str, DrafterStats]:
    """Count by drafter: tokens that `lookup` has found lead each row's drafts, those of the model or head follow."""
    rows = list(records)
    found = [(r.looked_up, min(r.accepted, r.looked_up)) for r in rows]
    drawn = [(r.drafted - n, r.accepted - used) for r, (n, used) in zip(rows, found, strict=True)]
    return {
        name: DrafterStats(sum(n > 0 for n, _ in offers), sum(n for n, _ in offers), sum(used for _, used in offers))
        for name, offers in ((drawn_by, drawn), (lookup, found))
        if any(n for n, _ in offers)
    }


def plain_stats(num_tokens: int) -> AcceptanceStats:
    """Of plain decoding: every token is a row-round without drafts."""
    histogram = (num_tokens,) if num_tokens else ()
    return AcceptanceStats(row_rounds=num_tokens, generated=num_tokens, histogram=histogram)


def request_weighted_length(per_request: Seq[AcceptanceStats]) -> float:
    """Mean over requests of their mean acceptance length; 0 when none has run."""
    return _mean([s.mean_acceptance_length for s in per_request if s.row_rounds])


def request_weighted_rate(per_request: Seq[AcceptanceStats]) -> float:
    """Mean over requests of their draft acceptance rate; 0 when none has drafted."""
    return _mean([s.draft_acceptance_rate for s in per_request if s.drafted])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class AcceptanceCollapseWarning(UserWarning):
    """Speculation costs and gains nothing: hardly any drafted token is accepted."""


def _level_of_caller() -> int:
    """The `stacklevel` with which a warning of the calling function names the line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("refimpl."):
        frame, level = frame.f_back, level + 1
    return level


class CollapseWatch:
    """Warns, once a run, when the last `COLLAPSE_ROW_ROUNDS` row-rounds with drafts gained almost nothing from them."""

    def __init__(self) -> None:
        self._accepted: deque[int] = deque(maxlen=COLLAPSE_ROW_ROUNDS)
        self._warned = False

    def observe(self, rows: Iterable[RowOutcome]) -> None:
        """Take note of a round; warn as soon as a full window has a mean acceptance length below the limit."""
        self._accepted.extend(row.accepted for row in rows if row.drafted)
        if self._warned or len(self._accepted) < COLLAPSE_ROW_ROUNDS:
            return
        length = 1 + sum(self._accepted) / len(self._accepted)
        if length < COLLAPSE_LENGTH:
            self._warned = True
            warnings.warn(
                f"mean acceptance length {length:.3f} over the last {len(self._accepted)} row-rounds: speculation only "
                "costs. Likely causes: draft and target were trained on different tokenizers or texts, the draft's "
                "weights are random or its K/V cache is out of step, or the temperature is too high for the draft",
                AcceptanceCollapseWarning,
                stacklevel=_level_of_caller(),
            )


@dataclass(frozen=True, slots=True)
class RunStats:
    """A run of the engine; seconds are wall-clock on the device named in the result.

    Attributes:
        acceptance: over all rows and rounds.
        request_weighted_length, request_weighted_rate: means over requests of mean acceptance length and rate.
        num_sequences: that were decoded: the samples of all prompts.
        num_prompt_tokens: tokens of their prompts, as used.
        num_prompt_tokens_cut: tokens cut from the front of prompts.
        num_rounds, num_grouped_rounds: rounds, and those run on an equal-length group of at least two rows.
        num_moves: fused gathers and write-backs of both layouts.
        num_preemptions: times that a sequence was sent back because a paged pool ran dry.
        num_prefix_hits: tokens that were in the cache when their sequence entered, after a preemption, too.
        num_blocks: of a paged pool; None for other layouts.
        kv_bytes: K/V pools of all models.
        kv_peak_bytes: of them in use at most: blocks, or whole pool rows.
        kv_live_bytes: of the tokens that were cached at that moment; at the fullest one of several.
        most_residents, mean_residents: sequences with K/V at a time, at most and on average over rounds.
        wall_s: of all rounds, prefills included; between rounds, as in a wait for requests, no time is counted.
        stage_s: seconds by stage: prefill, draft, verify, realign, record, host.
        drafters: offers by drafter, of those that have made any.
    """

    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    request_weighted_length: float = 0.0
    request_weighted_rate: float = 0.0
    num_sequences: int = 0
    num_prompt_tokens: int = 0
    num_prompt_tokens_cut: int = 0
    num_rounds: int = 0
    num_grouped_rounds: int = 0
    num_moves: int = 0
    num_preemptions: int = 0
    num_prefix_hits: int = 0
    num_blocks: int | None = None
    kv_bytes: int = 0
    kv_peak_bytes: int = 0
    kv_live_bytes: int = 0
    most_residents: int = 0
    mean_residents: float = 0.0
    wall_s: float = 0.0
    stage_s: dict[str, float] = field(default_factory=dict)
    drafters: dict[str, DrafterStats] = field(default_factory=dict)

    @property
    def num_generated(self) -> int:
        """Tokens generated, over all sequences."""
        return self.acceptance.generated

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of rounds, see `wall_s`."""
        return self.num_generated / self.wall_s if self.wall_s else 0.0

    @property
    def grouping_rate(self) -> float:
        """Grouped rounds of at least two rows / rounds."""
        return self.num_grouped_rounds / self.num_rounds if self.num_rounds else 0.0

    def share(self, stage: str) -> float:
        """Share of the time of all stages, prefill included."""
        total = sum(self.stage_s.values())
        return self.stage_s.get(stage, 0.0) / total if total else 0.0
