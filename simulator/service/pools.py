"""Replicas that do the same work; of two such pools one caches prompts, the other decodes what it is sent."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import simpy

from refimpl.scheduling import RoundPlan
from simulator.service.cost import Fed
from simulator.service.records import Request, RoundLine
from simulator.service.replica import Replica
from simulator.service.routing import Router

POOL_NAMES = ("decode", "prefill")
PREFILL = "prefill"  # mode of the rounds of a replica of that pool


class Pool:
    """Replicas that do the same work.

    Args:
        make: number → a replica of the pool.
        numbers: of those that are there at the start.
        route: chooses among those that take requests.

    Attributes:
        replicas: all that there ever were, in the order of their numbers.
        open: those of them that take requests.
        idle: those that have left, and may be brought again.
        expected: replicas that are being brought.
        stranded: requests that came while none was open.
    """

    def __init__(self, make: Callable[[int], Replica], numbers: range, route: Router):
        self.make, self.first, self.route = make, numbers.start, route
        self.replicas = [make(number) for number in numbers]
        self.open = list(self.replicas)
        self.idle: list[Replica] = []
        self.expected = 0
        self.stranded: deque[Request] = deque()

    def send(self, request: Request) -> None:
        """Pass a request on to a replica, as soon as there is one."""
        if self.open:
            self.route(request, self.open).submit([request])
        else:
            self.stranded.append(request)

    def include(self, replica: Replica) -> None:
        """It takes requests from now on."""
        self.open = [each for each in self.replicas if each is replica or each in self.open]
        while self.stranded:
            self.send(self.stranded.popleft())

    def exclude(self, replica: Replica) -> None:
        """It takes none any more."""
        self.open = [each for each in self.open if each is not replica]

    def added(self) -> Replica:
        """One more replica, which takes no requests so far."""
        self.replicas.append(self.make(self.first + len(self.replicas)))
        return self.replicas[-1]


class PrefillReplica(Replica):
    """Caches prompts, as its scheduler admits or cuts them, and decodes nothing.

    Attributes:
        hand_over: called with every request whose prompt is cached, and the process that serves, when it has left.
    """

    hand_over: Callable[[Request, simpy.Process], None]

    def serve(self) -> Generator[Any, Any, None]:
        """The server process: one timeout for each pass over prompts."""
        window, waiting = self.scheduler.pool.window, self.scheduler.pool.waiting
        while True:
            if not window and not waiting:
                yield from self._idle()
                continue
            prefill_s = self._admit() if waiting and len(window) < self.scheduler.window_size else 0.0
            plan = self._plan_prompts()
            stages = self.pricing.price(plan.mode, (), (), prefill_s)
            stages = self.pricing.with_chunks(stages, plan.chunks, 0) if plan.chunks else stages
            factor = next(self.noise)
            self.begun = RoundLine(self.number, self.env.now, factor, *stages, PREFILL, 0, 0, 0, 0, 0)
            self.plan = plan
            yield self.env.timeout(sum(stages) * factor)
            for request in plan.members:
                request.begin(self.begun.start_s)
                request.finished = True  # for the scheduler, which lets it go
            self._finish_round(plan, (), 0, 0)

    def _plan_prompts(self) -> RoundPlan[Request]:
        """Chunks, where the scheduler cuts prompts; members are the requests that have nothing left to be cached."""
        plan: RoundPlan[Request] = RoundPlan((), "fifo")
        if self.scheduler.token_budget is not None:
            plan, preempted = self.scheduler.choose()
            for request in preempted:
                self._preempt(request)
        fed = {chunk.sequence.sequence: chunk.count for chunk in plan.chunks}
        window = self.scheduler.pool.window.values()
        return replace(plan, members=tuple(each for each in window if each.to_prefill == fed.get(each.sequence, 0)))

    def _leaves(self, request: Request) -> None:
        request.finished, request.slot, request.has_kv = False, -1, True
        self.hand_over(request, self.process)


class DecodeReplica(Replica):
    """Decodes requests whose K/V come with them.

    Attributes:
        drafts_again: whether the draft's K/V are not among these, so that it caches the text on entry.
        received: requests that entered last, of those with K/V.
    """

    drafts_again = False
    received: Sequence[Request] = ()

    def _admit(self) -> float:
        """Seconds before the round: of what lost its K/V here, and of the draft on what was received."""
        self.received = []
        seconds = super()._admit()
        missed = [Fed(1, request.num_cached, 0) for request in self.received if request.num_cached]
        return seconds + (self.pricing.cost.catch_up_s(missed) if self.drafts_again and missed else 0.0)

    def _note_hits(self, request: Request) -> None:
        if not request.has_kv:
            super()._note_hits(request)
            return
        self.received = [*self.received, request]
        request.has_kv, request.num_prefix_hits = False, request.num_cached
