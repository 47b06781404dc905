"""What engines got wrong whose layers keep a recurrent state of each row."""

from collections.abc import Sequence as Seq
from typing import Any

from refimpl.core.config import LAYOUTS
from refimpl.faults.base import fault
from refimpl.layouts.states import PassStates

RECURRENT: dict[str, Any] = {"layouts": LAYOUTS, "settings": {"recurrent": True}}


@fault(PassStates, "commit", "output", "INV-24", **RECURRENT, sources=("ggml-org/llama.cpp#23269",))
def state_not_rolled_back(original: Any) -> Any:
    """A row's state is that behind all drafts, the rejected ones included.

    Text goes wrong after the first rejected draft, and never recovers.
    """

    def commit(self: PassStates, counts: Seq[int]) -> None:
        fed = len(next(iter(self._behind.values()))) - 1
        original(self, [fed * self.step] * len(counts))

    return commit


@fault(PassStates, "commit", "output", "INV-24", **RECURRENT, sources=("vllm-project/vllm#56419",))
def accepted_count_minus_one(original: Any) -> Any:
    """A row's state lacks the token that was accepted last.

    Text goes wrong where a draft is accepted, as if its last word had not been said.
    """

    def commit(self: PassStates, counts: Seq[int]) -> None:
        original(self, [max(n - 1, 0) for n in counts] if self.step == 1 else counts)

    return commit


@fault(PassStates, "commit", "output", "INV-24", **RECURRENT, sources=("vllm-project/vllm#39273",))
def state_of_slot_zero(original: Any) -> Any:
    """Rows that keep one token, as those without drafts, take the state of the first row.

    Rows without drafts go on with the text of another row.
    """

    def commit(self: PassStates, counts: Seq[int]) -> None:
        original(self, counts)
        alone = self._slots[[n == 1 for n in counts]]
        for values in (self._store.tags, *self._store.parts.values()):
            values[alone] = values[self._slots[:1]]

    return commit
