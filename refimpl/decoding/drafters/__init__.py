"""What proposes the tokens that the target verifies: one file for each drafter."""

from collections.abc import Callable
from typing import NamedTuple

from refimpl.core.drafting import DrafterName
from refimpl.decoding.drafters.base import Drafter, Drafts, NoDrafts
from refimpl.decoding.drafters.checked import CheckedBudget
from refimpl.decoding.drafters.head import HeadDrafter
from refimpl.decoding.drafters.hybrid import HybridDrafter
from refimpl.decoding.drafters.lookup import LookupDrafter
from refimpl.decoding.drafters.model import Feed, ModelDrafter, propose
from refimpl.decoding.drafters.states import TargetStates
from refimpl.drafting import NgramIndex, SuffixIndex


class Makers(NamedTuple):
    """Make what draws drafts, for the drafters that need it."""

    model: Callable[[], ModelDrafter]
    head: Callable[[], HeadDrafter]


DRAFTER_MAKERS: dict[DrafterName, Callable[[Makers], Drafter]] = {
    "model": lambda make: make.model(),
    "ngram": lambda make: LookupDrafter(NgramIndex),
    "suffix": lambda make: LookupDrafter(SuffixIndex),
    "hybrid": lambda make: HybridDrafter(make.model()),
    "head": lambda make: make.head(),
}
