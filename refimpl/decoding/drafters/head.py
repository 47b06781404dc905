"""Drafting with a head on the target's hidden states: a small step a token."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

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
from refimpl.models.head_rows import Entries, HeadRow, HeadRows, cut


@dataclass(frozen=True, slots=True)
class HeadDrafter:
    """A draft head, with as many steps as any member can use drafts.

    A chain begins with the state behind the last token but one, and is fed the last token first. In a row's first round
    there is no state yet, and the row gets no drafts.

    A head may keep K/V of the states that it has read. Those of its drafts are cut off when the row drafts again: what
    was accepted is read anew, with the states that the target has found for it.

    Attributes:
        head: goes on from states.
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
    _entries: dict[int, tuple[int, Entries]] = field(default_factory=dict)  # by sequence, with the first's position

    cached = None  # nothing that a layout holds

    def draft(self, members: Seq[Sequence], limits: list[int], numbers: RowNumbers) -> Drafts:
        """Propose as many tokens as each member with a state can use."""
        most = max(limits) if self.head.reads.most is None else self.head.reads.most
        limits = [min(limit, most) if self.states.has(m) else 0 for m, limit in zip(members, limits, strict=True)]
        device = numbers.limits.device
        if not any(limits):
            return Drafts.none(len(members), device)
        tracker = ProposalTracker(self.budget, numbers.sampling or self.rule.sampling, limits)
        with self.timer.stage("draft"):
            rows = self._rows(members)
            chain = self.head.begin(rows)

            def feed(tokens: Tensor, offset: int, drafts: list[Tensor]) -> Tensor:
                return chain.feed(tokens)[..., : self.vocab_size]

            proposal = propose(self.rule, feed, last_tokens(members, 1, device), numbers.cut(limits), tracker=tracker)
            lengths = tracker.finish(proposal.tokens)
            chain.finish()
            self._keep(members, rows)
        return Drafts(proposal.cut(max(lengths)), lengths, [0] * len(members), 0, tracker.survival)

    def forget(self, sequence: Sequence) -> None:
        """Drop its states, and what is cached of them."""
        self.states.forget(sequence)
        self._entries.pop(sequence.index, None)

    def _rows(self, members: Seq[Sequence]) -> HeadRows:
        """What each member gives to the head: new states, and entries of those before."""
        return HeadRows(
            [self._row(m, states) for m, states in zip(members, self.states.of(members), strict=True)],
            [m.seq_len for m in members],
        )

    def _row(self, member: Sequence, states: Tensor) -> HeadRow:
        first = member.seq_len - 1 - len(states)
        begin, entries = self._entries.get(member.index, (first, []))
        row = HeadRow(states, member.token_ids[first + 1 :], cut(entries, first - begin))
        self.states.check_kept(member, row.kept, first - begin)
        return row

    def _keep(self, members: Seq[Sequence], rows: HeadRows) -> None:
        for i, member in enumerate(members):
            if self.head.reads.whole and self.states.has(member):
                begin, _ = self._entries.get(member.index, (member.seq_len - 1 - rows.num_new(i), []))
                self._entries[member.index] = begin, rows.entries(i)
