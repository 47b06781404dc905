"""One replication: requests, a router, replicas, and the clock."""

import gc
import math
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import simpy

from refimpl.core.errors import require
from simulator.service.acceptance import acceptance_of
from simulator.service.cost import CostModel
from simulator.service.fleet import Fleet
from simulator.service.proposals import make_drafting
from simulator.service.records import EventLog, Request
from simulator.service.replica import Replica
from simulator.service.routing import make_router
from simulator.service.scenario_cost import make_cost
from simulator.service.streams import Purpose, Streams
from simulator.service.workload import RequestSource, arrival_times
from simulator.settings.fields import REQUESTS
from simulator.settings.scenario import Scenario

ENOUGH_ANSWERS = 2**13  # to foresee how many requests the clients of a closed study will make
COARSE = 1e-3  # share of a round by which the clock may be off


class Simulation:
    """Runs one replication of a scenario.

    Args:
        scenario: what to simulate.
        replication: which one; with the seed it decides every random number.
        keep_rows: whether to log every row of every round.

    Attributes:
        log: what happened.
        cost: the cost model, with this replication's calibration uncertainty.
    """

    def __init__(self, scenario: Scenario, replication: int = 0, *, keep_rows: bool = False):
        self.scenario = scenario
        self.streams = Streams(scenario.seed, replication)
        self.source = RequestSource(scenario, self.streams)
        self.env = simpy.Environment()
        self.log = EventLog(keep_rows=keep_rows)
        self.acceptance = acceptance_of(scenario, self.streams)
        self.draw, self.text = self.acceptance.tile, self.source.block_tokens  # bound once, for all requests
        self.cost: CostModel = make_cost(scenario, self.streams)
        drafting = make_drafting(scenario, self.streams, self.acceptance)
        route = make_router(scenario, self.source)
        self.fleet = Fleet(self.env, scenario, self.cost, self.log, self.streams, route, drafting)

    @property
    def replicas(self) -> list[Replica]:
        """All that there ever were, in the order of their numbers."""
        return self.fleet.replicas

    def run(self) -> EventLog:
        """Run to the end of the study.

        Raises:
            InputError: the study left the calibrated range and the scenario does not allow that, or lasted too long.
        """
        study = self.scenario.study
        start = {"offline": self._start_offline, "open": self._start_open, "closed": self._start_closed}[study.kind]
        with collection_paused():
            start()
            self.env.run(until=self.fleet.end(study.duration_s))
        for replica in self.replicas:
            replica.stop()
        self.log.end_s = float(self.env.now) if self.fleet.may_go_on else self.log.last_round_s
        self.cost.check_widths()
        self._refuse_coarse_clock()
        return self.log

    def _refuse_coarse_clock(self) -> None:
        """The clock is one number: the larger it is, the longer its steps, which rounds must not vanish between."""
        if len(lasted_s := self.log.round_columns["round_s"]):
            round_s, end_s = float(lasted_s[-1]), self.log.last_round_s
            step_s = math.ulp(end_s)
            given = f"after {end_s:.3g} s the clock has steps of {step_s:.3g} s, and a round takes {round_s:.3g} s"
            require(round_s == 0 or step_s <= COARSE * round_s, f"the study lasts too long: {given}")

    def _arrive(self, index: int) -> Request:
        lengths, priority = self.source.lengths(index), self.source.priority(index)
        request = Request(index, lengths, self.draw, self.text, self.env.now, priority)
        self.log.requests.append(request)
        return request

    # --- kinds of study ------------------------------------------------------------------------------------------

    def _start_offline(self) -> None:
        requests = [self._arrive(index) for index in range(self.scenario.study.num_requests or 0)]
        if self.scenario.workload.sort_prompts:
            requests.sort(key=lambda request: request.prompt_len)
        for request in requests:
            self.fleet.submit(request)
        self.fleet.close()

    def _start_open(self) -> None:
        self.env.process(self._open_arrivals())

    def _open_arrivals(self) -> Generator[Any, Any, None]:
        study = self.scenario.study
        index = 0
        for time_s, together in groupby(arrival_times(study.arrivals, self.streams, study.num_requests)):
            if time_s > self.env.now:  # it may end an ulp beside time_s, so that the times are compared with each other
                yield self.env.timeout(time_s - self.env.now)
            for _ in together:
                request = self._arrive(index)
                self.fleet.submit(request)
                index += 1
        self.fleet.close()

    def _start_closed(self) -> None:
        self.next_index = 0
        for client in range(self.scenario.study.clients or 0):
            self.env.process(self._client(client))

    def _client(self, client: int) -> Generator[Any, Any, None]:
        mean_s = self.scenario.study.think_time_s
        pauses = self.streams.generator(Purpose.THINK, client)
        while True:
            yield self.env.timeout(float(pauses.exponential(mean_s)) if mean_s else 0.0)
            self._refuse_too_many()
            request = self._arrive(self.next_index)
            self.next_index += 1
            finished = self.env.event()
            request.on_finish = finished.succeed
            self.fleet.submit(request)
            yield finished

    def _refuse_too_many(self) -> None:
        """Judge by the first answers how many requests will come: where rounds are short, clients ask without end."""
        study, answers = self.scenario.study, self.next_index - (self.scenario.study.clients or 0)
        if answers < ENOUGH_ANSWERS or answers & (answers - 1):  # only at powers of two, where the guess is better
            return
        expected = answers * (study.duration_s or 0) / max(self.env.now, sys.float_info.min)
        message = f"study.duration_s {study.duration_s} brings about {expected:.3g} requests; at most {REQUESTS.most}"
        require(expected <= REQUESTS.most, f"{message}: {answers} were answered in {self.env.now:.3g} s")


@contextmanager
def collection_paused() -> Iterator[None]:
    """Without garbage collection: requests and events make no cycles worth a scan of everything."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def simulate_once(scenario: Scenario, replication: int = 0, *, keep_rows: bool = False) -> Simulation:
    """Run one replication and return it with its log."""
    simulation = Simulation(scenario, replication, keep_rows=keep_rows)
    simulation.run()
    return simulation
