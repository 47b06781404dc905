"""Two cohorts out of step: drafts that are verified twice, and rows in both cohorts."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from refimpl.core.sequence import Sequence
from refimpl.decoding.overlapped import OverlappedPasses
from refimpl.faults.base import COUPLED, fault, result_changed
from refimpl.scheduling import OverlappedScheduler, RoundPlan

SAMPLED: dict[str, Any] = {
    "layouts": ("inplace",), "schedulers": ("fifo",), "settings": {"execution": "overlapped"} | COUPLED,
}  # fmt: skip


@fault(OverlappedPasses, "after", "output", "INV-21", **SAMPLED, source="tenstorrent/vllm-tt-plugin#131")
def stale_offer(original: Any) -> Any:
    """Where nothing is drafted ahead, the proposal of the round before stays, and is verified a second time."""

    def after(self: OverlappedPasses, ahead: Seq[Sequence]) -> None:
        if ahead:
            original(self, ahead)

    return after


@fault(OverlappedScheduler, "select", "output", "INV-21", **SAMPLED)
@result_changed
def drafted_while_verified(right: RoundPlan, _: Any) -> RoundPlan:
    """Rows are drafted ahead while they are verified: what follows is drafted for a text that the round changes, and is
    verified with the random numbers of places that have their tokens."""
    return replace(right, ahead=right.ahead or right.members)
