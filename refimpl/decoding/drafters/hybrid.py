"""Prompt lookup first; the draft proposes what was not found."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import RowNumbers
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.drafters.base import Drafts
from refimpl.decoding.drafters.lookup import LookupDrafter, as_tensor, lookup_drafts
from refimpl.decoding.drafters.model import ModelDrafter
from refimpl.drafting import NgramIndex


@dataclass(frozen=True, slots=True)
class HybridDrafter:
    """Runs the draft only in rounds in which some row finds nothing.

    In such a round the draft is fed the tokens that other rows have found, so its K/V are those of what is proposed,
    and it goes on where they end. In all other rounds it falls behind, and catches up before it drafts again.

    Attributes:
        model: drafts what is not found.
        lookup: finds.
    """

    model: ModelDrafter
    lookup: LookupDrafter = field(default_factory=lambda: LookupDrafter(NgramIndex))

    states = None

    @property
    def cached(self) -> CachedModel:
        """The model's."""
        return self.model.cached

    def draft(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> Drafts:
        """Propose what is found, and run the draft if some row finds nothing."""
        found, device = self.lookup.find(members, limits, numbers), numbers.limits.device
        if all(tokens or not limit for tokens, limit in zip(found, limits, strict=True)):
            return lookup_drafts(found, device)
        drafts = self.model.draft(members, limits, numbers, as_tensor(found, max(limits), device))
        return replace(drafts, looked_up=[len(tokens) for tokens in found])

    def forget(self, sequence: Sequence) -> None:
        """Drop what was looked up in."""
        self.lookup.forget(sequence)
