"""Two cohorts in turn: the drafts of one are verified while those of the other are made."""

from refimpl.scheduling.base import RoundPlan, Scheduler, T


class OverlappedScheduler(Scheduler[T]):
    """Rows whose drafts are there run; of the others, up to half of the window are drafted ahead for the next round.

    So a row changes its cohort when it has committed, and nothing is written down but who was drafted (INV-21). The
    bound balances the cohorts: after rows have left or entered, the youngest of the larger one sit out a round. None
    does so twice in a row: unless drafts are lost, a row waits two rounds at most between two of its own.

    Where no drafts are there, at first or because all of their rows have left, the older half runs, and is drafted in
    the same round. So a single row is drafted and verified in every round.
    """

    def select(self) -> RoundPlan[T]:
        """Run what was drafted ahead, and draft others."""
        window = list(self.pool.window.values())
        half = -(-len(window) // 2)
        members = [sequence for sequence in window if sequence.ticket in self.ahead] or window[:half]
        taken = {sequence.ticket for sequence in members}
        others = [sequence for sequence in window if sequence.ticket not in taken]
        return RoundPlan(tuple(members), "overlapped", ahead=tuple(others[:half]))

    def _after(self, plan: RoundPlan[T]) -> list[T]:
        self.ahead = {sequence.ticket for sequence in plan.ahead}
        return super()._after(plan)
