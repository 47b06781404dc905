"""The invariant register as run-time checks: one function each, raised as `InvariantViolation`.

| level  | what is checked                                                                               |
|--------|-----------------------------------------------------------------------------------------------|
| off    | nothing but what others assert at every level: the scheduler INV-10 and INV-16, the pool of   |
|        | blocks INV-13, the records of a round that a drawn token had mass (INV-12)                    |
| host   | integer facts: INV-1, INV-5 … INV-9, INV-11, INV-14 … INV-19, INV-21, INV-26; counts of INV-20 |
| device | also every block before its forward pass: positions, mask, provenance (INV-2, INV-3, INV-4,   |
|        | INV-18); keys of random numbers (INV-12); what a budget may look at (INV-20); states of heads |
|        | (INV-22); texts that logits are processed with (INV-23), and grammars' matchers (INV-25);      |
|        | states of recurrent layers (INV-24)                                                           |
| oracle | also every row's K/V and state against a fresh forward pass over the row (INV-4, INV-24)      |
"""

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from refimpl.core.config import CHECK_LEVELS, CheckLevel
from refimpl.core.invariants import require_invariant
from refimpl.core.records import RowOutcome
from refimpl.core.sequence import MOST_LAG, Sequence
from refimpl.layouts import Layout
from refimpl.layouts.spans import FULL, Span
from refimpl.layouts.states import StateStore
from refimpl.layouts.store import Block
from refimpl.scheduling import RoundPlan, Scheduler

FLOAT32_TOLERANCE = 1e-3  # of what is float32 in any format, as states; sums of one token and of many differ by that


class Checker:
    """Runs the checks of a level at the places where state can go wrong.

    Attributes:
        writers: every sequence that has cached tokens, by index; others may read them after it has finished.
    """

    def __init__(self, level: CheckLevel):
        self.level = level
        self.writers: dict[int, Sequence] = {}
        self._rank = CHECK_LEVELS.index(level)

    def covers(self, level: CheckLevel) -> bool:
        """Whether checks of `level` are on."""
        return self._rank >= CHECK_LEVELS.index(level)

    def before_round(self, plan: RoundPlan[Sequence], scheduler: Scheduler[Sequence]) -> None:
        """Check the choice of members, and all who wait."""
        if self.covers("host"):
            scheduler.pool.check_conservation()
            for sequence in scheduler.pool.waiting:
                check_preempted(sequence)
            check_members(plan)
            check_group(plan)
            scheduler.allocator.check_round([*plan.rows, *(chunk.sequence for chunk in plan.chunks)])
            check_token_budget(plan, scheduler)

    def after_round(self, scheduler: Scheduler[Sequence], layouts: Seq[Layout]) -> None:
        """Check what the sequences keep between rounds."""
        if self.covers("host"):
            residents = scheduler.pool.window.values()
            scheduler.allocator.check(residents, scheduler.ahead)
            for sequence in residents:
                check_freed(sequence, layouts)

    def after_begin(self, members: Seq[Sequence], layout: Layout, model: Any) -> None:
        """Check that the layout works on the members' own lengths and, against fresh passes, on their own K/V."""
        if self.covers("host"):
            check_rectangle(layout)
            check_layout_lengths(members, layout)
        if self.covers("oracle") and layout.shape.num_layers:
            for i, sequence in enumerate(members):
                if not sequence.finished:
                    check_kv(sequence, layout.read(i), model, layout.num_freed(sequence.blocks))

    def of_states(self, members: Seq[Sequence], counts: Seq[int], states: StateStore, model: Any) -> None:
        """Check the recurrent states that rows begin a round with, behind `counts[i]` tokens of row i."""
        live = [(m, count) for m, count in zip(members, counts, strict=True) if not m.finished]
        if self.covers("device"):
            for sequence, count in live:
                check_state_tag(sequence, count, states)
        if self.covers("oracle"):
            for sequence, count in live:
                check_state(sequence, count, states, model)

    def before_forward(
        self, block: Block, members: Seq[Sequence], offset: int, drafts: Seq[Tensor], layout: Layout
    ) -> None:
        """Check that it has room and, once its provenance is written, what it sees."""
        if self.covers("host") and layout.block_size:
            check_reservation(members, offset + num_fed(block.tokens.shape[1], offset, drafts), layout.block_size)
        if self.covers("device"):
            spans = set(layout.shape.spans) or {FULL}
            check_block(block.of_members(), members, offset, drafts, layout.block_size, layout.max_positions, spans)
            freed = [layout.num_freed(m.blocks) for m in members]
            check_shared(block.of_members(), members, freed, self.writers)

    def after_commit(self, members: Seq[Sequence], records: Seq[RowOutcome]) -> None:
        """Check lengths, budget and stops of the rows that ran."""
        if self.covers("host"):
            by_index = {m.index: m for m in members}
            for record in records:
                sequence = by_index[record.sequence]
                check_budget_and_stop(sequence, record.kept)
                check_growth(sequence, record)
                check_counts(sequence)


