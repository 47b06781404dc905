"""Static batches."""

from refimpl.scheduling.base import RoundPlan, Scheduler, T


class StaticScheduler(Scheduler[T]):
    """A batch runs until all its members have finished; until then finished rows keep their place."""

    def admit(self) -> list[T]:
        """Take the next batch once the window is empty."""
        return [] if self.pool.window else self.pool.admit(self.batch_size, self.allocator.enter)

    def select(self) -> RoundPlan[T]:
        """Run the whole batch, finished rows included."""
        return RoundPlan(tuple(self.pool.window.values()), "static")

    def _after(self, plan: RoundPlan[T]) -> list[T]:
        return self._release_batch()

    def _take_out(self, sequence: T) -> list[T]:
        """From the queue; a sequence in the batch keeps its place until the batch is released."""
        return self._release_batch() if sequence.ticket in self.pool.window else super()._take_out(sequence)

    def _release_batch(self) -> list[T]:
        """Release the batch when its last member has finished."""
        batch = list(self.pool.window.values())
        return self._retire(batch) if all(sequence.finished for sequence in batch) else []
