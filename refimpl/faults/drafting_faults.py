"""Wrong proposals, wrong accounts of them, and budgets that know too much."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from refimpl.decoding.acceptance import Proposal
from refimpl.decoding.drafters import Drafts, HybridDrafter, proposal_tracker, states
from refimpl.decoding.drafters.proposal_tracker import ProposalTracker
from refimpl.drafting.budgets import CapacityBudget
from refimpl.drafting.budgets.base import ranked
from refimpl.faults.base import REJECTION, fault, result_changed

LOOKUP, HYBRID = {"drafter": "ngram"}, {"drafter": "hybrid"}
HEAD = {"drafter": "head"}
CAPACITY = {"draft_budget": "capacity:256"}
TILE, TILE_COST = 2, 0.02  # drafts that cost as much as one of them, over a round without drafts
THRESHOLD = 0.3
CONFIDENCE = {"draft_budget": f"confidence:{THRESHOLD}"}


@fault(Proposal, "distributions", "law", None, settings=REJECTION | LOOKUP)
@result_changed
def looked_up_with_the_q_of_a_draw(right: Any, self: Proposal, vocab_size: int) -> Tensor | None:
    """A token that was looked up is accepted, and what follows drawn, as if it had been drawn evenly."""
    return right if self.looked_up is None else torch.full_like(right, 1 / vocab_size)


@fault(HybridDrafter, "draft", "crash", "INV-6", settings=HYBRID)
@result_changed
def lookup_counts_as_passes(right: Drafts, *_: Any) -> Drafts:
    """After a round in which the draft did not run, its cached length grows as if it had."""
    return replace(right, passes=right.proposal.tokens.shape[1])


@fault(states, "behind", "acceptance", "INV-22", settings=HEAD)
def head_goes_on_behind_rejected_drafts(original: Any) -> Any:
    """The head begins with the state behind the last draft that was verified, whether it was accepted or not."""
    return lambda values, kept: values[:, -1]


# --- budgets -----------------------------------------------------------------------------------------------------


@fault(
    proposal_tracker, "survival", "law", None, layouts=("realigned", "masked", "inplace"), settings=REJECTION | CAPACITY
)
def own_token_score(original: Any) -> Any:
    """Drafts are ranked by the probability of what was drawn, so likely tokens are verified more often (TETRIS)."""
    return lambda score, draft, tokens: original("own_token", draft, tokens)


@fault(ProposalTracker, "finish", "law", None, settings=REJECTION | CONFIDENCE)
@result_changed
def stop_and_drop(right: list[int], self: ProposalTracker, tokens: Tensor) -> list[int]:
    """A draft that turns out unlikely is dropped after it was drawn."""
    own = proposal_tracker.survival("own_token", torch.cat(self._seen, dim=1)[:, : tokens.shape[1]], tokens)
    sure = (own >= THRESHOLD).sum(dim=1).tolist()
    return [min(pair) for pair in zip(right, sure, strict=True)]


@fault(CapacityBudget, "after", "nothing", "INV-20", settings=CAPACITY)
def argmax_budget(original: Any) -> Any:
    """The capacity that would give most tokens per second is sought among estimates that read the drafts to be cut."""

    def after(self: CapacityBudget, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        order = ranked(lengths, survival)
        tokens = accumulate((estimate for estimate, _ in order), initial=float(len(lengths)))
        speeds = [expected / (1 + TILE_COST * -(-count // TILE)) for count, expected in enumerate(tokens)]
        chosen = [row for _, row in order[: speeds.index(max(speeds))]]
        return [chosen.count(row) for row in range(len(lengths))]

    return after
