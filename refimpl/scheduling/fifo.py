"""First in, first out, with refill."""

from refimpl.scheduling.base import RoundPlan, Scheduler, T


class FifoScheduler(Scheduler[T]):
    """Every row runs in every round; a finished row is replaced at once."""

    def select(self) -> RoundPlan[T]:
        """Run everything in the window."""
        return RoundPlan(tuple(self.pool.window.values()), "fifo")
