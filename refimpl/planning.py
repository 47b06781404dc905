"""Settings that fit into a memory budget, and what was given up for them."""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import product
from numbers import Real
from typing import Any, NamedTuple, Unpack

from refimpl.core.config import CheckLevel, DecodeConfig, make_config
from refimpl.core.drafting import DrafterName
from refimpl.core.errors import InputError, require, shown
from refimpl.core.execution import UNMOVED_LAYOUTS
from refimpl.core.keywords import Settings
from refimpl.core.request import Request
from refimpl.decoding.dry_run import DryRun, Footprint
from refimpl.decoding.memory import GIB
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, listed, prepare

CHECKS: CheckLevel = "host"  # of the runs that are planned: they take no memory on the device
UNPLANNED = ("joint_prefill", "execution", "logprobs", "cuda_graphs", "max_model_len", "kv_memory_gib")
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
    or head (``ngram`` looks drafts up), rows. Nothing of it changes greedy or coupled output. The bytes are those of
    the run's own prefill and of rounds at its end, counted on tensors without values: with the longest prompts in one
    batch, though they may never meet, without shared prefixes, and with all drafts that the draft budget can let
    through. A budget that reads the draft's probabilities keeps its drafter. What kernels need for themselves is not
    counted, but 5 % is left for it; nor is what checks take, which are ``"host"`` unless others are asked for.

    Raises:
        InputError: impossible settings or prompts, settings that are not planned, or a budget that nothing fits into.
    """
    right = isinstance(budget_gib, Real) and not isinstance(budget_gib, bool) and 0 < budget_gib * GIB < math.inf
    require(right, f"the budget must be a finite number of GiB above 0, not {shown(budget_gib)}")
    config, budget, prompts = make_config(**settings), int(budget_gib * GIB), listed(prompts)
    _require_plannable(config, prompts)
    sequences = prepare(pair, prompts, config, max_prompt_tokens)
    for wish in _wishes(config):
        run = DryRun(pair, _with(config, wish), sequences)
        if MARGIN * run.stored_bytes() <= budget and MARGIN * (footprint := run.footprint()).total_bytes <= budget:
            asked = settings if max_prompt_tokens is None else {"max_prompt_tokens": max_prompt_tokens, **settings}
            return MemoryPlan(budget, {"checks": CHECKS, **asked, **wish._asdict()}, footprint, _gave_up(config, wish))
    least = f"even {wish.method}, one row and drafter {wish.drafter!r} need about"
    need = MARGIN * run.footprint().total_bytes / GIB
    raise InputError(f"nothing fits into {budget_gib:g} GiB: {least} {need:.3g} GiB")


def _require_plannable(config: DecodeConfig, prompts: Seq[Prompt]) -> None:
    """Raise InputError for what a plan cannot count, or cannot choose beside."""
    require(
        config.resolved_method.layout in UNMOVED_LAYOUTS and config.resolved_token_budget is None,
        f"{config.method} is not planned: choose inplace or paged, whose rows stay where they are, and a scheduler "
        "that caches prompts whole",
    )
    for name in UNPLANNED:
        require(
            getattr(config, name) == getattr(DecodeConfig(), name), f"what {name} takes is not planned: leave it out"
        )
    own = [p for p in prompts if isinstance(p, Request) and p.num_speculative_tokens is not None]
    require(
        not own, "num_speculative_tokens of a prompt's own, which a plan cannot lower, is not planned: leave it out"
    )


class Wish(NamedTuple):
    """Settings that a plan may choose."""

    batch_size: int
    drafter: DrafterName
    num_speculative_tokens: int
    method: str


def _wishes(config: DecodeConfig) -> Iterator[Wish]:
    """What was asked for, then with less and less; what is given up last varies slowest."""
    own, method = config.drafter, config.resolved_method
    stays = config.drafting.draws is None or config.drafting.reads_probabilities
    drafters: list[DrafterName] = [own] if stays else [own, "ngram"]
    methods = [config.method, *([f"paged+{method.scheduler}"] if method.layout != "paged" else [])]
    drafts = _halves(config.num_speculative_tokens) or [0]
    for wish in product(_halves(config.resolved_batch_size), drafters, drafts, methods):
        yield Wish(*wish)


def _halves(number: int) -> list[int]:
    """The number, its half, and so on, down to 1."""
    return [number >> shift for shift in range(number.bit_length())]


def _with(config: DecodeConfig, wish: Wish) -> DecodeConfig:
    """The same with a wish, as it is planned: unchecked, with all drafts and prompts that have nothing in common."""
    return replace(
        config,
        method=wish.method,
        batch_size=wish.batch_size,
        num_speculative_tokens=wish.num_speculative_tokens,
        drafter=wish.drafter,
        draft_budget=config.draft_budget if config.drafting.reads_probabilities else "fixed",
        checks="off",
        kv_memory_gib=math.inf,
        prefix_sharing=False,
    )


def _gave_up(config: DecodeConfig, wish: Wish) -> tuple[str, ...]:
    rows, drafts = config.resolved_batch_size, config.num_speculative_tokens
    in_blocks = wish.method != config.method
    lines = [
        ("pool rows as long as the longest: paged stores blocks, which every pass gathers", in_blocks),
        (f"drafts: {wish.num_speculative_tokens} a row instead of {drafts}", wish.num_speculative_tokens < drafts),
        (f"draft {config.drafting.draws} dropped: {wish.drafter} lookup instead", wish.drafter != config.drafter),
        (f"rows: {wish.batch_size} instead of {rows}", wish.batch_size < rows),
    ]
    return tuple(line for line, given_up in lines if given_up)
