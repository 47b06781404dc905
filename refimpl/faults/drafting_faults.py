"""Wrong proposals, and wrong accounts of them: what drafters that look tokens up can get wrong."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import Proposal
from refimpl.decoding.drafters import Drafts, HybridDrafter
from refimpl.faults.base import REJECTION, fault

HYBRID = {"drafter": "hybrid"}


@fault(Proposal, "distributions", "law", None, settings=REJECTION | {"drafter": "ngram"})
def looked_up_with_the_q_of_a_draw(original: Any) -> Any:
    """A token that was looked up is accepted, and what follows drawn, as if it had been drawn evenly."""

    def distributions(self: Proposal, vocab_size: int) -> Tensor | None:
        right = original(self, vocab_size)
        return right if self.looked_up is None else torch.full_like(right, 1 / vocab_size)

    return distributions


@fault(HybridDrafter, "draft", "nothing", "INV-3", settings=HYBRID)
def lookup_counts_as_passes(original: Any) -> Any:
    """After a round in which the draft did not run, its cached length grows as if it had."""

    def draft(self: HybridDrafter, members: Seq[Sequence], limits: list[int], numbers: Any) -> Drafts:
        right = original(self, members, limits, numbers)
        return replace(right, offer=replace(right.offer, passes=right.proposal.tokens.shape[1]))

    return draft