def check_rectangle(layout: Layout) -> None:
    """INV-1."""
    for i, (row, pads) in enumerate(zip(layout.rows, layout.num_pad or [], strict=False)):
        if not row.finished:
            require_invariant(
                pads + row.seq_len == layout.width and pads >= 0,
                "INV-1",
                row=i,
                expected=f"num_pad + seq_len = width {layout.width}",
                found=f"{pads} + {row.seq_len}",
            )


def check_layout_lengths(members: Seq[Sequence], layout: Layout) -> None:
    """INV-8: the layout works on the sequences' own integers."""
    for i, (sequence, row) in enumerate(zip(members, layout.rows, strict=True)):
        require_invariant(
            (row.sequence, row.slot, row.seq_len) == (sequence.index, sequence.slot, sequence.seq_len),
            "INV-8",
            row=i,
            expected=f"sequence {sequence.index}, slot {sequence.slot}, seq_len {sequence.seq_len}",
            found=f"sequence {row.sequence}, slot {row.slot}, seq_len {row.seq_len}",
        )


def check_growth(sequence: Sequence, record: RowOutcome) -> None:
    """INV-8: a row grows by what the round says, regardless of its tokens."""
    require_invariant(
        sequence.seq_len == record.seq_len + record.kept and record.kept >= 1,
        "INV-8",
        row=sequence.index,
        expected=f"{record.seq_len} + {record.kept} tokens, at least one of them new",
        found=sequence.seq_len,
    )


def check_target_lag(sequence: Sequence, fed: int) -> None:
    """INV-5: all tokens but the last were fed, and count as cached."""
    want = sequence.seq_len - 1
    require_invariant(
        (fed, sequence.target_cached) == (want, want),
        "INV-5",
        row=sequence.index,
        expected=f"{want} tokens fed and counted",
        found=f"{fed} fed, {sequence.target_cached} counted",
    )


def check_draft_lag(sequence: Sequence, fed: int) -> None:
    """INV-6: what counts as cached is what was fed of the committed text; that is all but one token, or all but two."""
    require_invariant(
        sequence.draft_cached == fed and 1 <= sequence.draft_lag <= MOST_LAG,
        "INV-6",
        row=sequence.index,
        expected=f"{fed} tokens fed and counted, lag 1 or 2",
        found=f"{sequence.draft_cached} counted, lag {sequence.draft_lag}",
    )


def check_counts(sequence: Sequence) -> None:
    """INV-20: a budget may know how many drafts were decided on at committed positions, where there is one each."""
    counts = (sequence.num_accepted, sequence.num_evaluated, sequence.num_generated)
    require_invariant(
        counts[0] <= counts[1] <= counts[2],
        "INV-20",
        row=sequence.index,
        expected="accepted ≤ evaluated ≤ generated",
        found=" ≤ ".join(map(str, counts)),
    )


