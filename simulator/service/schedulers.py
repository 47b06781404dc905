"""The engine's own schedulers, set up for a scenario."""

from collections.abc import Callable, Sequence
from typing import Any

from refimpl.scheduling import (
    BlockPool,
    GroupedScheduler,
    PagedRoom,
    Room,
    Scheduler,
    SchedulingOptions,
    Sharing,
    make_scheduler,
)
from simulator.service.records import Request
from simulator.settings.scenario import Engine, Switches


class PaddedKeyScheduler(GroupedScheduler[Request]):
    """Groups as the published code does: by padded length, see `pad_rows`."""

    def group_key(self, sequence: Request) -> tuple[int, int]:
        """Padded length, and whether there is a cache."""
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
            row.output_len, row.cut, row.finished, row.finished_s, row.runs = row.generated, False, True, now_s, []


def room_of(engine: Engine, capacity_tokens: float | None) -> Room[Request]:
    """Blocks of a paged pool; room without an end where the layout has none, or nothing limits them.

    Args:
        engine: settings.
        capacity_tokens: tokens whose K/V fit, where the settings do not say how many blocks there are.
    """
    count = engine.num_blocks
    if count is None and capacity_tokens is not None:
        count = int(capacity_tokens // engine.block_size)
    if engine.layout != "paged" or count is None:
        return Room()
    sharing: Sharing = "texts" if engine.prefix_sharing else "nothing"
    pool, in_chunks = BlockPool(count, engine.block_size), engine.scheduler == "continuous"
    return PagedRoom(pool, engine.num_speculative_tokens, sharing, in_chunks=in_chunks)


def scheduler_of(engine: Engine, switches: Switches, estimate: Callable[[Any], float]) -> Scheduler[Request]:
    """Build the scheduler that a scenario names, with its departures from the engine.

    Args:
        engine, switches: settings.
        estimate: seconds per expected token of a choice of members, for the cost-aware choice.
    """
    lean_static = engine.scheduler == "static" and not switches.zombies
    options = SchedulingOptions(
        refill=switches.refill and not lean_static,
        choice=switches.group_choice,
        partial_groups=switches.partial_groups,
        bucket_tokens=switches.bucket_tokens,
        estimate=estimate if switches.cost_aware else None,
        aging_from=switches.aging_from,
    )
    name = "fifo" if lean_static else engine.scheduler
    if name == "grouped" and switches.group_key == "padded_length":
        window = engine.resolved_window_size
        return PaddedKeyScheduler(engine.batch_size, window, engine.aging_bound, options=options)
    sizes = engine.batch_size, engine.resolved_window_size, engine.aging_bound
    return make_scheduler(name, *sizes, token_budget=engine.resolved_token_budget, options=options)
