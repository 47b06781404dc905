"""What the search over the schedulers must find out: faults of the engine's zoo, and variants of rooms and queues."""

from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

from proofs.conformance import schedulers
from proofs.report import Verdict
from refimpl.faults import FAULTS, Fault, chunk_faults, overlap_faults, sharing_faults
from refimpl.scheduling import BlockPool, PagedKVAllocator, Scheduler, SequencePool


def noticed(fault: Fault) -> Verdict | None:
    """The first search, of those that the fault is about, that finds it out."""
    some = schedulers.with_blocks() if fault.owner is PagedKVAllocator else schedulers.configurations()
    mine = (each for each in some if each[1].policy in fault.schedulers)
    return next((v for v in schedulers.verdicts(mine, Counter()) if not v.ok), None)


def zoo() -> list[Fault]:
    """Faults of the engine's zoo that are a scheduler's.

    Rows share no blocks here, no window hides any, prompts come whole, and there is one cohort; what is wrong with the
    rest is found out by tests/property/test_sharing.py, tests/property/test_continuous.py and `cohorts`.
    """
    elsewhere = (sharing_faults.__name__, chunk_faults.__name__, overlap_faults.__name__)
    mine = (f for f in FAULTS.values() if getattr(f.owner, "__module__", "").startswith("refimpl.scheduling"))
    return [f for f in mine if f.make.__module__ not in elsewhere and "windowed_layers" not in f.settings]


def zoo_verdicts() -> Iterator[Verdict]:
    """Expected failures: the search must find out each."""
    for fault in zoo():
        with fault.injected():
            found = noticed(fault)
        yield expected_failure(fault.name, found)


def expected_failure(name: str, found: Verdict | None) -> Verdict:
    detail = f"{found.name}: {found.detail}" if found else "no search notices"
    return Verdict(f"expected failure: {name}: {detail}", found is not None)


# What rooms and queues can get wrong beyond the zoo: class, function, and its wrong variant.
WRONG: dict[str, tuple[type, str, Callable]] = {
    "the oldest is sent back": (Scheduler, "_least_urgent", lambda self: next(iter(self.pool.window.values()))),
    "sent back to the end of the queue": (
        SequencePool,
        "send_back",
        lambda self, sequence: self.waiting.append(self.window.pop(sequence.ticket)),
    ),
    "a sequence that was sent back keeps its blocks": (
        Scheduler,
        "preempt",
        lambda self, sequence: self.pool.send_back(sequence),
    ),
    "a sequence enters where its prompt fits": (PagedKVAllocator, "_fits", lambda self, *_: len(self.pool.free) > 1),
    "a block is free before its last reference is gone": (
        BlockPool,
        "give_back",
        lambda self, blocks: self.free.extend(blocks),
    ),
    "blocks are asked for beyond the budget": (
        PagedKVAllocator,
        "_missing",
        lambda self, row: (
            0 if row.finished else max(0, -(-(row.seq_len + self.span) // self.pool.block_size) - len(row.blocks))
        ),
    ),
    "cached tokens change their blocks": (
        PagedKVAllocator,
        "settle",
        lambda self, members, right=PagedKVAllocator.settle: [
            right(self, members),
            [m.blocks.reverse() for m in members],
        ],
    ),
}


def wrong_verdicts() -> Iterator[Verdict]:
    """Expected failures: the relation must find out each variant in small pools of blocks."""
    for name, (owner, attribute, wrong) in WRONG.items():
        with patch.object(owner, attribute, wrong):
            yield expected_failure(name, rejected())


def rejected() -> Verdict | None:
    """The first search in which the relation rejects a transition; one that the code itself breaks off is left out."""
    for each in schedulers.with_blocks():
        try:
            (found,) = schedulers.verdicts(iter([each]), Counter())
        except RuntimeError:
            continue
        if not found.ok:
            return found
    return None
