"""The engine's own schedulers, set up for a scenario."""

from collections.abc import Callable
from typing import Any

from refimpl.scheduling import GroupedScheduler, Scheduler, SchedulingOptions, make_scheduler
from simulator.records import Request
from simulator.scenario import Engine, Switches


class PaddedKeyScheduler(GroupedScheduler[Request]):
    """Groups as the published code does: by padded length, which the rows of a round have in common after it."""

    def group_key(self, sequence: Request) -> tuple[int, int]:
        """Padded length, and whether there is a cache."""
        return sequence.padded_len, int(sequence.rounds > 0)


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
    )
    name = "fifo" if lean_static else engine.scheduler
    if name == "grouped" and switches.group_key == "padded_length":
        window = engine.resolved_window_size
        return PaddedKeyScheduler(engine.batch_size, window, engine.aging_bound, options=options)
    return make_scheduler(name, engine.batch_size, engine.resolved_window_size, engine.aging_bound, options=options)
