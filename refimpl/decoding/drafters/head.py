"""Drafting with a head on the target's hidden states: a small step a token, no K/V."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import AcceptanceRule, RowNumbers
from refimpl.decoding.cached import last_tokens
from refimpl.decoding.drafters.base import Drafts
from refimpl.decoding.drafters.model import propose
from refimpl.decoding.drafters.proposal_tracker import ProposalTracker
from refimpl.decoding.drafters.states import TargetStates
from refimpl.decoding.timing import StageTimer
from refimpl.drafting.budgets import DraftBudget
from refimpl.models.head import DraftHead


@dataclass(frozen=True, slots=True)
class HeadDrafter:
    """A draft head, with as many steps as any member can use drafts.

    A chain begins with the state behind the last token but one, and is fed the last token first. In a row's first round
    there is no state yet, and the row gets no drafts: prompts are cached in parts, and parts of them are found.

    Attributes:
        head: goes on from a state.
        states: those of the target.
        rule: chooses tokens from logits.
        vocab_size: leading logits that count.
        budget: may stop rows early, and have fewer drafts verified than were drawn.
        timer: charged with the steps.
    """

    head: DraftHead
    states: TargetStates
    rule: AcceptanceRule
    vocab_size: int
    budget: DraftBudget
    timer: StageTimer

    @property
    def cached(self) -> None:
        """Nothing."""

    def draft(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> Drafts:
        """Propose as many tokens as each member with a state can use."""
        limits = [limit if self.states.has(m) else 0 for m, limit in zip(members, limits, strict=True)]
        device = numbers.limits.device
        if not any(limits):
            return Drafts.none(len(members), device)
        tracker = ProposalTracker(self.budget, numbers.sampling or self.rule.sampling, limits)
        with self.timer.stage("draft"):
            chain = _Chain(self.head, self.vocab_size, self.states.of(members))
            proposal = propose(
                self.rule, chain.feed, last_tokens(members, 1, device), numbers.cut(limits), tracker=tracker
            )
            lengths = tracker.finish(proposal.tokens)
        return Drafts(proposal.cut(max(lengths)), lengths, [0] * len(members), 0, tracker.survival)

    def forget(self, sequence: Sequence) -> None:
        """Drop its state."""
        self.states.forget(sequence)


@dataclass
class _Chain:
    head: DraftHead
    vocab_size: int
    state: Tensor

    def feed(self, tokens: Tensor, offset: int, drafts: list[Tensor]) -> Tensor:
        self.state, logits = self.head.step(self.state, tokens)
        return logits[..., : self.vocab_size]
