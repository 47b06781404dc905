"""Rounds of the in-place layout as recorded GPU work: one replay for all drafts, one for verify and acceptance.

A round of small passes is bound by the host that launches them. The in-place layout moves nothing, so a round is the
same work every time, on other numbers: the numbers go into fixed tensors, the work is recorded and replayed (CUDA
graphs), once for each width of the context, or once in all if the models need no mask. Every row of the pool takes
part; idle ones write to their scratch column. Without CUDA a recording is a plain call, so that every line but the
recording itself is tested anywhere.

While the host learns what a round has accepted, ends sequences and chooses the next members, the device goes on: where
no row can reach its budget, the next round's drafts are launched right after the verify pass, for the lengths that
the device itself has just found; without drafts it is the next verify pass. This is used if the next round has no new
member; if not, it is done again.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from refimpl.core.sequence import MOST_LAG, Sequence
from refimpl.decoding.acceptance import Decision, Proposal, RowNumbers
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.drafters import Drafts, propose
from refimpl.decoding.graphs import Recording, stream_of
from refimpl.decoding.passes import EagerPasses, Verified, verify
from refimpl.decoding.prefill import Chunks, catch_up
from refimpl.decoding.sampling import RowKeys
from refimpl.layouts.places import PoolRows
from refimpl.layouts.store import Block
from refimpl.placement import padded_columns

DRAFT_LAG = MOST_LAG  # tokens that every first draft pass feeds; a row with lag 1 recomputes one
IDLE = -(1 << 40)  # seq_len of an idle row: all of its positions are below 0


def context_width(columns: int, most: int) -> int:
    """Width of the view that holds `columns`: four sizes an octave, so that few recordings are made, at most `most`."""
    step = max(1, 1 << max(0, columns.bit_length() - 3))
    return min(padded_columns(-(-columns // step) * step), most)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What was launched before its round: by a recording of this width and k, for the sequences of these indices.

    A sequence that goes on has committed all that the round before decided, so its numbers are those of its round.
    """

    key: tuple[int, int] = (0, 0)
    sequences: frozenset[int] = frozenset()

    def serves(self, members: Seq[Sequence], key: tuple[int, int]) -> bool:
        return key == self.key and all(m.finished or m.index in self.sequences for m in members)