def check_budget_and_stop(sequence: Sequence, kept: int) -> None:
    """INV-7, on the tokens of the round; the last of them may be a stop token."""
    require_invariant(
        sequence.num_generated <= sequence.max_new_tokens,
        "INV-7",
        row=sequence.index,
        expected=f"at most {sequence.max_new_tokens} tokens",
        found=sequence.num_generated,
    )
    new = sequence.generated[-kept:]
    stops = [token for token in new if token in sequence.stop_token_ids]
    ends = sequence.stop_reason == "stop"
    require_invariant(
        not stops or (len(stops) == 1 and stops[0] == new[-1] and ends),
        "INV-7",
        row=sequence.index,
        expected="a stop token only as the last one",
        found=new,
    )


def check_members(plan: RoundPlan[Sequence]) -> None:
    """INV-9: no sequence runs twice in a round."""
    tickets = [m.ticket for m in plan.members]
    require_invariant(len(set(tickets)) == len(tickets), "INV-9", row=None, expected="distinct members", found=tickets)


def check_preempted(sequence: Sequence) -> None:
    """INV-19: waiting sequences have no K/V and no place for them."""
    cached = sequence.target_cached, sequence.draft_cached or 0
    found = *cached, sequence.num_prefix_hits, len(sequence.blocks), sequence.slot
    if found != (0, 0, 0, 0, -1):  # asked of all who wait, in every round: the text is made where it is needed
        expected = "nothing cached or found, no blocks, no slot"
        shown = "{} and {} tokens cached, {} found, {} blocks, slot {}".format(*found)
        require_invariant(False, "INV-19", row=sequence.index, expected=expected, found=shown)


def check_reservation(members: Seq[Sequence], end: int, block_size: int) -> None:
    """INV-16, for a block that feeds positions below seq_len + `end`."""
    for m in (m for m in members if not m.finished):
        need, have = min(m.seq_len + end, m.most_tokens), len(m.blocks) * block_size
        require_invariant(need <= have, "INV-16", row=m.index, expected=f"blocks for {need} tokens", found=have)


def check_group(plan: RoundPlan[Sequence]) -> None:
    """INV-11."""
    if plan.mode == "grouped":
        states = {(m.seq_len, m.cache_state) for m in plan.members}
        require_invariant(
            len(states) == 1, "INV-11", row=None, expected="one (seq_len, cache state)", found=sorted(states)
        )


def check_token_budget(plan: RoundPlan[Sequence], scheduler: Scheduler[Sequence]) -> None:
    """INV-17, for a scheduler with a budget; rows that decode in the round of their last chunk come last."""
    if scheduler.token_budget is None:
        return
    residents = list(scheduler.pool.window.values())
    tokens = sum(m.draft_limit + 1 for m in plan.members) + sum(chunk.count for chunk in plan.chunks)
    within = f"1 to {scheduler.token_budget} tokens"
    require_invariant(1 <= tokens <= scheduler.token_budget, "INV-17", row=None, expected=within, found=tokens)
    decoding, running = ([s.index for s in some] for some in ([s for s in residents if not s.to_prefill], plan.members))
    last = [chunk.sequence.index for chunk in plan.chunks if chunk.count == chunk.sequence.to_prefill]
    joining = [i for i in running[len(decoding) :] if i in last and scheduler.joint_prefill]
    require_invariant(
        running == decoding + joining, "INV-17", row=None, expected=f"rows {decoding + joining}", found=running
    )
    first, chunks = [s.index for s in residents if s.to_prefill][:1], [chunk.sequence.index for chunk in plan.chunks]
    require_invariant(chunks[:1] == first, "INV-17", row=None, expected=f"a chunk of {first}", found=chunks)


def check_block(
    block: Block,
    members: Seq[Sequence],
    offset: int,
    drafts: Seq[Tensor],
    block_size: int = 0,
    context: int | float = math.inf,
    spans: Iterable[Span] = (FULL,),
) -> None:
    """INV-2, INV-3 and INV-4 of one block, from the provenance of its slots, for layers that look back so far.

    `drafts` are the tokens proposed so far in this round, in order. Pads behind them, which fill a fixed window, are
    checked, too, as far as a row has a place for them.
    """
    fed = num_fed(block.tokens.shape[1], offset, drafts)
    drafts = [*drafts, block.tokens[:, fed:]]
    table = _token_table(members, drafts, block.tokens.device)
    live = torch.tensor([not m.finished for m in members], device=table.device)
    expected = torch.tensor([[m.seq_len] for m in members], device=table.device) + torch.arange(
        offset, offset + block.tokens.shape[1], device=table.device
    )
    lengths = [min(m.most_tokens, context) for m in members]
    places = [min(n, len(m.blocks) * block_size) if block_size else n for n, m in zip(lengths, members, strict=True)]
    limit = torch.tensor(places, device=table.device)[:, None]
    real = (expected >= 0) & (expected < limit) & live[:, None]
    check_positions(block, expected, real)
    for span in spans:
        check_visibility(block, members, expected, real, table, span)


