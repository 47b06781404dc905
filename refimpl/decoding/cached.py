"""A model together with the layout that holds its K/V."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding.fed import FedTokens
from refimpl.decoding.invariants import Checker, check_draft_lag, check_target_lag, num_fed
from refimpl.decoding.timing import StageTimer
from refimpl.layouts import Layout
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.states import PassStates, StateStore
from refimpl.layouts.store import Block, NoteHidden, RowState
from refimpl.models.adapter import CausalLM, ForwardPacked
from refimpl.placement import pays_to_pack

Listener = Callable[[Block | PackedBlock, Seq[RowState], int, int], NoteHidden]


@dataclass
class CachedModel:
    """A model and the layout that holds its K/V.

    Attributes:
        model: computes.
        layout: stores.
        role: says which of a sequence's cached lengths is meant.
        timer: charged with what `begin` moves, as ``realign``.
        window: tokens a row of every verify pass, where passes have fixed shapes; else None.
        states: recurrent states of all rows; None for a model without any.
        heard_by: makes what reads the hidden states of a block of prompts, of these rows' tokens in [start, stop); None
            where nobody asks.
    """

    model: CausalLM
    layout: Layout
    role: Literal["target", "draft"]
    timer: StageTimer
    window: int | None
    states: StateStore | None = None
    heard_by: Listener | None = field(default=None, init=False)

    def begin(self, members: Seq[Sequence], span: int) -> None:
        """Make the members ready for passes that feed `span` tokens a row, all together."""
        rows = self.rows(members)
        with self.timer.stage("realign"):
            self.layout.begin(rows, span)
        if self.states:
            self.states.begin(rows)

    def block(self, tokens: Int[Tensor, "batch q"], offset: int, drafts: Seq[Tensor]) -> Block:
        """The next block of the round; `drafts` are the tokens ``[batch, n]`` proposed so far, in order.

        What is fed behind them fills a fixed window, and is arbitrary.
        """
        block = self.layout.with_pooled(self.layout.block(tokens, offset), offset)
        return replace(block, states=self.states.of_pass()) if self.states else block

    def feed_prompts(self, rows: Seq[RowState], tokens: Int[Tensor, "rows q"], start: int) -> None:
        """Cache positions [start, start + q) of prompts in one pass, which a recurrent layer takes in as a whole."""
        block = self.layout.prefill_block(rows, tokens, start)
        if self.heard_by:
            block = replace(block, note_hidden=self.heard_by(block, rows, start, start + tokens.shape[1]))
        if self.states is None:
            self.forward(block, 1)
            return
        count = tokens.shape[1]
        states = PassStates(self.states, [row.slot for row in rows], step=count)
        self.forward(replace(block, states=states), 1)
        states.commit([count] * len(rows))

    def packed_prompts(self, rows: Seq[RowState], tokens: Int[Tensor, "rows q"], start: int) -> PackedBlock:
        """A packed block that caches positions [start, start + q) of prompts."""
        block = self.layout.packed_prefill(rows, tokens, start)
        if self.heard_by is None:
            return block
        return replace(block, note_hidden=self.heard_by(block, rows, start, start + tokens.shape[1]))

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block of the layout; logits of the members' rows."""
        return block.rows_of_members(self.model.forward(block, num_logits))

    @property
    def forward_packed(self) -> ForwardPacked | None:
        """Runs packed blocks; None where passes are rectangles, as their shape is fixed or the model knows no other."""
        return self.model.forward_packed if self.layout.block_rows is None else None

    def forward_rows(
        self, block: Block, counts: Seq[int], beside: Seq[PackedBlock] = ()
    ) -> Float[Tensor, "batch q vocab"]:
        """Run a block whose row i feeds its first `counts[i]` tokens; the logits after them are arbitrary.

        Pads are left out where that saves enough, and where prompts are cached in the same pass (`beside`).
        """
        q, forward = block.tokens.shape[1], self.forward_packed
        if forward is None or not (beside or pays_to_pack(counts, q)):
            return self.forward(block, q)
        rows = PackedBlock.of_rows(block, counts)
        logits = forward(PackedBlock.join([*beside, rows]) if beside else rows, sum(counts))
        assert rows.rectangle is not None
        index = rows.rectangle.index
        return logits.index_select(0, index.flatten()).unflatten(0, index.shape)

    def num_cached(self, sequence: Sequence) -> int:
        """Leading tokens of the sequence whose K/V this model holds."""
        return sequence.target_cached if self.role == "target" else sequence.draft_cached or 0

    def feeds(self, sequence: Sequence) -> bool:
        """Whether this model is fed the sequence at all; a draft is not once its context is full."""
        return self.role == "target" or not sequence.outgrew_draft

    def note_cached(self, sequence: Sequence, count: int) -> None:
        """Write that number down, after a prefill; with 0, a row begins."""
        if self.states and count == 0:
            self.states.clear(sequence.slot, sequence.index)
        if self.role == "target":
            sequence.target_cached = count
        else:
            sequence.draft_cached = count

    def commit(self, members: Seq[Sequence]) -> None:
        """Keep what counts as cached, forget the rest of the round."""
        self.layout.commit([self.num_cached(m) for m in members])
        if self.states:
            self.states.commit(self.rows(members))

    def rows(self, members: Seq[Sequence]) -> list[RowState]:
        """Host integers that the layout works on."""
        return [RowState(m.slot, m.index, m.seq_len, self.num_cached(m), m.finished, m.blocks) for m in members]


def last_tokens(members: Seq[Sequence], n: int, device: torch.device) -> Int[Tensor, "batch n"]:
    """Last n tokens of every row; rows that are shorter are padded on the left with token 0."""
    return torch.tensor([[0] * (n - m.seq_len) + m.token_ids[-n:] for m in members], dtype=torch.long, device=device)


@dataclass
class CheckedModel(CachedModel):
    """Checks what the layout makes of the members' integers, before anything is computed from it.

    Attributes:
        checker: knows the level.
    """

    checker: Checker = field(kw_only=True)
    _members: Seq[Sequence] = field(default=(), init=False)
    _fed: FedTokens = field(init=False)

    def __post_init__(self) -> None:
        self._fed = FedTokens("INV-5" if self.role == "target" else "INV-6")

    def begin(self, members: Seq[Sequence], span: int) -> None:
        """As every cached model; then lengths, pads and K/V are checked."""
        super().begin(members, span)
        self._members = members
        if span == 0:  # recorded
            self._fed.unseen(members)
        self.checker.after_begin(members, self.layout, self.model)
        if self.states:
            self.checker.of_states(members, [self.num_cached(m) for m in members], self.states, self.model)

    def block(self, tokens: Int[Tensor, "batch q"], offset: int, drafts: Seq[Tensor]) -> Block:
        """As every cached model; then positions, mask and provenance are checked."""
        block = super().block(tokens, offset, drafts)
        self._fed.feed(self._members, offset, num_fed(tokens.shape[1], offset, drafts))
        self.checker.before_forward(block, self._members, offset, drafts, self.layout)
        return block

    def note_cached(self, sequence: Sequence, count: int) -> None:
        """As every cached model; so many tokens were fed."""
        super().note_cached(sequence, count)
        self.checker.writers[sequence.index] = sequence
        self._fed.prefilled(sequence, count)

    def commit(self, members: Seq[Sequence]) -> None:
        """As every cached model; what counts as cached is compared with what was fed."""
        super().commit(members)
        check = check_target_lag if self.role == "target" else check_draft_lag
        for m in (m for m in members if not m.finished):
            check(m, self._fed.settle(m, self.num_cached(m)))
