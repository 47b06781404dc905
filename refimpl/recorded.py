"""Rounds of the in-place layout as recorded GPU work: one replay for all drafts, one for verify and acceptance.

A round of small passes is bound by the host that launches them. The in-place layout moves nothing, so a round is the
same work every time, on other numbers: the numbers go into fixed tensors, the work is recorded once for each width of
the context and replayed (CUDA graphs). Every row of the pool takes part; idle ones write to their scratch column.
Without CUDA a recording is a plain call, so that every line but the recording itself is tested anywhere.

While the host learns what a round has accepted, ends sequences and chooses the next members, the device goes on: where
no row can come to its budget, the next round's drafts are launched right behind the verify pass, for the lengths that
the device itself has just found. They are used if the next round has no new member; if not, they are made again.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.acceptance import AcceptanceRule, Decision, Proposal
from refimpl.cached import CachedModel
from refimpl.kvstore import Block
from refimpl.placement import padded_columns
from refimpl.sampling import RowKeys
from refimpl.sequence import Sequence

T = TypeVar("T")
DRAFT_LAG = 2  # tokens that every first draft pass feeds; a row with lag 1 recomputes one
IDLE = -(1 << 40)  # seq_len of an idle row: all of its positions are below 0
WARM_UPS = 2  # runs before a recording, in which libraries allocate what they need


def context_width(columns: int, most: int) -> int:
    """Width of the view that holds `columns`: four sizes an octave, so that few recordings are made, at most `most`."""
    step = max(1, 1 << max(0, columns.bit_length() - 3))
    return min(padded_columns(-(-columns // step) * step), most)


_free_streams: dict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)


def _stream_of(owner: object, device: torch.device) -> torch.cuda.Stream:
    """A stream on which nobody records but `owner`, as long as it lives.

    cuBLAS has a workspace for each stream. Some versions of PyTorch drop it with any graph that was recorded there, so
    graphs that live on may not share the stream; others never drop it, so streams are used again.
    """
    free = _free_streams[device]
    stream = free.pop() if free else torch.cuda.Stream(device)
    weakref.finalize(owner, free.append, stream)
    return stream


class Recording(Generic[T]):
    """Work on fixed tensors: recorded on CUDA when it is made, replayed into the same outputs by every call.

    Args:
        work: a method that launches kernels, never waits for the device, allocates what it likes. Its owner keeps
            the recording, so the recording does not keep its owner: K/V pools go as soon as their engine does.
        stream: where it is recorded; None without CUDA.
        memory: graph memory that several recordings share, since only one of them runs at a time.
    """

    def __init__(self, work: Callable[[], T], stream: torch.cuda.Stream | None, memory: Any):
        self._work = weakref.WeakMethod(work)
        self._graph: torch.cuda.CUDAGraph | None = None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=memory, stream=stream):
                self._output = work()

    def __call__(self) -> T:
        """Do the work; the output is overwritten by the next call."""
        if self._graph is None:
            work = self._work()
            assert work is not None, "the owner keeps the recording"
            return work()
        self._graph.replay()
        return self._output


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Drafts made before their round: in a view of `width` columns, for the sequences of these indices.

    A sequence that goes on has committed all that the round before decided, so its drafts are those of its round.
    """

    width: int = 0
    sequences: frozenset[int] = frozenset()

    def serves(self, members: Seq[Sequence], width: int) -> bool:
        return width == self.width and all(m.finished or m.index in self.sequences for m in members)


