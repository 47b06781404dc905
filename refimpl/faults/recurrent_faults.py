"""What engines got wrong whose layers keep a recurrent state of each row."""

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from refimpl.core.config import LAYOUTS
from refimpl.decoding.cached import CachedModel
from refimpl.faults.base import fault, result_changed
from refimpl.layouts.states import PassStates
from refimpl.layouts.store import Block

RECURRENT: dict[str, Any] = {"layouts": LAYOUTS, "settings": {"recurrent": True}}
BLOCK_SIZE = 4


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


@fault(
    CachedModel,
    "forward_rows",
    "output",
    "INV-24",
    **RECURRENT,
    sources=("vllm-project/vllm#54740", "vllm-project/vllm-xpu-kernels#599"),
)
@result_changed
def convolution_window_shifted(right: Tensor, _: CachedModel, block: Block, counts: Seq[int], *__: Any) -> Tensor:
    """The window of a short convolution is found as if every row had been fed as many tokens as the longest: it lags by
    what a row was fed less.

    Where the kernel does not refuse them, rows with fewer drafts than others go on with text that is nearly right.
    """
    behind = block.states._behind if block.states else {}
    rows = torch.arange(len(block.tokens))
    lag = block.tokens.shape[1] - torch.tensor(counts)
    for part in (part for part in behind if part.name == "conv"):
        steps = torch.stack(behind[part])
        behind[part] = [steps[(n - lag).clamp(min=0), rows] for n in range(len(steps))]
    return right


@fault(
    PassStates,
    "commit",
    "output",
    "INV-24",
    layouts=("paged",),
    settings={"recurrent": True, "block_size": BLOCK_SIZE},
    sources=("vllm-project/vllm#53505",),
)
def state_stays_at_the_block_border(original: Any) -> Any:
    """A row whose text gets beyond the end of a block keeps the state at that border, as where an engine with a state
    for each block copies them the wrong way round.

    Text is right for a block, and then degenerates: the longer the blocks, the later.
    """

    def commit(self: PassStates, counts: Seq[int]) -> None:
        before = self._store.tags[self._slots, 1].tolist()
        borders = [(start + n) // BLOCK_SIZE * BLOCK_SIZE - start for start, n in zip(before, counts, strict=True)]
        kept = [border if border > 0 else n for border, n in zip(borders, counts, strict=True)]
        original(self, kept if self.step == 1 else counts)

    return commit
