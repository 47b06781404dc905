"""Where requests wait until their K/V fit."""

from collections import deque
from collections.abc import Iterable

from refimpl.scheduling import Scheduler
from simulator.errors import require
from simulator.records import Request


class Gate:
    """Lets requests through in order, each with room for its prompt and its whole budget.

    Args:
        scheduler: whom they are passed to.
        capacity_tokens: tokens whose K/V fit; None for no limit.
    """

    def __init__(self, scheduler: Scheduler[Request], capacity_tokens: float | None):
        self.scheduler, self.capacity_tokens = scheduler, capacity_tokens
        self.queue: deque[Request] = deque()
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
            self.reserved_tokens -= tokens
            self._open()

    def _open(self) -> None:
        if self.capacity_tokens is None:
            self.scheduler.submit(self.queue)
            self.queue.clear()
            return
        while self.queue:
            need = self.queue[0].prompt_len + self.queue[0].left
            fits = need <= self.capacity_tokens
            require(fits, f"service.kv_capacity_bytes holds {self.capacity_tokens:.0f} tokens; a request needs {need}")
            if self.reserved_tokens + need > self.capacity_tokens:
                return
            self.reserved_tokens += need
            self.scheduler.submit([self.queue.popleft()])