class RecordedPasses:
    """Runs the passes of rounds whose members are rows of the pool, in place.

    Args:
        eager: whose models, rule and window are recorded; its layouts are in place and without provenance.
        draft: the draft, whose passes are recorded; None where k is 0.
        k: drafts of a round at most.
        fixed: whether every round has k drafts, even if rows can use fewer; their limits cut what they accept.
        stable: let every pass see all columns.
    """

    _decided: tuple[Decision, Float[Tensor, "rows k1 vocab"]]  # by the latest verify pass, for all rows; its logits

    def __init__(self, eager: EagerPasses, draft: CachedModel | None, *, k: int, fixed: bool, stable: bool):
        self._eager, self._k, self._fixed, self._stable = eager, k, fixed, stable
        self._target, self._draft, self._rule = eager.target, draft, eager.rule
        self._device = eager.target.layout.shape.device
        rows = eager.target.layout.num_rows
        on_cuda = self._device.type == "cuda"
        self._host = torch.zeros(rows, DRAFT_LAG + 4, dtype=torch.long, pin_memory=on_cuda)
        self._numbers = self._host.to(self._device, copy=True)
        self._index = torch.arange(rows, device=self._device)
        passes = [(eager.target, eager.window or k + 1), *([(draft, DRAFT_LAG)] if draft else [])]
        self._maskless = all(queries <= cached.model.maskless_queries for cached, queries in passes)
        self._drafts = self._no_drafts = Proposal(torch.zeros(rows, 0, dtype=torch.long, device=self._device))
        self._stream = stream_of(self, self._device) if on_cuda else None
        # apart, so that no draft overwrites what the verify pass before it has left
        self._draft_memory = torch.cuda.graph_pool_handle() if on_cuda else None
        self._verify_memory = torch.cuda.graph_pool_handle() if on_cuda else None
        self._recordings: dict[tuple[int, int], tuple[Recording | None, Recording]] = {}  # by width (or 0) and k
        self._width = 0
        self._members: Seq[Sequence] = ()
        self._ahead = _Ahead()
        self._begun = False  # whether the round's first pass was launched before it

    @property
    def overlaps(self) -> bool:
        """Whether the device works on while the host does."""
        return self._device.type == "cuda"

    def run(self, members: Seq[Sequence], limits: list[int], chunks: Chunks = ()) -> Verified:
        """Replay the recorded work, for every row of the pool: all draft or none, so none lags more (INV-6)."""
        assert not chunks, "the schedulers whose rounds are recorded prefill whole prompts"
        limits, timer = self._eager.budgeted(members, limits), self._target.timer
        self._k = self._k if self._fixed else max(limits)
        with timer.stage("draft"):
            caught_up = catch_up(self._draft, members) if self._draft and self._k else []
        self.load(members, limits)
        with timer.stage("record"):
            self.prepare()
        with timer.stage("draft"):
            self.draft()
        with timer.stage("verify"):
            decision, logits = self.verify()
        if not self._k and self.overlaps:  # the next pass overwrites what is recorded, before the host has read it
            decision, logits = decision.rows(self._index), logits.clone()
        drafts = Drafts(self._drafts, limits, [0] * len(members), self._k, caught_up=caught_up)
        return Verified(self._k, [m.slot for m in members], decision, logits, drafts)

    def after(self, ahead: Seq[Sequence]) -> None:
        """Launch the next round's first pass, if it can be used."""
        timer = self._target.timer
        with timer.ahead(), timer.stage("draft" if self._k else "verify"):
            self.launch_ahead()

    def load(self, members: Seq[Sequence], limits: list[int]) -> None:
        """Put the round's numbers where the recordings read them, in one copy."""
        for cached in filter(None, (self._target, self._draft)):
            cached.begin(members, span=0)
        idle = [0] * DRAFT_LAG + [IDLE, 0, 0, 0]
        table = [idle] * len(self._host)
        for member, limit in zip(members, limits, strict=True):
            tail = ([0] * DRAFT_LAG + member.token_ids)[-DRAFT_LAG:]
            table[member.slot] = [*tail, member.seq_len, limit, member.seed, member.sequence_id]
        self._host.copy_(torch.tensor(table))
        self._numbers.copy_(self._host, non_blocking=True)
        self._members = members
        self._width = self._width_for(max(m.seq_len for m in members) + self._k)
        self._begun, self._ahead = self._ahead.serves(members, self._key), _Ahead()

    @property
    def _key(self) -> tuple[int, int]:
        """The round's width and k, of which it has recordings."""
        return self._width, self._k

    def prepare(self) -> None:
        """Record what the round needs and no round before it needed."""
        if self._key not in self._recordings:
            draft = Recording(self._propose, self._stream, self._draft_memory) if self._k else None
            self._drafts = draft() if draft else self._no_drafts
            self._recordings[self._key] = draft, Recording(self._decide, self._stream, self._verify_memory)

    def draft(self) -> None:
        """Propose k tokens a row, unless that was done ahead."""
        recording, _ = self._recordings[self._key]
        if not self._begun:
            self._drafts = recording() if recording else self._no_drafts

    def launch_ahead(self) -> None:
        """Launch the next round's first pass right after the verify pass, where no row can reach its budget."""
        key = self._width_for(max(m.seq_len for m in self._members) + self._k + 1 + self._k), self._k
        live = [m for m in self._members if not m.finished]
        if not (self.overlaps and key in self._recordings and all(m.remaining > self._k + 1 for m in live)):
            return
        self._advance(self._decided[0])
        draft, verify = self._recordings[key]
        if draft:
            self._drafts = draft()
        else:
            self._decided = verify()
        self._ahead = _Ahead(key, frozenset(m.index for m in live))

    def verify(self) -> tuple[Decision, Float[Tensor, "rows k1 vocab"]]:
        """Run the target on the proposals and decide, for every row of the pool, unless that was done ahead."""
        _, recording = self._recordings[self._key]
        if self._k or not self._begun:
            self._decided = recording()
        return self._decided

    def _width_for(self, columns: int) -> int:
        most = self._target.layout.columns
        if self._maskless:
            return 0
        return most if self._stable else context_width(columns, most)

    def _advance(self, decision: Decision) -> None:
        """Append what was accepted, and the token after it, to every row's numbers, on the device."""
        kept = decision.num_accepted[:, None] + 1
        tokens = torch.cat([self._numbers[:, :DRAFT_LAG], decision.emitted], dim=1)
        tail = tokens.gather(1, kept + torch.arange(DRAFT_LAG, device=self._device))
        self._numbers[:, : DRAFT_LAG + 1] = torch.cat([tail, self._seq_len + kept], dim=1)

    @property
    def _seq_len(self) -> Int[Tensor, "rows 1"]:
        return self._numbers[:, DRAFT_LAG : DRAFT_LAG + 1]

    def _row_numbers(self) -> RowNumbers:
        limits, seed, sequence = self._numbers[:, DRAFT_LAG + 1 :].unbind(dim=1)
        position = self._seq_len + torch.arange(self._k + 1, device=self._device)
        start = self._seq_len[:, 0] if self._eager.fresh else None
        return RowNumbers(RowKeys(seed, sequence, start), position, limits)

    def _propose(self) -> Proposal:
        return propose(self._rule, self._feed_draft, self._numbers[:, :DRAFT_LAG], self._row_numbers())

    def _decide(self) -> tuple[Decision, Tensor]:
        last = self._numbers[:, DRAFT_LAG - 1 : DRAFT_LAG]
        return verify(self._rule, self._feed_target, last, self._drafts, self._row_numbers())

    def _feed_draft(self, tokens: Tensor, offset: int, drafts: list[Tensor]) -> Tensor:
        assert self._draft is not None
        return self._forward(self._draft, tokens, offset, 1)

    def _feed_target(self, tokens: Tensor, offset: int, drafts: list[Tensor]) -> Tensor:
        count = tokens.shape[1]
        window = self._eager.window or count
        return self._forward(self._target, pad(tokens, (0, window - count)), offset, window)[:, :count]

    def _forward(self, cached: CachedModel, tokens: Tensor, offset: int, num_logits: int) -> Tensor:
        logits = cached.model.forward(self._block(cached, tokens, offset), num_logits)
        return logits[..., : self._eager.vocab_size]

    def _block(self, cached: CachedModel, tokens: Int[Tensor, "rows q"], offset: int) -> Block:
        position = self._seq_len + torch.arange(offset, offset + tokens.shape[1], device=self._device)
        places = PoolRows(cached.layout.pool, self._index, slice(0, len(self._index)))
        return cached.layout.slot_block(places, tokens, position, self._width)
