"""Two cohorts out of step: drafts that are verified twice, and rows in both cohorts."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from refimpl.core.sequence import Sequence
from refimpl.decoding.overlapped import OverlappedPasses
from refimpl.decoding.recorded import RecordedPasses, _Ahead
from refimpl.faults.base import COUPLED, fault, result_changed
from refimpl.placement import sizes
from refimpl.scheduling import OverlappedScheduler, RoundPlan

RECORDED: dict[str, Any] = {"layouts": ("inplace",), "schedulers": ("fifo",), "settings": {"cuda_graphs": True}}
SAMPLED: dict[str, Any] = {
    "layouts": ("inplace",), "schedulers": ("fifo",), "settings": {"execution": "overlapped"} | COUPLED,
}  # fmt: skip


@fault(
    OverlappedPasses,
    "after",
    "output",
    "INV-21",
    **SAMPLED,
    sources=("tenstorrent/vllm-tt-plugin#131", "vllm-project/vllm#47014"),
)
def stale_offer(original: Any) -> Any:
    """Where nothing is drafted ahead, the proposal of the round before stays, and is verified a second time.

    Sampled text depends on the load: it changes whenever a row sits out a drafting pass.
    """

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


# --- recordings --------------------------------------------------------------------------------------------------


@fault(
    RecordedPasses,
    "_width_for",
    "output",
    None,
    **RECORDED,
    conditions=((sizes, "COLUMN_STEP", 8),),
    sources=("vllm-project/vllm#46324", "vllm-project/vllm#53929"),
)
def graph_of_another_width(original: Any) -> Any:
    """A round replays the narrowest recording that there is, whose view ends before the context does.

    Illegal memory access in the middle of decoding, after a round that accepted some drafts and not all. Where the
    read stays in bounds: wrong tokens.
    """
    return lambda self, columns: min([*(width for width, _ in self._recordings), original(self, columns)])


@fault(
    _Ahead,
    "serves",
    "acceptance",
    None,
    **RECORDED,
    conditions=((RecordedPasses, "overlaps", True),),
    sources=("vllm-project/vllm#28558",),
)
def stale_drafts_for_a_new_tenant(original: Any) -> Any:
    """Drafts made ahead for a sequence that has ended are verified for the one that took its slot.

    The first round of a new request accepts nothing: slower the shorter the answers, and never wrong.
    """
    return lambda self, members, key: key == self.key
