"""What proposes the tokens that the target verifies: one file for each drafter."""

from collections.abc import Callable

from refimpl.core.drafting import DrafterName
from refimpl.decoding.drafters.base import Drafter, Drafts, Offer
from refimpl.decoding.drafters.checked import CheckedBudget
from refimpl.decoding.drafters.hybrid import HybridDrafter
from refimpl.decoding.drafters.lookup import LookupDrafter
from refimpl.decoding.drafters.model import Feed, ModelDrafter, propose
from refimpl.drafting import NgramIndex, SuffixIndex

MakeModelDrafter = Callable[[], ModelDrafter]

DRAFTERS: dict[DrafterName, Callable[[MakeModelDrafter], Drafter]] = {
    "model": lambda model: model(),
    "ngram": lambda model: LookupDrafter(NgramIndex),
    "suffix": lambda model: LookupDrafter(SuffixIndex),
    "hybrid": lambda model: HybridDrafter(model()),
}

__all__ = [
    "DRAFTERS",
    "CheckedBudget",
    "Drafter",
    "Drafts",
    "Feed",
    "HybridDrafter",
    "LookupDrafter",
    "ModelDrafter",
    "Offer",
    "propose",
]
