"""Replicas of a disaggregated service: some cache prompts and hand them over, the others decode what they are sent."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from refimpl.scheduling import RoundPlan
from simulator.service.cost import Fed
from simulator.service.records import Request, RoundLine
from simulator.service.replica import Replica

POOL_NAMES = ("decode", "prefill")
PREFILL = "prefill"  # mode of the rounds of a replica of that pool


class PrefillReplica(Replica):
    """Caches prompts, as its scheduler admits or cuts them, and decodes nothing.

    Attributes:
        hand_over: called with every request whose prompt is cached, when it has left.
    """

    hand_over: Callable[[Request], None]

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
                request.finished = True  # here
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
        self.hand_over(request)


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
