"""Whether a server that chooses by cost waits for a further row."""

from refimpl.scheduling import Scheduler
from simulator.service.gate import Gate
from simulator.service.pricing import Pricing
from simulator.service.records import Request
from simulator.settings.parts import Engine, Switches


class Patience:
    """Knows when requests have come, and what a further one would bring.

    Args:
        engine, switches: settings.
        scheduler: whose window and queue it looks at.
        gate: where requests wait for room.
        pricing: seconds of a round.
    """

    def __init__(self, engine: Engine, switches: Switches, scheduler: Scheduler[Request], gate: Gate, pricing: Pricing):
        self.scheduler, self.gate, self.pricing = scheduler, gate, pricing
        self.batch_is_closed = engine.scheduler == "static" or not switches.refill
        self.count, self.first_s, self.last_s = 0, 0.0, 0.0  # of arrivals

    def note(self, now_s: float, count: int) -> None:
        """Write down that so many requests arrive now."""
        self.first_s = self.first_s if self.count else now_s
        self.last_s, self.count = now_s, self.count + count

    def worth_waiting_s(self) -> float:
        """Mean gap between arrivals if one more row after it yields more tokens per second than a round now, else 0.

        Myopic: it weighs the next round only, and a wait is followed by a round.
        """
        pool = self.scheduler.pool
        rows = tuple(pool.window.values()) + tuple(pool.waiting)
        if self.count < 2 or not 0 < len(rows) < self.scheduler.batch_size or not self._takes_more():
            return 0.0
        gap_s = (self.last_s - self.first_s) / (self.count - 1)
        now_s, later_s = (self.pricing.seconds_per_row(rows, len(rows) + more) for more in (0, 1))
        return gap_s if later_s + gap_s / (len(rows) + 1) < now_s else 0.0

    def _takes_more(self) -> bool:
        """Whether a request that comes now may join the next round: nobody waits for room, nor for a batch's end."""
        pool = self.scheduler.pool
        no_room = bool(self.gate.queue) or (self.scheduler.room.num_blocks is not None and bool(pool.waiting))
        return not (pool.window and (self.batch_is_closed or no_room))
