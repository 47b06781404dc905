"""Settings that fit into a memory budget, and what was given up for them."""

import math
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Unpack

from refimpl.core.config import DecodeConfig, make_config
from refimpl.core.drafting import DrafterName
from refimpl.core.errors import InputError, require
from refimpl.core.keywords import Settings
from refimpl.core.sequence import Sequence
from refimpl.decoding.dry_run import DryRun, Footprint
from refimpl.decoding.memory import GIB
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, prepare

CHECKS = "host"  # of the runs that are planned: they take no memory on the device
LAYOUTS = ("inplace", "paged")  # without working copies, which come and go
MARGIN = 1.05  # over what is counted: kernels need some memory, too


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Settings under which a run stays within its budget.

    Attributes:
        budget_bytes: what was allowed.
        settings: keywords for `generate`.
        footprint: bytes at the peak of the run.
        gave_up: one line for each wish that did not fit.
    """

    budget_bytes: int
    settings: dict[str, Any]
    footprint: Footprint
    gave_up: tuple[str, ...]


def plan_memory(
    pair: Pair,
    prompts: Seq[Prompt],
    *,
    budget_gib: float,
    max_prompt_tokens: int | None = None,
    **settings: Unpack[Settings],
) -> MemoryPlan:
    """Find the first settings that fit, giving up as little as possible.

    What is given up, in this order: pool rows as long as the longest (``paged`` stores blocks), drafts, the draft model
    (``ngram`` looks drafts up), rows. Nothing of it changes greedy or coupled output. The bytes are those of the run's
    own prefill and of a round at its end, counted on tensors without values: with the longest prompts in one batch,
    though they may never meet, and without shared prefixes. What kernels need for themselves is not counted, but 5 % is
    left for it. Runs are planned with ``checks="host"``.

    Raises:
        InputError: impossible settings or prompts, or a budget that nothing fits into.
    """
    require(0 < budget_gib < math.inf, f"the budget must be a finite number of GiB above 0, not {budget_gib}")
    config, budget = make_config(**{"checks": CHECKS, **settings}), int(budget_gib * GIB)
    _require_plannable(config)
    work = _Work(pair, prepare(pair, prompts, config, max_prompt_tokens).sequences)
    least = 0
    for wish in _wishes(config, has_draft=pair.draft is not None):
        tried = _with(config, wish)
        if MARGIN * (least := work.stored_bytes(tried)) > budget:
            continue
        footprint = work.footprint(tried)
        if MARGIN * (least := footprint.total_bytes) <= budget:
            return MemoryPlan(budget, _settings(settings, wish), footprint, _gave_up(config, wish))
    need = f"even {wish.method}, one row and drafter {wish.drafter!r} need {MARGIN * least / GIB:.3g} GiB or more"
    raise InputError(f"nothing fits into {budget_gib:g} GiB: {need}")


def _require_plannable(config: DecodeConfig) -> None:
    layout, whole = config.resolved_method.layout, config.resolved_token_budget is None
    known = f"{config.method} is not planned: only inplace and paged are, whose rows stay where they are"
    require(layout in LAYOUTS, known)
    require(whole, f"{config.method} caches prompts in chunks, whose memory is not planned: choose another scheduler")
    require(config.execution == "serial", "what two cohorts take together is not planned: choose execution 'serial'")


class Wish(NamedTuple):
    """Settings that a plan may choose."""

    batch_size: int
    drafter: DrafterName
    num_speculative_tokens: int
    method: str


def _wishes(config: DecodeConfig, *, has_draft: bool) -> Iterator[Wish]:
    """What was asked for, then with less and less; what is given up last varies slowest."""
    own = config.drafting.drafter
    drafters: list[DrafterName] = [own, "ngram"] if config.drafting.uses_draft and has_draft else [own]
    methods = dict.fromkeys((config.method, "paged"))
    drafts = _halves(config.num_speculative_tokens) or [0]
    for wish in product(_halves(config.resolved_batch_size), drafters, drafts, methods):
        yield Wish(*wish)


def _halves(number: int) -> list[int]:
    """The number, its half, and so on, down to 1."""
    return [number >> shift for shift in range(number.bit_length())]


def _with(config: DecodeConfig, wish: Wish) -> DecodeConfig:
    """The same with a wish, without a bound on K/V alone, and with prompts that have nothing in common."""
    return replace(
        config,
        method=wish.method,
        batch_size=wish.batch_size,
        num_speculative_tokens=wish.num_speculative_tokens,
        drafting=replace(config.drafting, drafter=wish.drafter),
        kv_memory_gib=math.inf,
        prefix_sharing=False,
    )


def _settings(asked: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    return {"checks": CHECKS, **asked, **wish._asdict()}


def _gave_up(config: DecodeConfig, wish: Wish) -> tuple[str, ...]:
    rows, drafts = config.resolved_batch_size, config.num_speculative_tokens
    in_blocks = wish.method != config.method
    lines = [
        ("pool rows as long as the longest: paged stores blocks, which every pass gathers", in_blocks),
        (f"drafts: {wish.num_speculative_tokens} a row in place of {drafts}", wish.num_speculative_tokens < drafts),
        (f"the draft model: {wish.drafter} looks drafts up", wish.drafter != config.drafting.drafter),
        (f"rows: {wish.batch_size} a round in place of {rows}", wish.batch_size < rows),
    ]
    return tuple(line for line, given_up in lines if given_up)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be decoded.

    Attributes:
        pair: the models.
        sequences: of all prompts.
    """

    pair: Pair
    sequences: Seq[Sequence]

    def stored_bytes(self, config: DecodeConfig) -> int:
        """Weights and K/V of a run."""
        return DryRun(self.pair, config).stored_bytes(self._copies(config), ())

    def footprint(self, config: DecodeConfig) -> Footprint:
        """Peak of a run."""
        rows = config.resolved_batch_size
        begin, end = self._copies(config), self._copies(config, near_end=True)
        return DryRun(self.pair, config).footprint(begin[:rows], end[:rows], end[rows:])

    def _copies(self, config: DecodeConfig, *, near_end: bool = False) -> list[Sequence]:
        """All sequences, the longest first; at their prompts, or where they draft for the last time."""
        longest = sorted(self.sequences, key=lambda s: -s.most_tokens)
        return [_copy(row, config, near_end=near_end) for row in longest]


def _copy(row: Sequence, config: DecodeConfig, *, near_end: bool) -> Sequence:
    """A sequence as a run begins with it, or near its end, with any tokens in place of those generated."""
    drafts = min(row.num_speculative_tokens, config.num_speculative_tokens)
    generated = max(0, row.max_new_tokens - drafts - 1) if near_end else 0
    return Sequence(
        row.index,
        [*row.token_ids, *row.token_ids[-1:] * generated],
        row.max_new_tokens - generated,
        drafts,
        sequence_id=row.sequence_id,
        draft_cached=0 if config.drafting.uses_draft else None,
    )
