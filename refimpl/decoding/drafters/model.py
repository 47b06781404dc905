"""Drafting with a model: one pass a token."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import AcceptanceRule, Proposal, RowNumbers
from refimpl.decoding.cached import CachedModel, last_tokens
from refimpl.decoding.drafters.base import Drafts
from refimpl.decoding.drafters.proposal_tracker import ProposalTracker
from refimpl.decoding.prefill import catch_up
from refimpl.drafting.budgets import DraftBudget

Feed = Callable[[Tensor, int, list[Tensor]], Tensor]  # tokens, their offset from seq_len, drafts so far -> logits


def propose(
    rule: AcceptanceRule,
    feed: Feed,
    tail: Int[Tensor, "batch lag"],
    numbers: RowNumbers,
    given: Int[Tensor, "batch k"] | None = None,
    tracker: ProposalTracker | None = None,
) -> Proposal:
    """Let the draft propose k tokens a row, or fewer where `tracker` stops it.

    The first pass feeds `tail`, the tokens that the draft has not cached; each later one the token just proposed.
    Tokens that are `given` take the place of the draft's own, unless they are -1.
    """
    steps: list[Proposal] = []
    rule = rule.shaped(numbers.sampling)
    tokens, offset = tail, -tail.shape[1]
    for step in range(numbers.position.shape[1] - 1):
        drafts = [s.tokens for s in steps]
        logits = numbers.processed(feed(tokens, offset, drafts), drafts)
        if tracker and not tracker.note_pass(logits, steps):
            break
        drawn = rule.propose(logits, numbers.keys, numbers.position[:, step : step + 1])
        steps.append(drawn if given is None else drawn.overruled(given[:, step : step + 1]))
        tokens, offset = steps[-1].tokens, step
    return Proposal.join(steps) if steps else Proposal(tail[:, :0])


@dataclass(frozen=True, slots=True)
class ModelDrafter:
    """The draft of the pair, with as many passes as any member can use drafts.

    One with recurrent states runs a pass more, which feeds the last draft. So all rows begin with lag 1: a token that
    is fed again for the sake of rows with lag 2 would enter a state twice.

    Attributes:
        cached: the draft and its layout.
        rule: chooses tokens from logits.
        vocab_size: leading logits that count.
        budget: may stop rows early, and have fewer drafts verified than were drawn.
    """

    cached: CachedModel
    rule: AcceptanceRule
    vocab_size: int
    budget: DraftBudget

    states = None

    def draft(
        self,
        members: Seq[Sequence],
        limits: list[int],
        numbers: RowNumbers,
        given: Int[Tensor, "batch k"] | None = None,
    ) -> Drafts:
        """Propose as many tokens as each member can use."""
        k, device = max(limits), numbers.limits.device
        if k == 0:
            return Drafts.none(len(members), device)
        fed = [i for i, m in enumerate(members) if self.cached.feeds(m)]
        if len(fed) < len(members):
            some = None if given is None else given[fed]
            drafts = self.draft([members[i] for i in fed], [limits[i] for i in fed], numbers.rows(fed), some)
            return drafts.spread(fed, len(members))
        with self.cached.timer.stage("draft"):
            caught_up = catch_up(self.cached, members)
        lag = max(m.draft_lag for m in members if not m.finished)
        self.cached.begin(members, span=lag + k - 1 + self._passes_more)
        tracker = ProposalTracker(self.budget, numbers.sampling or self.rule.sampling, limits)
        with self.cached.timer.stage("draft"):
            proposal = propose(self.rule, self._feed, last_tokens(members, lag, device), numbers, given, tracker)
            lengths, drawn = tracker.finish(proposal.tokens), proposal.tokens.shape[1]
            more = self._passes_more if tracker.passes == drawn else 0  # a budget stops behind a pass without a draft
            if more:
                self._feed(proposal.tokens[:, -1:], drawn - 1, list(proposal.tokens.split(1, dim=1)))
        offered, passes = proposal.cut(max(lengths)), tracker.passes + more
        return Drafts(offered, lengths, [0] * len(members), passes, tracker.survival, caught_up)

    @property
    def _passes_more(self) -> int:
        return 1 if self.cached.states else 0

    def forget(self, sequence: Sequence) -> None:
        """Only K/V are stored, and they are the layout's."""

    def _feed(self, tokens: Tensor, offset: int, drafts: list[Tensor]) -> Tensor:
        return self.cached.forward(self.cached.block(tokens, offset, drafts), 1)[..., : self.vocab_size]
