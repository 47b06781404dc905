"""Replicas that fail, what is lost with them, and when others take their places."""

from collections.abc import Generator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from refimpl.core.errors import require
from simulator.service.pools import Pool
from simulator.service.replica import Replica
from simulator.service.streams import Purpose
from simulator.settings.kinds import FAILURES

if TYPE_CHECKING:
    from simulator.service.fleet import Fleet

MOST_IN_VAIN = 10_000  # failures without an answer in between


class Failures:
    """Lets replicas fail, at given times or after exponential ones, and sends their requests on.

    Args:
        fleet: whose replicas fail.

    Attributes:
        in_vain: failures since a request was answered.
    """

    def __init__(self, fleet: "Fleet"):
        self.fleet, self.env = fleet, fleet.env
        spec = fleet.scenario.service.failures
        self.kind, self.p, self.in_vain = spec.kind, spec.resolved(FAILURES), 0
        self.gaps = lru_cache(maxsize=None)(lambda number: fleet.streams.generator(Purpose.FAILURE, number))
        if self.kind == "times":
            self.env.process(self._at_times())

    def watch(self, pool: Pool, replica: Replica) -> None:
        """A replica begins to serve: it may fail from now on."""
        if self.kind == "random":
            self.env.process(self._at_random(pool, replica))

    def fail(self, pool: Pool, replica: Replica) -> None:
        """Lose all that a replica holds; its requests are prefilled again elsewhere, or where it was."""
        self.in_vain += 1
        often = f"{MOST_IN_VAIN} replicas failed in a row before any request was answered"
        require(self.in_vain <= MOST_IN_VAIN, f"service.failures: {often}: let them fail more rarely")
        lost, served = replica.fail(), replica in pool.open
        if served:  # else it leaves anyway, and nothing takes its place
            pool.exclude(replica)
            replica.leave()
            self.env.process(self.fleet.bring(pool, replica, self.p["repair_s"], paid=False))
        for request in lost:
            self.fleet.prefilling.send(request)

    def _at_times(self) -> Generator[Any, Any, None]:
        """At each time the one with most work."""
        for time_s in sorted(self.p["times_s"]):
            yield self.env.timeout(time_s - self.env.now)
            there = [(pool, replica) for pool in self.fleet.pools.values() for replica in pool.open]
            if there:
                self.fail(*max(there, key=lambda each: (each[1].load_tokens, -each[1].number)))

    def _at_random(self, pool: Pool, replica: Replica) -> Generator[Any, Any, None]:
        process = replica.process
        yield self.env.timeout(float(self.gaps(replica.number).exponential(self.p["mean_between_s"])))
        if replica.process is process and process.is_alive:
            self.fail(pool, replica)
