"""Where requests wait until their K/V fit."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from refimpl.core.errors import require
from refimpl.placement import PLACEMENTS, pool_columns
from refimpl.scheduling import Scheduler
from simulator.service.cost import CostModel
from simulator.service.records import Request
from simulator.settings.scenario import Engine, Scenario


class Admission:
    """Lets requests through in order, each with room for its prompt and its whole budget.

    Beside that, the working batch of the layout has room for a full batch of rows as long as the longest request that
    has been let through, in each of its two buffers.

    Args:
        scheduler: whom they are passed to.
        engine: whose layout and batch size decide the room for the working batch.
        capacity_tokens: tokens whose K/V fit; None for no limit.
    """

    def __init__(self, scheduler: Scheduler[Request], engine: Engine, capacity_tokens: float | None):
        self.scheduler, self.engine, self.capacity_tokens = scheduler, engine, capacity_tokens
        self.queue: deque[Request] = deque()
        self.reserved: list[int] = []  # tokens of each request that has been let through, ascending
        self.reserved_tokens = 0

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests in, and let through what fits.

        Raises:
            InputError: a request is larger than the whole capacity.
        """
        self.queue.extend(requests)
        self._open()

    def release(self, tokens: int) -> None:
        """A request has left that had reserved so many tokens."""
        if self.capacity_tokens is not None:
            del self.reserved[bisect_left(self.reserved, tokens)]
            self.reserved_tokens -= tokens
            self._open()

    def _open(self) -> None:
        if self.capacity_tokens is None:
            self.scheduler.submit(self.queue)
            self.queue.clear()
            return
        while self.queue and self._fits(self.queue[0]):
            request = self.queue.popleft()
            insort(self.reserved, request.most_tokens)
            self.reserved_tokens += request.most_tokens
            self.scheduler.submit([request])

    def _fits(self, request: Request) -> bool:
        assert self.capacity_tokens is not None
        longest = max([request.most_tokens, *self.reserved[-1:]])
        rows = min(self.engine.batch_size, len(self.reserved) + 1)
        columns = pool_columns(longest, self.engine.num_speculative_tokens + 1)
        beside = PLACEMENTS[self.engine.layout].num_working_slots(rows, columns)
        need = self.reserved_tokens + request.most_tokens + beside
        require(
            bool(self.reserved) or need <= self.capacity_tokens,
            f"the memory for K/V holds {self.capacity_tokens:.0f} tokens; a request needs {need}",
        )
        return need <= self.capacity_tokens


def room_bytes(scenario: Scenario, cost: CostModel) -> float | None:
    """Room for K/V of a replica: as given, else in the memory of the device where costs know it; None for no limit."""
    return scenario.service.kv_capacity_bytes or cost.kv_capacity_bytes


def require_room(scenario: Scenario, cost: CostModel) -> None:
    """Raise InputError where blocks or bytes for K/V are more than a device has room for, where that is known."""
    engine, given_bytes = scenario.engine, scenario.service.kv_capacity_bytes or 0.0
    held_bytes = (engine.num_blocks or 0) * engine.block_size * cost.kv_bytes_per_token
    room_bytes = cost.kv_capacity_bytes or math.inf
    room = f"the device has room for {room_bytes:.3g}"
    require(held_bytes <= room_bytes, f"engine.num_blocks {engine.num_blocks} take {held_bytes:.3g} bytes, {room}")
    require(given_bytes <= room_bytes, f"service.kv_capacity_bytes is {given_bytes:.3g}, {room}")