def num_fed(width: int, offset: int, drafts: Seq[Tensor]) -> int:
    """Tokens a row of a block that is `width` wide, without those behind the last draft, which fill a fixed window."""
    return min(width, sum(d.shape[1] for d in drafts) - offset)


def check_positions(block: Block, expected: Int[Tensor, "batch q"], real: Tensor) -> None:
    """INV-2, for the queries that matter; a pad's position is arbitrary."""
    wrong = real & (block.position_ids != expected)
    if wrong.any():
        row, at = wrong.nonzero()[0].tolist()
        require_invariant(
            False, "INV-2", row=row, expected=int(expected[row, at]), found=int(block.position_ids[row, at])
        )


def check_visibility(
    block: Block,
    members: Seq[Sequence],
    expected: Int[Tensor, "batch q"],
    real: Tensor,
    table: Int[Tensor, "batch n"],
    span: Span = FULL,
) -> None:
    """INV-3 and INV-4: position by position, each query sees one slot, of its own row, with the right token.

    What windows and chunks hide is counted here from the query's own position, apart from what makes masks.
    """
    assert block.tags is not None
    sequence, position, token = block.tags.unbind(dim=-1)
    owner, found = torch.tensor([[[m.index], [m.num_prefix_hits]] for m in members], device=table.device).unbind(dim=1)
    visible = block.seen_by(span)[:, 0] & real[..., None]
    of_others = (sequence != owner) & ((position < 0) | (position >= found))
    foreign = visible & (of_others[:, None] | (position[:, None] > expected[..., None]))
    _report(foreign, "INV-3", expected, "no slot of another row or of a later position", block.tags)
    position = position.clamp(0, table.shape[1] - 1)
    seen = torch.zeros(*expected.shape, table.shape[1], dtype=torch.long, device=table.device)
    seen.scatter_add_(2, position[:, None].expand(visible.shape), visible.long())
    first = _first_visible(expected, span)
    every = torch.arange(table.shape[1], device=table.device)
    wanted = (every <= expected[..., None]) & (every >= first[..., None])
    miscounted = real[..., None] & (seen != wanted.long())
    if miscounted.any():
        row, at, where = miscounted.nonzero()[0].tolist()
        require_invariant(
            False,
            "INV-3",
            row=row,
            expected=f"query at position {int(expected[row, at])} sees position {where} {int(wanted[row, at, where])}×",
            found=f"{int(seen[row, at, where])}×",
        )
    stale = visible & (token != table.gather(1, position))[:, None]
    _report(stale, "INV-4", expected, "the row's own token at that position", block.tags)


def check_shared(block: Block, members: Seq[Sequence], freed: Seq[int], writers: Mapping[int, Sequence]) -> None:
    """INV-18: what a row has found, and not freed, was cached behind the row's own tokens, all of them.

    Tags name who has written each slot, and its text is compared, so that nothing is taken from the prefix cache. The
    first columns of a row are its first positions wherever blocks can be shared.
    """
    assert block.tags is not None
    for row, member in enumerate(members):
        found = [] if member.finished else block.tags[row, freed[row] : member.num_prefix_hits].tolist()
        for writer, last in {writer: position for writer, position, _ in found}.items():
            own, behind = member.token_ids[: last + 1], writers[writer].token_ids[: last + 1]
            told = f"position {last} of sequence {writer}, cached behind {behind[:-1]}"
            require_invariant(own == behind, "INV-18", row=row, expected=own, found=told)


