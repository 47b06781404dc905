"""The engine's own schedulers, set up for a scenario."""

from collections.abc import Sequence
from dataclasses import replace

from refimpl.core.errors import require
from refimpl.scheduling import (
    BlockPool,
    GroupedScheduler,
    KVAllocator,
    PagedKVAllocator,
    Scheduler,
    Sharing,
    make_scheduler,
)
from simulator.service.admission import BudgetAllocator
from simulator.service.records import Request
from simulator.settings.parts import BLOCKS
from simulator.settings.scenario import Engine, Switches


class PublishedGroups(GroupedScheduler[Request]):
    """Grouped scheduling by padded length, see `pad_rows`, and whether there is a cache, as published."""

    def group_key(self, sequence: Request) -> tuple[int, int]:
        """Of one row."""
        return sequence.padded_len, int(sequence.rounds > 0)


def pad_rows(members: Sequence[Request], mode: str) -> None:
    """Set the members' padded lengths after a round, as the published code does.

    It appends what each row has kept to that row, pads included. The pads are those of the round: the members of a
    group keep the padded length that they have in common, all others are padded anew to the longest of them.
    """
    padded = max([row.padded_len if mode == "grouped" else row.seq_len - row.last_kept for row in members])
    for row in members:
        row.padded_len = padded + row.last_kept


def end_padded(members: Sequence[Request], now_s: float) -> None:
    """Finish the members of a fallback that were padded: the published code finds the end by the pad's own token."""
    longest = max([row.seq_len - row.last_kept for row in members])
    for row in members:
        if not row.finished and row.seq_len - row.last_kept < longest:
            row.output_len, row.cut, row.finished, row.finished_s, row.runs = row.generated, False, True, now_s, b""


def allocator_of(engine: Engine, capacity_tokens: float | None, *, stateful: bool = False) -> KVAllocator[Request]:
    """Blocks of a paged pool, or room for whole budgets; room without an end where nothing limits them.

    Args:
        engine: settings.
        capacity_tokens: tokens whose K/V fit, unless the settings say how many blocks there are; None for no limit.
        stateful: a model keeps recurrent states: rows share nothing, since a block holds none to go on from.

    Raises:
        InputError: more blocks fit than can be counted one by one.
    """
    if engine.layout != "paged":
        return KVAllocator() if capacity_tokens is None else BudgetAllocator(engine, capacity_tokens)
    count = engine.num_blocks
    if count is None and capacity_tokens is not None:
        count = int(capacity_tokens // engine.block_size)
    if count is None:
        return KVAllocator()
    given = f"there is room for {count:.3g} blocks of {engine.block_size} tokens"
    require(count <= BLOCKS.high, f"{given}; at most {BLOCKS.high} can be simulated: give engine.num_blocks")
    sharing: Sharing = "texts" if engine.prefix_sharing and not stateful else "nothing"
    pool, in_chunks = BlockPool(count, engine.block_size), engine.joint_prefill or engine.scheduler_facts.chunked
    return PagedKVAllocator(pool, engine.num_speculative_tokens, sharing, in_chunks=in_chunks)


def prefill_engine(engine: Engine) -> Engine:
    """The engine of a replica that caches prompts for others: nothing is drafted or decoded beside them."""
    plain = replace(engine, num_speculative_tokens=0, draft_budget=Engine().draft_budget)
    return replace(plain, execution="serial", joint_prefill=False)


def scheduler_of(engine: Engine, switches: Switches) -> Scheduler[Request]:
    """Build the scheduler that a scenario names, with its departures from the engine."""
    lean_static = engine.scheduler == "static" and not switches.zombies
    engine, refill = (replace(engine, scheduler="fifo"), False) if lean_static else (engine, switches.refill)
    if engine.scheduler == "grouped" and switches.group_key == "padded_length":
        return PublishedGroups.of(engine, refill=refill, joint_prefill=engine.joint_prefill)
    return make_scheduler(engine, refill=refill)
