"""What runs do to their pools, before the machine of `coq/Blocks.v`.

Who takes, shares and gives back which block, what is written where, what can be found, who is sent back with what: all
as it happens in the engine, in pools that are large enough or too small, with prompts that begin alike. After every
round the engine's own books are compared with the machine's. Copies with one thing wrong must be refused.

A room notes and shares the blocks of rows that enter before any pass has filled them. So the events of an admission are
replayed row by row, and the order of the passes is watched here: a row that is fed behind a slot which no pass has
written since its block was taken is `unwritten`, which the replayer refuses.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from proofs.conformance import reach, runs
from proofs.conformance.borders import small_borders
from proofs.conformance.recorder import Recorder, ended, listening
from proofs.conformance.replay import Lines, changed, judge, left_out, one_more
from proofs.conformance.runs import SAMPLINGS, Shape
from proofs.report import Verdict, all_valid, none_valid
from refimpl.core.config import SCHEDULERS
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord
from refimpl.faults import FAULTS
from refimpl.layouts.store import KVStore
from refimpl.scheduling import BlockPool, GroupedScheduler, PagedKVAllocator
from refimpl.scheduling.prefix_cache import PrefixCache

WORDS = ("share", "give", "note", "write", "sent", "round")  # of which runs must have some
LEFT_OUT = ("take", "give", "commits")
WRONG_FIELDS = (("write", 2), ("write", 3), ("write", 4), ("counts", 1), ("sent", 2), ("left", 2), ("left", 3))
ZOO = (
    "block-matched-by-hash-alone",
    "block-matched-without-what-is-before",
    "text-outlives-its-block",
    "shared-block-freed-with-its-first-owner",
    "cached-length-survives-preemption",
    "block-of-another-row",
    "second-copy-numbered-as-the-latest-text",
)
ADMIT = GroupedScheduler.admit
ALIKE = Shape(
    tuple(runs.Job((1, 2, 3, 4, *rest), budget, 1) for *rest, budget in ((5, 6), (6, 5), (5, 6, 4), (5, 6))),
    batch=2,
    window=3,
)
TWINS = Shape(  # in chunks, two rows hold the same block, that of another row is noted between, and a fourth finds it
    tuple(runs.Job((*prompt, 0), 4, 1) for prompt in ((1, 2), (3, 4), (1, 2, 5, 6), (3, 4, 5, 6))), batch=3, window=3
)


class Books(Recorder):
    """Events of a pool; while rows enter, each row's together."""

    def __init__(self) -> None:
        super().__init__(exact=False)
        self.lines: list[str] = []
        self.row: Any = None  # whose blocks are asked for
        self._pools: list[KVStore] = []
        self._entering: dict[int, tuple[list[str], list[str], list[str]]] | None = None
        self._length: dict[int, int] = {}
        self._sequences: list[Sequence] = []
        self._filled: set[int] = set()  # slots that a pass has written since their block was taken

    def add(self, word: str, row: int, *numbers: Any) -> None:
        """One event of a row."""
        line = " ".join(map(str, (word, row, *numbers)))
        if self._entering is None:
            self.lines.append(line)
        else:
            kept = self._entering.setdefault(row, ([], [], []))
            kept[{"write": 1, "note": 2}.get(word, 0)].append(line)

    def say(self, word: str, *numbers: Any) -> None:
        """Of what is recorded of passes, what they write."""
        if word != "feed":
            return
        row, first, *pairs = (int(n) for n in numbers)
        pool = next(pool for pool in reversed(self._pools) if pool.base <= pairs[1])  # type: ignore[attr-defined]
        self._look(self._sequences[row - 1], first, pool)
        for at, (token, slot) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
            block, place = divmod(slot - pool.base, pool.columns)  # type: ignore[attr-defined]
            if block < pool.rows - 1:  # the last one is scratch
                self.add("write", row - 1, first + at, block, place, token)

    def _look(self, s: Sequence, first: int, pool: KVStore) -> None:
        """A row looks at all positions before those it is fed; its pass has written, too."""
        for position in range(first):
            if _slots(pool, s.blocks[position // pool.columns])[position % pool.columns] not in self._filled:
                self.add("unwritten", s.index, position)

    def wrote(self, store: Any, slots: list[int]) -> None:
        """Slots that are filled."""
        super().wrote(store, slots)
        self._filled.update(self._written)

    def takes(self, block: int) -> None:
        """A block joins a row's table, and nothing is in it."""
        self.add("take", self.row.index, block)
        for pool in self._pools:
            self._filled.difference_update(_slots(pool, block))

    def place(self, store: KVStore) -> None:
        """A store is a pool here."""
        super().place(store)
        self._pools.append(store)

    def opens(self, engine: Engine) -> None:
        """A run, and its rows."""
        pool = engine.scheduler.allocator.pool  # type: ignore[attr-defined]
        self.lines.append(f"run {pool.num_blocks} {pool.block_size}")
        self._sequences = engine.sequences
        for s in engine.sequences:
            self._length[s.index] = s.seq_len
            self.lines.append(f"begins {s.most_tokens} {_numbers(s.token_ids)} | {s.seed} {s.sequence_id}")

    def commits(self, s: Sequence) -> None:
        """What a row has said since it was looked at."""
        if new := s.token_ids[self._length[s.index] :]:
            self.add("commits", s.index, *new)
        self._length[s.index] = s.seq_len

    def left(self, word: str, s: Sequence, *cached: int) -> None:
        """A row that was sent back, with what counts as cached all the same, or one that has ended."""
        self.add(word, s.index, *cached, s.most_tokens, *s.token_ids, "|", s.seed, s.sequence_id)

    def round(self, record: RoundRecord, pool: BlockPool) -> None:
        """The end of a round, and the engine's books."""
        self.lines += [
            *["round"] * bool(record.rows),
            f"counts {_numbers(pool.refs)} | {_numbers([*pool.free, *pool.idle])}",
        ]

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Inside, rows enter and are prefilled."""
        self._entering = {}
        yield
        kept, self._entering = self._entering, None
        self.lines += itertools.chain(*(events for row in kept.values() for events in row))


def _slots(pool: KVStore, block: int) -> range:
    """Numbers of the slots of a block."""
    start = pool.base + block * pool.columns  # type: ignore[attr-defined]
    return range(start, start + pool.columns)


def _numbers(some: Any) -> str:
    return " ".join(map(str, some))


def _listeners(books: Books) -> Iterator[tuple[Any, str, Callable]]:
    """Functions of rooms and of the loop, wrapped."""
    take, share, note, cut = BlockPool.take, BlockPool.share, PrefixCache.note, PagedKVAllocator._cut
    settle, admit, preempt = PagedKVAllocator.settle, Engine.admit, Engine._preempt

    def taking(self: Any, count: int) -> list[int]:
        blocks = take(self, count)
        for block in blocks:
            books.takes(block)
        return blocks

    def sharing(self: Any, blocks: list[int]) -> list[int]:
        for block in blocks:
            books.add("share", books.row.index, block)
        return share(self, blocks)

    def noting(self: Any, block: int, *rest: Any) -> None:
        books.add("note", books.row.index, books.row.blocks.index(block))
        note(self, block, *rest)

    def cutting(self: Any, sequence: Sequence, keep: int) -> None:
        for _ in sequence.blocks[keep:]:
            books.add("give", sequence.index)
        cut(self, sequence, keep)

    def settling(self: Any, members: Any) -> None:
        for member in members:
            books.commits(member)
        settle(self, members)

    def admitting(self: Any) -> None:
        with books.entering():
            admit(self)

    def preempting(self: Any, sequence: Sequence) -> None:
        preempt(self, sequence)
        books.left("sent", sequence, sequence.target_cached + (sequence.draft_cached or 0))

    yield from ((BlockPool, "take", taking), (BlockPool, "share", sharing), (PrefixCache, "note", noting))
    yield from ((PagedKVAllocator, "_cut", cutting), (PagedKVAllocator, "settle", settling))
    yield from ((Engine, "admit", admitting), (Engine, "_preempt", preempting))
    yield from ((PagedKVAllocator, name, _asking(books, name)) for name in ("_missing", "_found", "_note"))


def _asking(books: Books, name: str) -> Callable:
    """A function that is told whose blocks are meant."""
    original = getattr(PagedKVAllocator, name)

    def asked(self: Any, sequence: Sequence, *rest: Any) -> Any:
        books.row = sequence
        return original(self, sequence, *rest)

    return asked


def recorded(engine_of: Callable[[], Engine], cancel: tuple[int, int] | None = None) -> Lines:
    """Lines of a whole run; `cancel` names a sequence and the round before which it is cancelled."""
    books = Books()
    with listening(books), ended(books.lines), ExitStack() as stack:
        for each in _listeners(books):
            stack.enter_context(patch.object(*each))
        engine = engine_of()
        books.opens(engine)
        for number in itertools.count():
            if cancel and cancel[1] == number:
                engine.cancel(engine.sequences[cancel[0]])
            if engine.scheduler.done:
                break
            books.round(engine.run_one_round(), engine.scheduler.allocator.pool)  # type: ignore[attr-defined]
        for sequence in engine.sequences:
            books.left("left", sequence)
    return books.lines


def small_runs(method: str) -> Iterator[Lines]:
    """Rows alike and not, in pools large and small; one row cancelled."""
    pair = runs.sampled_pair()
    for shape, acceptance in itertools.product(
        (ALIKE, TWINS, *map(reach.without_stops, reach.LONGER)), ("coupled", "rejection")
    ):
        for spare in (0, 1, 3, None):
            short = {} if spare is None else {"kv_memory_gib": reach.kv_memory_gib(shape, spare)}
            settings: dict[str, Any] = {"checks": "off", "acceptance": acceptance, **short}
            engine_of = lambda s=shape, more=settings: runs.engine_for(method, s, pair, SAMPLINGS[0], **more)  # noqa: E731
            yield recorded(engine_of, (0, 1) if spare is None else None)


def corrupted(lines: Lines, rng: random.Random) -> Iterator[tuple[str, Lines]]:
    """Copies with one thing wrong each; what it is."""
    for word in LEFT_OUT:
        yield from changed(lines, rng, word, left_out, f"no {word}")
    for word, field in WRONG_FIELDS:
        yield from changed(lines, rng, word, one_more(field), f"{word} {field}")


def verdicts(replayer: str, method: str, seen: Counter[str], tried: Counter[str]) -> Iterator[Verdict]:
    """All runs of a method are replayed, and no corrupted copy is."""
    with small_borders():
        some = list(small_runs(method))
    for line in itertools.chain(*some):
        seen[line.split()[0]] += 1
    asked = partial(judge, replayer)
    yield all_valid(f"{method}: what {len(some)} runs do to their blocks is replayed", asked(some))
    rng = random.Random(0)
    copies = [copy for lines in some[::2] for copy in corrupted(lines, rng)]
    tried.update(what for what, _ in copies)
    yield none_valid(f"{method}: {len(copies)} corrupted runs are not replayed", asked, copies)


def check(replayer: str) -> Iterator[Verdict]:
    """Paged with every scheduler, and that the runs have come to what they are for."""
    seen, tried = Counter[str](), Counter[str]()
    for scheduler in SCHEDULERS:
        yield from verdicts(replayer, f"paged+{scheduler}", seen, tried)
    missing = [word for word in WORDS if not seen[word]]
    yield Verdict("the runs share, give back, note, write and send back", not missing, f"never {missing}")
    wanted = [f"no {word}" for word in LEFT_OUT] + [f"{word} {field}" for word, field in WRONG_FIELDS]
    missing = [name for name in wanted if not tried[name]]
    yield Verdict(f"each of the {len(wanted)} corruptions was tried", not missing, f"never {missing}")


def check_faults(replayer: str) -> Iterator[Verdict]:
    """Expected failures: faults of the engine's own zoo, and prefills out of order, that some run must show."""
    reverse = patch.object(GroupedScheduler, "admit", lambda self: ADMIT(self)[::-1])
    wrong = {f"zoo: {name}": (f"paged+{FAULTS[name].schedulers[0]}", FAULTS[name].injected()) for name in ZOO}
    wrong["the youngest is prefilled first"] = ("paged+grouped", reverse)
    for name, (method, injected) in wrong.items():
        with small_borders(), injected:
            answers = (judge(replayer, [lines])[0] for lines in small_runs(method))
            found = next((answer for answer in answers if answer != "valid"), "no run is refused")
        yield Verdict(f"expected failure: {name}: {found}", found.startswith("fault"))