def check_kv(sequence: Sequence, found: Tensor, model: Any, freed: int = 0) -> None:
    """INV-4 numerically: K/V of a row's cached tokens, those that it has not freed, against a fresh forward pass."""
    num_cached = found.shape[3]
    if num_cached <= freed:
        return
    found, fresh = found[:, :, :, freed:], model.fresh_kv(sequence.token_ids[:num_cached])[:, :, :, freed:]
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-3}.get(found.dtype, 0.25)
    if model.kv_shape.states or model.kv_shape.float32_softmax:
        tolerance = max(tolerance, FLOAT32_TOLERANCE)
    error = float((found - fresh).abs().max() / fresh.abs().max().clamp(min=1))
    require_invariant(
        error <= tolerance, "INV-4", row=sequence.index, expected=f"K/V within {tolerance}", found=f"{error:.3g} off"
    )


def check_freed(sequence: Sequence, layouts: Seq[Layout]) -> None:
    """INV-26: the earliest query that may still come sees nothing of what was given back, so no later one does.

    It is behind what every model has cached, or at one of the last tokens, which may be fed again.
    """
    query = min(sequence.cached_by_all, sequence.seq_len - MOST_LAG)
    for layout in layouts:
        if freed := layout.num_freed(sequence.blocks):
            first = min(_first_visible(query, span) for span in layout.shape.spans or (FULL,))
            seen = f"all that the query at position {query} sees, from {first} on"
            require_invariant(
                freed <= first, "INV-26", row=sequence.index, expected=seen, found=f"{freed} positions given back"
            )


def _first_visible(query: Any, span: Span) -> Any:
    """First position that a query, or each of several, sees in its row."""
    return {"full": query * 0, "window": query + 1 - span.size, "chunk": query - query % max(span.size, 1)}[span.kind]


def check_state_tag(sequence: Sequence, count: int, states: StateStore) -> None:
    """INV-24, by what has moved with the state."""
    tag = states.tag(sequence.slot)
    require_invariant(
        tag == (sequence.index, count),
        "INV-24",
        row=sequence.index,
        expected=f"the state of sequence {sequence.index} behind {count} tokens",
        found=f"that of sequence {tag.sequence} behind {tag.tokens}",
    )


def check_state(sequence: Sequence, count: int, states: StateStore, model: Any) -> None:
    """INV-24 numerically: a row's state against that of a fresh pass over its cached tokens."""
    fresh = model.fresh_states(sequence.token_ids[:count]) if count else {}
    for part, wanted in fresh.items():
        found = states.parts[part][sequence.slot].double()
        error = float((found - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1))
        require_invariant(
            error <= FLOAT32_TOLERANCE,
            "INV-24",
            row=sequence.index,
            expected=f"layer {part.layer}: {part.name} state within {FLOAT32_TOLERANCE}",
            found=f"{error:.3g} off",
        )


def _token_table(members: Seq[Sequence], drafts: Seq[Tensor], device: torch.device) -> Int[Tensor, "batch n"]:
    """Token at each position of each row, the round's drafts included; -1 beyond."""
    nothing = torch.zeros(len(members), 0, dtype=torch.long, device=device)
    drafted = torch.cat([nothing, *drafts], dim=1)
    longest = max(m.seq_len for m in members) + drafted.shape[1] + 1
    table = torch.tensor([m.token_ids + [-1] * (longest - m.seq_len) for m in members], device=device)
    at = torch.tensor([[m.seq_len] for m in members], device=device) + torch.arange(drafted.shape[1], device=device)
    return table.scatter(1, at, drafted)


def _report(wrong: Tensor, invariant: str, expected: Tensor, wanted: str, tags: Tensor) -> None:
    if wrong.any():
        row, at, slot = wrong.nonzero()[0].tolist()
        sequence, position, token = tags[row, slot].tolist()
        require_invariant(
            False,
            invariant,
            row=row,
            expected=f"query at position {int(expected[row, at])} sees {wanted}",
            found=f"slot {slot} of sequence {sequence}, position {position}, token {token}",
        )
