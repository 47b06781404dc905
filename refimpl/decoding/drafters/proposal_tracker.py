"""Estimates of how many drafts will be accepted, made while they are drawn."""

from collections.abc import Sequence as Seq

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.decoding.acceptance import Proposal
from refimpl.decoding.sampling import Sampling, probabilities, warmed
from refimpl.drafting.budgets import DraftBudget, Score


def survival(
    score: Score, draft: Float[Tensor, "batch n vocab"], tokens: Int[Tensor, "batch n"]
) -> Float[Tensor, "batch n"]:
    """Estimate, for each draft, how likely it and all before it are accepted.

    Args:
        score: see `DraftBudget`.
        draft: distributions that the tokens were drawn from.
        tokens: the drafts. Only ``own_token`` reads a draft for its own estimate.
    """
    if score == "confidence":
        return draft.amax(dim=-1).cumprod(dim=1)
    own = draft.gather(-1, tokens[..., None])[..., 0].cumprod(dim=1)
    if score == "own_token":
        return own
    before = torch.cat([torch.ones_like(own[:, :1]), own[:, :-1]], dim=1)
    return before * draft.square().sum(dim=-1)


class ProposalTracker:
    """Follows a proposal as it grows, and says when a budget stops it.

    Args:
        budget: reads the estimates.
        sampling: shape of the distribution that drafts are drawn from; at temperature 0 the estimates are those of
            temperature 1.
        limits: drafts that each row can use.
    """

    def __init__(self, budget: DraftBudget, sampling: Sampling, limits: Seq[int]):
        self._budget, self._limits = budget, list(limits)
        self._shape = warmed(sampling)
        self._seen: list[Tensor] = []  # distributions ``[batch, 1, vocab]``
        self.passes = 0  # of the draft
        self.survival: list[list[float]] = []  # estimates for each row's drafts, once all are drawn

    def note_pass(self, logits: Float[Tensor, "batch 1 vocab"], steps: Seq[Proposal]) -> bool:
        """Take in the logits of a pass; say whether any row gets the draft after `steps` that they are for."""
        self.passes += 1
        if self._budget.score is None:
            return True
        self._seen.append(probabilities(logits, self._shape))
        if self._budget.stops:
            self._ask(steps, torch.zeros_like(logits[..., 0], dtype=torch.long))
        return max(self._limits) > len(steps)

    def _ask(self, steps: Seq[Proposal], unread: Int[Tensor, "batch 1"]) -> None:
        """Stop rows before the next draft, which is not drawn yet: any token stands in for it."""
        assert self._budget.score
        tokens, drawn = torch.cat([*(step.tokens for step in steps), unread], dim=1), len(steps)
        estimates = survival(self._budget.score, torch.cat(self._seen, dim=1), tokens)
        for row, goes in enumerate(self._budget.go_on(estimates[:, -1].tolist())):
            self._limits[row] = self._limits[row] if goes else min(self._limits[row], drawn)

    def finish(self, tokens: Int[Tensor, "batch k"]) -> list[int]:
        """Drafts of each row to verify."""
        if self._budget.score is None:
            return self._limits
        draft = torch.cat(self._seen, dim=1)[:, : tokens.shape[1]]
        if tokens.shape[1]:
            self.survival = survival(self._budget.score, draft, tokens).tolist()
        return self._budget.after(self._limits, self.survival or [[]] * len(tokens))
