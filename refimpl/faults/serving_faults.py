"""What engines that serve many users got wrong, rebuilt where this engine has the same joint."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refimpl import results
from refimpl.core.records import RowOutcome
from refimpl.core.sequence import Sequence
from refimpl.decoding import engine, rounds
from refimpl.decoding.assembly import RunLimits
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.engine import Engine
from refimpl.decoding.recorded import RecordedPasses, _Ahead
from refimpl.decoding.rounds import RoundContext
from refimpl.faults.base import fault, result_changed
from refimpl.faults.layout_faults import change_blocks, write_elsewhere
from refimpl.layouts import base as layout_base
from refimpl.layouts.store import Block
from refimpl.placement import sizes

INPLACE: dict[str, Any] = {"layouts": ("inplace",), "schedulers": ("fifo",)}
RECORDED: dict[str, Any] = INPLACE | {"settings": {"cuda_graphs": True}}

# --- positions and entries ---------------------------------------------------------------------------------------


@fault(CachedModel, "block", "output", "INV-2", source="jundot/omlx#2363")
def window_at_its_first_position(original: Any) -> Any:
    """Every token of a verify pass has the position of the first one."""
    return change_blocks("target", _at_first_position)(original)


def _at_first_position(block: Block) -> Block:
    return replace(block, position_ids=block.position_ids[:, :1].expand(block.position_ids.shape))


@fault(engine, "assemble", "output", "INV-4", **INPLACE, source="vllm-project/vllm#32628")
def clamped_write(original: Any) -> Any:
    """Drafts beyond the last position that a row may have are written to column 0."""

    def assemble(pair: Any, run_limits: RunLimits, *rest: Any) -> RoundContext:
        context = original(pair, run_limits, *rest)
        for cached in context.models:
            cached.layout.pool_block = _clamped(cached.layout, run_limits.longest)
        return context

    return assemble


def _clamped(layout: Any, last: int) -> Any:
    right = layout.pool_block

    def pool_block(rows: Any, tokens: Tensor, position: Tensor, real: Tensor, width: int) -> Block:
        columns = torch.where(position < last, position, 0)
        return write_elsewhere(right, layout, rows, tokens, position, columns, real, width)

    return pool_block


@fault(
    layout_base,
    "_spread",
    "output",
    "INV-3",
    **INPLACE | {"settings": {"shape_stable": True}},
    source="vllm-project/vllm#43682",
)
def idle_row_advances(original: Any) -> Any:
    """An idle row, there to fill a fixed shape, writes to column 0 of the sequence whose slot it borrows."""
    return lambda values, places, count, rest: original(values, places, count, max(0, rest))


@fault(
    RecordedPasses,
    "_width_for",
    "output",
    None,
    **RECORDED,
    conditions=((sizes, "COLUMN_STEP", 8),),
    source="vllm-project/vllm#46324",
)
def graph_of_another_width(original: Any) -> Any:
    """A round replays the narrowest recording that there is, whose view ends before the context does."""
    return lambda self, columns: min([*(width for width, _ in self._recordings), original(self, columns)])


@fault(
    _Ahead,
    "serves",
    "acceptance",
    None,
    **RECORDED,
    conditions=((RecordedPasses, "overlaps", True),),
    source="vllm-project/vllm#28558",
)
def stale_drafts_for_a_new_tenant(original: Any) -> Any:
    """Drafts made ahead for a sequence that has ended are verified for the one that took its slot."""
    return lambda self, members, key: key == self.key


# --- rows --------------------------------------------------------------------------------------------------------


@fault(CachedModel, "forward", "output", None, source="vllm-project/vllm#14645")
@result_changed
def logits_in_another_order(right: Tensor, self: CachedModel, *_: Any) -> Tensor:
    """The target's logits come in another order than the rows of the batch."""
    return right.flip(0) if self.role == "target" else right


@fault(rounds, "_logprobs", "report", None, source="vllm-project/vllm#33391")
def logprobs_of_another_row(original: Any) -> Any:
    """A token's log-probability is read from the logits of the row before."""
    return lambda logits, *rest: original(logits.roll(1, dims=0), *rest)


# --- ends and counts ---------------------------------------------------------------------------------------------


@fault(Sequence, "extend", "output", "INV-7", source="sgl-project/sglang#31599")
def budget_before_earlier_stop(original: Any) -> Any:
    """A block that reaches the budget is kept whole, whatever stop token it holds before."""

    def extend(self: Sequence, tokens: list[int]) -> int:
        if len(tokens) < self.remaining:
            return original(self, tokens)
        kept = tokens[: self.remaining]
        self.token_ids.extend(kept)
        self.stop_reason = "length"
        return len(kept)

    return extend


@fault(Sequence, "extend", "output", None, settings={"stop_as_text": True}, source="vllm-project/vllm#47616")
def stop_string_trims_text_only(original: Any) -> Any:
    """A stop string cuts the text; token ids and log-probabilities run on to the end of the block."""

    def extend(self: Sequence, tokens: list[int]) -> int:
        strings, self.stop_strings = self.stop_strings, None
        kept = original(self, tokens)
        self.stop_strings = strings
        if strings and strings.appear_in(self.generated):
            self.stop_reason = "stop"
        return kept

    return extend


@fault(results, "acceptance_stats", "report", None, source="vllm-project/vllm#56101")
def statistics_count_the_cut(original: Any) -> Any:
    """Tokens after a stop or beyond the budget count as generated."""

    def stats(rows: Iterable[RowOutcome]) -> Any:
        return original([replace(row, kept=row.accepted + 1) for row in rows])

    return stats


# --- requests that leave -----------------------------------------------------------------------------------------


@fault(
    Engine,
    "_release",
    "output",
    "INV-3",
    **INPLACE | {"settings": {"cancellations": ((1, 0),)}},
    source="vllm-project/vllm#39012",
)
def place_of_a_cancelled_row_given_twice(original: Any) -> Any:
    """The place of a cancelled row goes to the next sequence, and to the one after it."""

    def release(self: Engine, sequence: Sequence) -> None:
        slot = sequence.slot
        original(self, sequence)
        if sequence.stop_reason == "cancelled" and slot >= 0:
            self._free_slots.append(slot)

    return release
