"""What a drafter is asked, and what it answers."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import Proposal, RowNumbers
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.drafters.states import TargetStates
from refimpl.decoding.sampling import rows_of


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens that a drafter proposes, on the device, and what the host knows of them.

    Attributes:
        proposal: the tokens.
        lengths: drafts of each member, at most its limit; what a proposal holds beyond them is arbitrary.
        looked_up: leading drafts of each member that were looked up.
        passes: of the draft; 0 where it has not run.
        survival: of each member, what a budget was told of each draft that was drawn; empty where none has asked.
        caught_up: tokens of each member that the draft has cached before it drafted, as it sat out rounds.
        skipped: places of members that the draft was not fed.
    """

    proposal: Proposal
    lengths: list[int]
    looked_up: list[int]
    passes: int
    survival: Seq[Seq[float]] = ()
    caught_up: Seq[int] = ()
    skipped: frozenset[int] = frozenset()

    @classmethod
    def none(cls, num_members: int, device: torch.device) -> "Drafts":
        """No tokens for any row."""
        tokens = torch.zeros(num_members, 0, dtype=torch.long, device=device)
        return cls(Proposal(tokens), [0] * num_members, [0] * num_members, 0)

    def spread(self, rows: Seq[int], num_members: int) -> "Drafts":
        """As drafts of more members, of which these are at `rows`; the others were skipped, and have none."""
        at = {row: i for i, row in enumerate(rows)}

        def over(values: Seq[Any], nothing: Any) -> list[Any]:
            return [values[at[row]] if row in at else nothing for row in range(num_members)] if values else []

        return Drafts(
            rows_of(self.proposal, [at.get(row, 0) for row in range(num_members)]),
            over(self.lengths, 0),
            over(self.looked_up, 0),
            self.passes,
            over(self.survival, ()),
            over(self.caught_up, 0),
            frozenset(range(num_members)) - set(at),
        )


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens."""

    @property
    def cached(self) -> CachedModel | None:
        """The draft and its layout; None for a drafter that runs no model, and so keeps no K/V."""

    @property
    def states(self) -> TargetStates | None:
        """The target's hidden states, for a drafter that reads them."""

    def draft(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> Drafts:
        """Propose up to `limits` tokens for each member; `numbers` are those of the largest limit."""

    def forget(self, sequence: Sequence) -> None:
        """Drop what is stored about a sequence that has left the window."""


class NoDrafts:
    """Of a run in which no row ever has drafts: no model is run or cached for them."""

    cached = states = None

    def draft(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> Drafts:
        """No tokens for any row."""
        return Drafts.none(len(members), numbers.limits.device)

    def forget(self, sequence: Sequence) -> None:
        """Nothing is stored."""
