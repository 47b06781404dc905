"""Wrong proposals, wrong accounts of them, and budgets that know too much."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refimpl.core.drafting import DraftingConfig
from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import Proposal
from refimpl.decoding.drafters import Drafts, HybridDrafter, pace
from refimpl.decoding.drafters.pace import Pace
from refimpl.drafting.budgets import GoodputBudget
from refimpl.drafting.budgets.base import ranked
from refimpl.faults.base import REJECTION, fault

LOOKUP, HYBRID = {"drafting": DraftingConfig("ngram")}, {"drafting": DraftingConfig("hybrid")}
CAPACITY = {"drafting": DraftingConfig(draft_budget="capacity", draft_capacity=256)}
GOODPUT = {"drafting": DraftingConfig(draft_budget="goodput", draft_cost=0.01, draft_tile=2)}
CONFIDENCE = {"drafting": DraftingConfig(draft_budget="confidence", draft_threshold=0.3)}


@fault(Proposal, "distributions", "law", None, settings=REJECTION | LOOKUP)
def looked_up_with_the_q_of_a_draw(original: Any) -> Any:
    """A token that was looked up is accepted, and what follows drawn, as if it had been drawn evenly."""

    def distributions(self: Proposal, vocab_size: int) -> Tensor | None:
        right = original(self, vocab_size)
        return right if self.looked_up is None else torch.full_like(right, 1 / vocab_size)

    return distributions


@fault(HybridDrafter, "draft", "crash", "INV-6", settings=HYBRID)
def lookup_counts_as_passes(original: Any) -> Any:
    """After a round in which the draft did not run, its cached length grows as if it had."""

    def draft(self: HybridDrafter, members: Seq[Sequence], limits: list[int], numbers: Any) -> Drafts:
        right = original(self, members, limits, numbers)
        return replace(right, offer=replace(right.offer, passes=right.proposal.tokens.shape[1]))

    return draft


# --- budgets -----------------------------------------------------------------------------------------------------


@fault(pace, "survival", "law", None, layouts=("realigned", "masked", "inplace"), settings=REJECTION | CAPACITY)
def own_token_score(original: Any) -> Any:
    """Drafts are ranked by the probability of what was drawn, so likely tokens are verified more often (TETRIS)."""
    return lambda score, draft, tokens: original("own_token", draft, tokens)


@fault(Pace, "finish", "law", None, settings=REJECTION | CONFIDENCE)
def stop_and_drop(original: Any) -> Any:
    """A draft that turns out unlikely is dropped after it was drawn."""

    def finish(self: Pace, tokens: Tensor) -> list[int]:
        limits = original(self, tokens)
        own = pace.survival("own_token", torch.cat(self._seen, dim=1)[:, : tokens.shape[1]], tokens)
        sure = (own >= CONFIDENCE["drafting"].draft_threshold).sum(dim=1).tolist()
        return [min(pair) for pair in zip(limits, sure, strict=True)]

    return finish


@fault(GoodputBudget, "after", "nothing", "INV-20", settings=GOODPUT)
def argmax_budget(original: Any) -> Any:
    """The best number of drafts is sought beyond the first decline, among estimates that read the drafts to be cut."""

    def after(self: GoodputBudget, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        tokens, gains, order = float(len(lengths)), [float(len(lengths))], ranked(lengths, survival)
        for count, (estimate, _) in enumerate(order, start=1):
            tokens += estimate
            gains.append(tokens / self.seconds(count))
        chosen = [row for _, row in order[: gains.index(max(gains))]]
        return [chosen.count(row) for row in range(len(lengths))]

    return after
