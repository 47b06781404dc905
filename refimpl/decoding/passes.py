"""The forward passes of a round: one protocol, and the two steps that every way of running them shares."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import AcceptanceRule, Decision, Proposal, RowNumbers
from refimpl.decoding.cached import CachedModel, last_tokens
from refimpl.decoding.drafters import Drafter, Drafts, Feed
from refimpl.decoding.prefill import Chunks, note_chunks, packed_chunks
from refimpl.decoding.processors import Processors
from refimpl.decoding.sampling import RowKeys, sampling_of
from refimpl.drafting.budgets import DraftBudget


@dataclass(frozen=True, slots=True)
class Verified:
    """What the passes of a round have found.

    Attributes:
        k: drafts of the batch.
        rows: row of the decision that belongs to each member.
        decision: on the device, for all rows.
        logits: of the target, that it was made from.
        drafts: what it was made on.
    """

    k: int
    rows: list[int]
    decision: Decision
    logits: Float[Tensor, "any k1 vocab"]
    drafts: Drafts


@runtime_checkable
class Passes(Protocol):
    """Runs a round's forward passes, from the members' lengths to a decision."""

    def run(self, members: Seq[Sequence], limits: list[int], chunks: Chunks = ()) -> Verified:
        """Draft, verify and decide; `limits` are the drafts that each member can use, at most.

        The verify pass also caches chunks of prompts, for a target that runs packed blocks.
        """

    def after(self, ahead: Seq[Sequence]) -> None:
        """Give the device work that may be done while the host commits the round.

        `ahead` are rows that have no part in this round and run in the next.
        """


def verify(
    rule: AcceptanceRule, feed: Feed, last: Int[Tensor, "batch 1"], proposal: Proposal, numbers: RowNumbers
) -> tuple[Decision, Float[Tensor, "batch k1 vocab"]]:
    """Run the target on the last committed token and the drafts; its logits choose k+1 tokens a row."""
    logits = feed(torch.cat([last, proposal.tokens], dim=1), -1, [proposal.tokens])
    processed, done = numbers.processed(logits, [proposal.tokens]), replace(numbers, processors=None)
    return rule.shaped(numbers.sampling).decide(proposal, processed, done), logits


@dataclass(frozen=True, slots=True)
class EagerPasses:
    """Passes that are launched one by one, in any layout.

    Attributes:
        target: model and layout.
        drafter: proposes.
        rule: decides.
        vocab_size: leading logits that count.
        budget: drafts that are asked for.
        processors: of the rows' logits.
        window: tokens a row of every verify pass; None for as many as the round needs.
    """

    target: CachedModel
    drafter: Drafter
    rule: AcceptanceRule
    vocab_size: int
    budget: DraftBudget
    processors: Processors
    window: int | None = None

    def run(self, members: Seq[Sequence], limits: list[int], chunks: Chunks = ()) -> Verified:
        """As wide as the member that is offered most drafts."""
        return self.verify(members, *self.draft(members, limits), chunks)

    def draft(self, members: Seq[Sequence], limits: list[int]) -> tuple[Drafts, RowNumbers]:
        """What each member is offered, and the numbers of a round that verifies it."""
        limits = self.budgeted(members, limits)
        numbers = self._row_numbers(members, limits)
        drafts = self.drafter.draft(members, limits, numbers)
        return drafts, numbers if drafts.lengths == limits else numbers.cut(drafts.lengths)

    def verify(self, members: Seq[Sequence], drafts: Drafts, numbers: RowNumbers, chunks: Chunks) -> Verified:
        """Run the target on what was offered, and decide; row i feeds its drafts and the token before them."""
        counts = [0 if m.finished else n + 1 for m, n in zip(members, drafts.lengths, strict=True)]
        self.target.begin(members, span=self.window or numbers.position.shape[1])
        with self.target.timer.stage("verify"):
            beside = packed_chunks(self.target, chunks)
            note_chunks(self.target, chunks)  # behind them, in the same pass, come the tokens of members among them

            def feed(tokens: Tensor, offset: int, drafts: list[Tensor]) -> Tensor:
                count, window = tokens.shape[1], self.window or tokens.shape[1]
                block = self.target.block(pad(tokens, (0, window - count)), offset, drafts)
                if self.drafter.states:
                    block = self.drafter.states.listen(block, members)
                return self.target.forward_rows(block, counts, beside)[:, :count, : self.vocab_size]

            last = last_tokens(members, 1, numbers.limits.device)
            decision, logits = verify(self.rule, feed, last, drafts.proposal, numbers)
        return Verified(max(drafts.lengths), list(range(len(members))), decision, logits, drafts)

    def _row_numbers(self, members: Seq[Sequence], limits: list[int]) -> RowNumbers:
        table = [[m.seed, m.sequence_id, m.seq_len, limit] for m, limit in zip(members, limits, strict=True)]
        device = self.target.layout.shape.device
        seed, sequence, seq_len, limit = torch.tensor(table, dtype=torch.long, device=device).unbind(dim=1)
        position = seq_len[:, None] + torch.arange(max(limits) + 1, device=device)
        keys = RowKeys(seed, sequence, seq_len if self.fresh else None)
        sampling = sampling_of([m.sampling for m in members], self.rule.sampling, device)
        return RowNumbers(keys, position, limit, sampling, self.processors.of(members, limits))

    @property
    def fresh(self) -> bool:
        """Whether every round needs numbers of its own.

        After a rejection the positions behind it are drafted again. With the same numbers that is harmless, unless
        other rows have learnt from the first draft, as they do from a budget that all share, or the decision has.
        """
        return self.rule.fresh_numbers or (self.budget.shares and not self.rule.keeps_tokens)

    def budgeted(self, members: Seq[Sequence], limits: list[int]) -> list[int]:
        """Drafts to ask for, of each member; none of one that has finished."""
        wanted = iter(self.budget.before([m for m in members if not m.finished]))
        return [0 if m.finished else min(limit, next(wanted)) for m, limit in zip(members, limits, strict=True)]

    def after(self, ahead: Seq[Sequence]) -> None:
        """Nothing is launched before the host knows what comes next."""
