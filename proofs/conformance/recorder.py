"""Records what a run of the engine does with tokens and slots, in the language of `proofs/coq/replay.ml`.

Slots are those that the store really writes, reads and copies: the recorder listens to `KVStore`. Tokens, positions and
masks are those of the blocks that models are given. Lengths are the sequences' own. Nothing is changed.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor

from proofs.report import FINDINGS
from refimpl.core.sequence import Sequence
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts import Layout
from refimpl.layouts.places import BlockRows
from refimpl.layouts.store import Block, KVStore

WHY = {None: 0, "stop": 1, "length": 2}


class Fed(NamedTuple):
    """What a pass feeds a row of its block: which sequence, positions from `first` on, real up to `end`."""

    sequence: int
    first: int
    end: int


class Recorder:
    """Lines of one run."""

    def __init__(self, exact: bool):
        self.lines = [f"run {int(exact)}"]
        self._next_slot = 1
        self._written: list[int] = []
        self._seen: list[list[int]] = []
        self._pass: tuple[bool, list[Fed]] = (False, [])  # whether of the target, after the prefill; the members

    def say(self, word: str, *numbers: Any) -> None:
        """One event."""
        self.lines.append(" ".join([word, *map(str, numbers)]))

    def begin(self, sequences: Seq[Sequence]) -> None:
        """The rows of a run, before it."""
        for s in sequences:
            self.say("begin", s.index + 1, s.max_new_tokens, *s.token_ids, "|", *sorted(s.stop_token_ids))

    def committed(self, record: RoundRecord, sequences: Seq[Sequence]) -> None:
        """What a round has committed, and why rows have ended."""
        for row in record.rows:
            why = WHY[sequences[row.sequence].stop_reason]
            self.say("commit", row.sequence + 1, row.accepted, why, *row.tokens)

    # --- stores --------------------------------------------------------------------------------------------------

    def place(self, store: KVStore) -> None:
        """Give a store numbers for its slots."""
        store.base = self._next_slot  # type: ignore[attr-defined]
        self._next_slot += store.rows * store.columns

    def wrote(self, store: Any, slots: list[int]) -> None:
        """Flat slots that a pass has written, row-major."""
        self._written = [store.base + slot for slot in slots]

    def saw(self, store: Any, rows: list[list[int]], width: int) -> None:
        """Store rows that each row of a pass looks at, one after the other, up to a width."""
        columns = store.columns
        self._seen = [[store.base + r * columns + c for r in row for c in range(columns)][:width] for row in rows]

    def copied(self, to: Any, target: Seq[int], source: Any, origin: Seq[int]) -> None:
        """Flat slots copied from one store to another."""
        pairs = zip(target, origin, strict=True)
        self.say("copy", *(base for t, s in pairs for base in (to.base + t, source.base + s)))

    # --- passes --------------------------------------------------------------------------------------------------

    def prefills(self, rows: Any, start: int) -> None:
        """The next pass feeds prompts."""
        self._pass = (False, [Fed(row.sequence, start, row.seq_len) for row in rows])

    def feeds(self, role: str, members: Seq[Sequence], offset: int, drafts: Seq[Tensor]) -> None:
        """The next pass feeds the members of a round."""
        for i, m in enumerate(members):
            if not m.finished:
                self.say("propose", m.index + 1, *(token for d in drafts for token in d[i].tolist()))
        fed = [Fed(m.index, m.seq_len + offset, 0 if m.finished else m.most_tokens) for m in members]
        self._pass = (role == "target", fed)

    def passed(self, block: Block, logits: Tensor) -> None:
        """A pass has run: what it wrote, and what its queries saw and answered."""
        of_target, members = self._pass
        places = range(len(members)) if block.members is None else block.members.tolist()
        tokens, positions, q = block.tokens.tolist(), block.position_ids.tolist(), block.tokens.shape[1]
        mask, choices = block.mask[:, 0].tolist(), logits.argmax(dim=-1).tolist()
        junk = set(self._written)
        for fed, at in zip(members, places, strict=True):
            junk -= self._feed(fed, tokens[at], positions[at], self._written[at * q : at * q + q])
        self.say("junk", *_spans(sorted(junk)))
        for i, (fed, at) in enumerate(zip(members, places, strict=True)):
            late = q - len(choices[i])  # the first queries may have no logits
            for j in _real(fed, q):
                seen = [slot for slot, shown in zip(self._seen[at], mask[at][j], strict=True) if shown]
                chosen = of_target and j >= late
                choice = choices[i][j - late] if chosen else 0
                self.say("query", int(chosen), fed.sequence + 1, positions[at][j], choice, *_spans(seen))

    def _feed(self, fed: Fed, tokens: list[int], positions: list[int], slots: list[int]) -> set[int]:
        """The real tokens of a row; their slots."""
        real = _real(fed, len(tokens))
        if real:
            first = positions[real[0]]
            assert [positions[j] for j in real] == list(range(first, first + len(real))), "a line has no room for gaps"
            pairs = (n for j in real for n in (tokens[j], slots[j]))
            self.say("feed", fed.sequence + 1, first, *pairs)
        return {slots[j] for j in real}


def _real(fed: Fed, q: int) -> range:
    """Queries that belong to positions of the row."""
    return range(max(0, -fed.first), max(0, min(q, fed.end - fed.first)))


def _spans(slots: list[int]) -> Iterator[str]:
    """Slots, neighbours as FIRST-LAST."""
    begun = None
    for at, slot in enumerate(slots):
        begun = slot if begun is None else begun
        if at + 1 == len(slots) or slots[at + 1] != slot + 1:
            yield str(slot) if begun == slot else f"{begun}-{slot}"
            begun = None


def _row_list(store: KVStore, rows: Any) -> list[int]:
    return rows.tolist() if isinstance(rows, Tensor) else list(range(store.rows))[rows]


def _of_stores(recorder: Recorder) -> Iterator[tuple[Any, str, Any]]:
    """Functions that write, read and copy slots, wrapped."""
    init, gather, copy, write, columns = (
        KVStore.__init__, KVStore.gather, KVStore.copy_slots, KVStore.write_slots, KVStore.write_columns,
    )  # fmt: skip
    view, view_blocks = KVStore.view, BlockRows.view

    def initialised(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        recorder.place(self)

    def gathered(self: Any, slots: Tensor, memory: Tensor) -> KVStore:
        moved = gather(self, slots, memory)
        recorder.copied(moved, range(slots.numel()), self, slots.flatten().tolist())
        return moved

    def copied(self: Any, source: Any, source_slots: Tensor, slots: Tensor) -> None:
        copy(self, source, source_slots, slots)
        recorder.copied(self, slots.tolist(), source, source_slots.tolist())

    def wrote(self: Any, layer: int, slots: Tensor, *entries: Tensor) -> None:
        write(self, layer, slots, *entries)
        if layer == 0:
            recorder.wrote(self, slots.tolist())

    def wrote_columns(self: Any, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        columns(self, layer, start, keys, values)
        if layer == 0:
            stop = start + keys.shape[2]
            recorder.wrote(self, [r * self.columns + c for r in range(len(keys)) for c in range(start, stop)])

    def viewed(self: Any, layer: int, width: int, rows: Any = slice(None)) -> Any:
        if layer == 0:
            recorder.saw(self, [[r] for r in _row_list(self, rows)], width)
        return view(self, layer, width, rows)

    def viewed_blocks(self: Any, layer: int, width: int) -> Any:
        if layer == 0:
            recorder.saw(self.store, self.table.tolist(), width)
        return view_blocks(self, layer, width)

    yield from ((KVStore, "__init__", initialised), (KVStore, "gather", gathered), (KVStore, "copy_slots", copied))
    yield from ((KVStore, "write_slots", wrote), (KVStore, "write_columns", wrote_columns))
    yield from ((KVStore, "view", viewed), (BlockRows, "view", viewed_blocks))


def _of_passes(recorder: Recorder) -> Iterator[tuple[Any, str, Any]]:
    """Functions that feed a model, wrapped."""
    prefill, begin, block, forward = (
        Layout.prefill_block, CachedModel.begin, CachedModel.block, CachedModel.forward,
    )  # fmt: skip

    def prefilling(self: Any, rows: Any, tokens: Tensor, start: int) -> Block:
        recorder.prefills(rows, start)
        return prefill(self, rows, tokens, start)

    def begun(self: Any, members: Any, span: int) -> None:
        self.recorded_members = members
        begin(self, members, span)

    def blocked(self: Any, tokens: Tensor, offset: int, drafts: Any) -> Block:
        recorder.feeds(self.role, self.recorded_members, offset, drafts)
        return block(self, tokens, offset, drafts)

    def forwarded(self: Any, block: Block, num_logits: int) -> Tensor:
        logits = forward(self, block, num_logits)
        recorder.passed(block, logits)
        return logits

    yield from ((Layout, "prefill_block", prefilling), (CachedModel, "begin", begun))
    yield from ((CachedModel, "block", blocked), (CachedModel, "forward", forwarded))


@contextmanager
def listening(recorder: Recorder) -> Iterator[None]:
    """Inside, an engine that is made and run tells the recorder."""
    with ExitStack() as stack:
        for owner, name, listener in chain(_of_stores(recorder), _of_passes(recorder)):
            stack.enter_context(patch.object(owner, name, listener))
        yield


@contextmanager
def ended(lines: list[str]) -> Iterator[None]:
    """Give the lines of a run their end: where the engine raises an error, what it did before is still to be judged."""
    try:
        yield
        lines.append("end")
    except FINDINGS as error:
        lines.append(" ".join(f"raised {type(error).__name__}: {error}".split()))


def recorded(engine_of: Any, *, exact: bool, cancel: tuple[int, int] | None = None) -> list[str]:
    """Lines of a whole run; `cancel` names a sequence and the round before which it is cancelled."""
    recorder = Recorder(exact)
    with listening(recorder), ended(recorder.lines):
        engine = engine_of()
        recorder.begin(engine.sequences)
        for number in count():
            if cancel and cancel[1] == number and not engine.sequences[cancel[0]].finished:
                engine.cancel(engine.sequences[cancel[0]])
                recorder.say("cancel", cancel[0] + 1)
            if engine.scheduler.done:
                break
            recorder.committed(engine.run_one_round(), engine.sequences)
    return recorder.lines
