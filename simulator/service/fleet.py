"""All replicas of a service: in one pool, or in one for prompts and one for what follows."""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import simpy

from simulator.service.cost import CostModel
from simulator.service.failures import Failures
from simulator.service.pools import POOL_NAMES, DecodeReplica, Pool, PrefillReplica
from simulator.service.proposals import Drafting
from simulator.service.records import EventLog, Request
from simulator.service.replica import Replica
from simulator.service.routing import Router
from simulator.service.scaling import Scaling
from simulator.service.scenario_cost import make_cost
from simulator.service.schedulers import prefill_engine
from simulator.service.streams import Streams
from simulator.settings.kinds import POOLS
from simulator.settings.scenario import Scenario


class Fleet:
    """Takes requests in and answers them.

    Args:
        env, scenario, cost, log, streams: of the replication.
        route: chooses among the replicas of a pool.
        drafting: what is drafted, where rows are not offered all that they can use.

    Attributes:
        decoding, prefilling: the pools; where prompts are cached by the replicas that decode, one and the same.
        moves: whether requests may come to a replica after the last has arrived, because they move or replicas do.
        num_unfinished: requests that have come and are not answered, where requests move.
        over: happens, where they do, when no request will come any more and all are answered.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        cost: CostModel,
        log: EventLog,
        streams: Streams,
        route: Router,
        drafting: Drafting | None,
    ):
        self.env, self.scenario, self.cost, self.log, self.streams = env, scenario, cost, log, streams
        self.moves, self.drafting = scenario.service.moves, drafting
        self.closing, self.num_unfinished, self.over = False, 0, env.event()
        self.split = scenario.service.pools.resolved(POOLS)
        count, first = scenario.service.replicas, scenario.service.most_replicas
        self.decoding = Pool(self._make_decoding, range(count), route)
        self.prefilling = self.decoding
        if self.split:
            self.prompts = self._prompts_alone()
            self.prompt_cost = make_cost(self.prompts, streams) if self.drafts_again else cost
            self.prompt_cost.extrapolated = cost.extrapolated
            self.prefilling = Pool(self._make_prefilling, range(first, first + self.split["prefill_replicas"]), route)
        self.failures, self.scaling = Failures(self), Scaling(self)
        for pool in self.pools.values():
            for replica in pool.replicas:
                self.failures.watch(pool, replica)

    @property
    def replicas(self) -> list[Replica]:
        """All that there ever were, in the order of their numbers."""
        return [replica for pool in self.pools.values() for replica in pool.replicas]

    @property
    def pools(self) -> dict[str, Pool]:
        """By name; prompts are cached in the last of them."""
        return dict(zip(POOL_NAMES, [self.decoding, self.prefilling][: 1 + bool(self.split)], strict=False))

    @property
    def drafts_again(self) -> bool:
        """Whether the draft's K/V are not transferred, but made by the replica that decodes."""
        return bool(self.split) and self.split["draft"] == "recomputed" and self.scenario.runs_draft

    def submit(self, request: Request) -> None:
        """Take a request in."""
        if self.moves:
            client, self.num_unfinished = request.on_finish, self.num_unfinished + 1
            request.on_finish = lambda: self._answered(client)
        self.prefilling.send(request)

    def close(self) -> None:
        """No request will come any more."""
        self.closing = True
        if self.moves:
            self._end_if_done()
        else:
            for replica in self.decoding.replicas:
                replica.close()

    def end(self, duration_s: float | None) -> Any:
        """When the clock stops: after so many seconds, or when all is done."""
        if not self.moves:
            return duration_s
        return self.over if duration_s is None else self.over | self.env.timeout(duration_s)

    @property
    def may_go_on(self) -> bool:
        """Whether a request is unfinished, or could still come."""
        if self.moves:
            return not self.over.triggered
        return any(replica.process.is_alive for replica in self.decoding.replicas)

    def bring(self, pool: Pool, replica: Replica, delay_s: float, *, paid: bool) -> Generator[Any, Any, None]:
        """Let a replica serve after a delay, for which it may be paid."""
        pool.expected += 1
        replica.since_s = self.env.now if paid else None
        yield self.env.timeout(delay_s)
        pool.expected -= 1
        replica.since_s = self.env.now if replica.since_s is None else replica.since_s
        if not replica.process.is_alive:
            replica.start()
        pool.include(replica)
        self.failures.watch(pool, replica)

    def _answered(self, client: Callable[[], Any] | None) -> None:
        self.num_unfinished -= 1
        self.failures.in_vain = 0
        if client is not None:
            client()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self.closing and not self.num_unfinished and not self.over.triggered:
            self.over.succeed()

    # --- two pools -----------------------------------------------------------------------------------------------

    def _prompts_alone(self) -> Scenario:
        """The scenario of a replica that caches prompts."""
        return replace(self.scenario, engine=prefill_engine(self.scenario.engine))

    def _make_decoding(self, number: int) -> Replica:
        kind = DecodeReplica if self.split else Replica
        made = kind(self.env, self.scenario, self.cost, self.log, self.streams, number, self.drafting)
        if isinstance(made, DecodeReplica):
            made.drafts_again = self.drafts_again
        return made

    def _make_prefilling(self, number: int) -> Replica:
        made = PrefillReplica(self.env, self.prompts, self.prompt_cost, self.log, self.streams, number)
        made.hand_over = self._transfer
        return made

    def _transfer(self, request: Request, sender: simpy.Process) -> None:
        """Send a request with its K/V to the replicas that decode; transfers do not slow each other down."""
        size = request.num_cached * self.prompt_cost.kv_bytes_per_token
        arrival = self.env.timeout(self.split["latency_s"] + size / self.split["bytes_per_s"])
        assert arrival.callbacks is not None
        arrival.callbacks.append(lambda event: self._arrive(request, sender))

    def _arrive(self, request: Request, sender: simpy.Process) -> None:
        """Its K/V are there, unless the sender has failed in the meantime."""
        pool = self.decoding if sender.is_alive else self.prefilling
        pool.send(request)
