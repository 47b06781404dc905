"""As many replicas as there is work for: more are brought after a delay, others leave when they have nothing to do."""

from collections.abc import Generator
from math import ceil
from typing import TYPE_CHECKING, Any

from simulator.service.replica import Replica
from simulator.settings.kinds import SCALING

if TYPE_CHECKING:
    from simulator.service.fleet import Fleet


class Scaling:
    """Looks at the replicas that decode every so often, and asks for more or sends one away.

    Args:
        fleet: that is scaled.
    """

    def __init__(self, fleet: "Fleet"):
        self.fleet, self.pool, self.env = fleet, fleet.decoding, fleet.env
        spec = fleet.scenario.service.scaling
        self.kind, self.p = spec.kind, spec.resolved(SCALING)
        if self.kind != "fixed":
            self.env.process(self._run())

    def _run(self) -> Generator[Any, Any, None]:
        while True:
            yield self.env.timeout(self.p["every_s"])
            more = self._wanted() - len(self.pool.open) - self.pool.expected
            for _ in range(more):
                self._add()
            if more < 0 and len(self.pool.open) > 1:
                self._drain(min(self.pool.open, key=lambda replica: replica.load_tokens))

    def _wanted(self) -> int:
        """Replicas for the present work: unfinished requests over the bound, or rows in use over the target's."""
        there = [replica for replica in self.pool.replicas if replica.since_s is not None]
        if self.kind == "queue":
            unfinished = len(self.pool.stranded) + sum(replica.num_unfinished for replica in there)
            need = unfinished / self.p["requests"]
        else:
            rows = sum(len(replica.scheduler.pool.window) for replica in there)
            need = rows / (self.fleet.scenario.engine.resolved_window_size * self.p["target"])
        return min(max(ceil(need), self.p["least_replicas"]), self.p["most_replicas"])

    def _add(self) -> None:
        """One that was about to leave stays; else one is brought."""
        leaving = [replica for replica in self.pool.replicas if replica.closing and replica.process.is_alive]
        if leaving:
            leaving[0].closing = False
            self.pool.include(leaving[0])
            return
        replica = self.pool.idle.pop(0) if self.pool.idle else self.pool.added()
        self.env.process(self.fleet.bring(self.pool, replica, self.p["delay_s"], paid=True))

    def _drain(self, replica: Replica) -> None:
        """It takes no request any more, and leaves when it has answered those that it has."""
        process = replica.process
        self.pool.exclude(replica)
        replica.close()
        assert process.callbacks is not None
        process.callbacks.append(lambda event: self._left(replica) if replica.process is process else None)

    def _left(self, replica: Replica) -> None:
        if replica.closing and replica not in self.pool.idle:
            replica.leave()
            self.pool.idle.append(replica)
