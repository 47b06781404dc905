"""Settings that fit into a memory budget, and what was given up for them."""

import math
from collections.abc import Iterator, Mapping
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
from refimpl.core.sequence import Sequence
from refimpl.decoding.dry_run import DryRun, Footprint, TooManyBytes
from refimpl.decoding.memory import GIB
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, listed, prepare

CHECKS: CheckLevel = "host"  # of the runs that are planned: they take no memory on the device
LOOKUPS = ("ngram", "suffix")  # drafters that need neither a draft model nor a head
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
    through: those of `capacity` are limited for the whole round, other budgets may cut none. A budget that reads the
    draft's probabilities keeps its drafter.
    What kernels need for themselves is not counted, but 5 % is left for it. Bytes are always those of a run with
    ``checks="host"``, which the plan's settings say unless other checks are asked for: what those take comes on top.

    Raises:
        InputError: impossible settings or prompts, settings that are not planned, or a budget that nothing fits into.
    """
    right = isinstance(budget_gib, Real) and not isinstance(budget_gib, bool) and 0 < budget_gib * GIB < math.inf
    require(right, f"the budget must be a finite number of GiB above 0, not {shown(budget_gib)}")
    config, budget, prompts = make_config(**settings), int(budget_gib * GIB), listed(prompts)
    _require_plannable(config)
    _require_no_own_drafts(prompts)
    work = _Work(pair, prepare(pair, prompts, config, max_prompt_tokens))
    for wish in _wishes(config):
        if footprint := work.within(_with(config, wish), budget):
            asked = settings if max_prompt_tokens is None else {"max_prompt_tokens": max_prompt_tokens, **settings}
            return MemoryPlan(budget, _settings(asked, wish), footprint, _gave_up(config, wish))
    need = _rounded_up(MARGIN * work.footprint(_with(config, wish)).total_bytes / GIB)
    least = f"even {wish.method}, one row and drafter {wish.drafter!r} need {need:g} GiB"
    raise InputError(f"nothing fits into {budget_gib:g} GiB: {least}")


def _rounded_up(number: float) -> float:
    """To three digits."""
    unit = 10 ** (math.floor(math.log10(number)) - 2)
    return math.ceil(number / unit) * unit


def _require_plannable(config: DecodeConfig) -> None:
    """Raise InputError for what a plan cannot count, or cannot choose beside."""
    method = config.resolved_method
    for planned, otherwise in (
        (
            method.layout in UNMOVED_LAYOUTS,
            f"{config.method} is not planned: only inplace and paged are, whose rows stay where they are",
        ),
        (
            config.resolved_token_budget is None,
            f"{config.method} caches prompts in chunks, whose memory is not planned: choose another scheduler",
        ),
        (not config.joint_prefill, "passes that cache prompts beside drafts are not planned: leave joint_prefill out"),
        (config.execution == "serial", "what two cohorts take together is not planned: choose execution 'serial'"),
        (config.logprobs is None, "copies of logits for log-probabilities are not planned: leave logprobs out"),
        (not config.cuda_graphs, "what recorded rounds keep is not planned: leave cuda_graphs out"),
        (
            config.max_model_len is None,
            "requests that come later are not planned: give prompts as long as theirs, and leave max_model_len out",
        ),
        (config.kv_memory_gib is None, "the budget bounds K/V, too: leave kv_memory_gib out"),
    ):
        require(planned, otherwise)


def _require_no_own_drafts(prompts: Seq[Prompt]) -> None:
    for place, prompt in enumerate(prompts):
        own = prompt.num_speculative_tokens if isinstance(prompt, Request) else None
        require(
            own is None, f"prompt {place} has its own num_speculative_tokens, which a plan cannot lower: leave it out"
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
    stays = own in LOOKUPS or config.drafting.reads_probabilities
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


def _settings(asked: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    return {"checks": CHECKS, **asked, **wish._asdict()}


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


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be decoded.

    Attributes:
        pair: the models.
        sequences: of all prompts.
    """

    pair: Pair
    sequences: Seq[Sequence]

    def within(self, config: DecodeConfig, budget_bytes: int) -> Footprint | None:
        """Peak of a run, if it stays within a budget; what exceeds it is counted no further."""
        if MARGIN * DryRun(self.pair, config).stored_bytes(self._at_begin(config)) > budget_bytes:
            return None
        try:
            footprint = self.footprint(config, math.ceil(budget_bytes / MARGIN))
        except TooManyBytes:
            return None
        return footprint if MARGIN * footprint.total_bytes <= budget_bytes else None

    def footprint(self, config: DecodeConfig, most_bytes: float = math.inf) -> Footprint:
        """Peak of a run; raises TooManyBytes above `most_bytes`."""
        return DryRun(self.pair, config).footprint(self._at_begin(config), self._at_end(config), most_bytes)

    def _at_begin(self, config: DecodeConfig) -> list[Sequence]:
        """All sequences, the longest prompt first."""
        return [_copy(row, row.seq_len, config) for row in sorted(self.sequences, key=lambda s: -s.seq_len)]

    def _at_end(self, config: DecodeConfig) -> list[Sequence]:
        """All sequences, the longest at its end first, each so long that a round with all drafts reaches that end."""
        drafts = min(config.num_speculative_tokens, max(s.max_new_tokens for s in self.sequences) - 1)
        longest = sorted(self.sequences, key=lambda s: -s.most_tokens)
        return [_copy(row, max(1, row.most_tokens - drafts - 1), config) for row in longest]


def _copy(row: Sequence, seq_len: int, config: DecodeConfig) -> Sequence:
    """A sequence of so many tokens, whatever they are, that ends as long as another."""
    return Sequence(
        row.index,
        row.token_ids[:1] * seq_len,
        row.most_tokens - seq_len,
        config.num_speculative_tokens,
        sequence_id=row.sequence_id,
    )