class RecordedRounds:
    """Runs the passes of rounds whose members are rows of the pool, in place.

    Args:
        target, draft: models on in-place layouts without provenance.
        rule: decides; must not wait for the device.
        vocab_size: leading logits that count.
        k: drafts of every round, whatever the rows can use; their limits cut what they accept.
        stable: let every pass see all columns.
    """

    _decision: Decision  # of the latest verify pass, for all rows of the pool

    def __init__(
        self, target: CachedModel, draft: CachedModel, rule: AcceptanceRule, *, vocab_size: int, k: int, stable: bool
    ):
        self._target, self._draft, self._rule = target, draft, rule
        self._vocab_size, self._k, self._stable = vocab_size, k, stable
        self._device = target.layout.shape.device
        rows = target.layout.pool.rows
        on_cuda = self._device.type == "cuda"
        self._host = torch.zeros(rows, DRAFT_LAG + 4, dtype=torch.long, pin_memory=on_cuda)
        self._numbers = self._host.to(self._device, copy=True)
        self._index = torch.arange(rows, device=self._device)
        self._drafts = Proposal(torch.zeros(rows, k, dtype=torch.long, device=self._device))
        self._stream = _stream_of(self, self._device) if on_cuda else None
        # apart, so that no draft overwrites what the verify pass before it has left
        self._draft_memory = torch.cuda.graph_pool_handle() if on_cuda else None
        self._verify_memory = torch.cuda.graph_pool_handle() if on_cuda else None
        self._recordings: dict[int, tuple[Recording | None, Recording]] = {}  # by width: drafts, verify
        self._width = 0
        self._members: Seq[Sequence] = ()
        self._ahead = _Ahead()

    @property
    def overlaps(self) -> bool:
        """Whether the device works on while the host does."""
        return self._device.type == "cuda"

    def covers(self, members: Seq[Sequence]) -> bool:
        """Whether the round is one that was recorded for: no draft lags further behind than a round can leave it."""
        return self._k == 0 or all(m.finished or m.draft_lag <= DRAFT_LAG for m in members)

    def load(self, members: Seq[Sequence], limits: list[int]) -> int:
        """Put the round's numbers where the recordings read them, in one copy; returns its k."""
        idle = [0] * DRAFT_LAG + [IDLE, 0, 0, 0]
        table = [idle] * len(self._host)
        for member, limit in zip(members, limits, strict=True):
            tail = ([0] * DRAFT_LAG + member.token_ids)[-DRAFT_LAG:]
            table[member.slot] = [*tail, member.seq_len, limit, member.seed, member.sequence_id]
        self._host.copy_(torch.tensor(table))
        self._numbers.copy_(self._host, non_blocking=True)
        self._members = members
        self._width = self._width_for(max(m.seq_len for m in members) + self._k)
        return self._k

    def prepare(self) -> None:
        """Record what the round needs and no round before it needed."""
        if self._width not in self._recordings:
            draft = Recording(self._propose, self._stream, self._draft_memory) if self._k else None
            if draft:
                self._drafts = draft()
            self._recordings[self._width] = draft, Recording(self._decide, self._stream, self._verify_memory)

    def draft(self) -> None:
        """Propose k tokens a row, unless that was done ahead."""
        recording, _ = self._recordings[self._width]
        if recording and not self._ahead.serves(self._members, self._width):
            self._drafts = recording()
        self.forget_ahead()

    def draft_ahead(self) -> bool:
        """Launch the next round's drafts behind the verify pass; tells whether it did."""
        columns = max(m.seq_len for m in self._members) + self._k + 1 + self._k
        width = self._width_for(columns)
        recording, _ = self._recordings.get(width, (None, None))
        live = [m for m in self._members if not m.finished]
        if not (recording and self.overlaps and all(m.remaining > self._k + 1 for m in live)):
            return False
        self._advance(self._decision)
        self._drafts = recording()
        self._ahead = _Ahead(width, frozenset(m.index for m in live))
        return True

    def forget_ahead(self) -> None:
        """Drafts made ahead are used, or of no use."""
        self._ahead = _Ahead()

    def verify(self) -> tuple[Decision, Float[Tensor, "rows k1 vocab"]]:
        """Run the target on the proposals and decide, for every row of the pool."""
        _, recording = self._recordings[self._width]
        self._decision, logits = recording()
        return self._decision, logits

    def _width_for(self, columns: int) -> int:
        most = self._target.layout.pool.columns
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

    @property
    def _keys(self) -> RowKeys:
        return RowKeys(self._numbers[:, DRAFT_LAG + 2], self._numbers[:, DRAFT_LAG + 3])

    def _propose(self) -> Proposal:
        tokens, offset, steps = self._numbers[:, :DRAFT_LAG], -DRAFT_LAG, list[Proposal]()
        for step in range(self._k):
            logits = self._draft.model.forward(self._block(self._draft, tokens, offset), 1)
            steps.append(self._rule.propose(logits[..., : self._vocab_size], self._keys, self._seq_len + step))
            tokens, offset = steps[-1].tokens, step
        return Proposal.join(steps)

    def _decide(self) -> tuple[Decision, Tensor]:
        last = self._numbers[:, DRAFT_LAG - 1 : DRAFT_LAG]
        block = self._block(self._target, torch.cat([last, self._drafts.tokens], dim=1), -1)
        logits = self._target.model.forward(block, self._k + 1)[..., : self._vocab_size]
        position = self._seq_len + torch.arange(self._k + 1, device=self._device)
        limits = self._numbers[:, DRAFT_LAG + 1]
        return self._rule.decide(self._drafts, logits, self._keys, position, limits), logits

    def _block(self, cached: CachedModel, tokens: Int[Tensor, "rows q"], offset: int) -> Block:
        position = self._seq_len + torch.arange(offset, offset + tokens.shape[1], device=self._device)
        everywhere = slice(0, len(self._index))
        return cached.layout.slot_block(self._index, everywhere, tokens, position, self._width)
