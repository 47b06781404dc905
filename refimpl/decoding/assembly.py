"""Build an engine from settings: models with layouts, an acceptance rule and passes."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from refimpl.core.config import DecodeConfig
from refimpl.core.errors import InputError, require
from refimpl.core.sequence import Sequence
from refimpl.decoding.acceptance import AcceptanceRule, fuse, make_rule
from refimpl.decoding.cached import CachedModel, CheckedModel
from refimpl.decoding.checked_source import CheckedSource
from refimpl.decoding.drafters import (
    DRAFTER_MAKERS,
    CheckedBudget,
    HeadDrafter,
    Makers,
    ModelDrafter,
    NoDrafts,
    TargetStates,
)
from refimpl.decoding.invariants import Checker
from refimpl.decoding.memory import require_room, usable_bytes
from refimpl.decoding.overlapped import OverlappedPasses
from refimpl.decoding.passes import EagerPasses, Passes
from refimpl.decoding.processors import Processors
from refimpl.decoding.recorded import RecordedPasses
from refimpl.decoding.rounds import RoundContext
from refimpl.decoding.sampling import RandomSource
from refimpl.decoding.streams import make_streams
from refimpl.decoding.timing import StageTimer
from refimpl.drafting.budgets import DraftBudget, make_budget
from refimpl.layouts import Layout, make_layout
from refimpl.layouts.spans import FULL
from refimpl.layouts.states import StateStore
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.placement import PLACEMENTS, PoolSize, num_states
from refimpl.scheduling import BlockPool, KVAllocator, PagedKVAllocator, Sharing, blocks_for

COMPILED: frozenset[str] = frozenset({"compiled", "kernels"})  # values of `layers`
WINDOW_STEP = 4  # fixed windows are multiples: matrix kernels of float64 add up the last rows, fewer than 4, otherwise


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What the sequences of a run need at most.

    Attributes:
        lengths: tokens of each, prompt and budget together.
        most_drafts: drafts of a row and round.
        most_sequences: of the run; infinite where a whole window of the longest has room.
        fixed: whether every verify pass has one shape.
        uses_draft: whether the pair's draft runs: not where no row ever has drafts.
    """

    lengths: tuple[int, ...]
    most_drafts: int
    most_sequences: float
    fixed: bool
    uses_draft: bool

    @classmethod
    def of(cls, sequences: Seq[Sequence], config: DecodeConfig) -> "RunLimits":
        """Of these sequences; where `max_model_len` is given, of a whole window of others that are as long, too."""
        lengths, drafts = [s.most_tokens for s in sequences], [s.num_speculative_tokens for s in sequences]
        if config.max_model_len is not None:
            lengths += [config.max_model_len] * config.resolved_window_size
            drafts.append(config.num_speculative_tokens)
        most_sequences = len(sequences) if config.max_model_len is None else math.inf
        uses_draft = config.drafting.uses_draft and max(drafts) > 0
        return cls(tuple(lengths), max(drafts), most_sequences, config.shape_stable, uses_draft)

    @property
    def longest(self) -> int:
        """Tokens of the longest row that the run can reach."""
        return max(self.lengths)

    @property
    def span(self) -> int:
        """Tokens a row of the largest verify pass; of every one, in steps, where they have one shape."""
        span = self.most_drafts + 1
        return -(-span // WINDOW_STEP) * WINDOW_STEP if self.fixed else span

    def require(self, sequences: Seq[Sequence], before: int) -> None:
        """Raise InputError unless a run that was built for this can take these, beside so many before them."""
        enough = before + len(sequences) <= self.most_sequences
        require(
            enough, "the run was built for the requests that it began with: give max_model_len, so that more may come"
        )
        tokens, drafts = (max(map(attrgetter(name), sequences)) for name in ("most_tokens", "num_speculative_tokens"))
        require(tokens <= self.longest, f"a request of {tokens} tokens, budget included: the run has {self.longest}")
        require(drafts <= self.most_drafts, f"a request of {drafts} drafts a round: the run has {self.most_drafts}")


def assemble(
    pair: Pair, run_limits: RunLimits, config: DecodeConfig, window_size: int, source: RandomSource | None
) -> RoundContext:
    """Allocate what the rounds of a run need.

    Args:
        pair: the models.
        run_limits: of all its sequences, for the sizes.
        config: settings; its method has a layout.
        window_size: sequences that are admitted at a time.
        source: replaces the keyed random numbers.

    Raises:
        InputError: the K/V cannot fit, or rounds cannot be recorded; nothing is allocated then.
    """
    checker, timer = Checker(config.check_level(pair.device.type)), StageTimer(pair.device)
    uses_draft, is_enumeration = run_limits.uses_draft, source is not None
    _require_possible(pair, config, checker, uses_draft=uses_draft, is_enumeration=is_enumeration)
    size = _pool_size(pair, run_limits, config, window_size)
    budget = make_budget(config.drafting)
    if checker.covers("device"):
        source, budget = CheckedSource(source or RandomSource()), CheckedBudget(budget)
    rule = make_rule(config, source, pair.device)
    if source is None and _is_compiled(pair):
        rule = fuse(rule)
    target = _cached_model(pair, "target", config, size, checker, timer, run_limits)
    makers = Makers(
        lambda: ModelDrafter(
            _cached_model(pair, "draft", config, size, checker, timer, run_limits), rule, pair.vocab_size, budget
        ),
        lambda: _head_drafter(pair, checker, rule, budget, timer),
    )
    drafter = DRAFTER_MAKERS[config.drafter](makers) if run_limits.most_drafts else NoDrafts()
    if drafter.states and drafter.states.reads.whole:
        target.heard_by = drafter.states.of_prompts
    processors = Processors(pair.vocab_size, pair.device, checked=checker.covers("device"))
    eager = EagerPasses(target, drafter, rule, pair.vocab_size, budget, processors, target.window)
    passes: Passes = eager
    if config.cuda_graphs:
        k, fixed = run_limits.most_drafts, config.drafting.fixed
        passes = RecordedPasses(eager, drafter.cached, k=k, fixed=fixed, stable=config.shape_stable)
    if config.execution == "overlapped":
        passes = OverlappedPasses(eager, checker, make_streams(pair.device))
    return RoundContext(target, drafter, passes, checker, processors, config.logprobs)


def _head_drafter(
    pair: Pair, checker: Checker, rule: AcceptanceRule, budget: DraftBudget, timer: StageTimer
) -> HeadDrafter:
    head = pair.require_head()
    return HeadDrafter(head, TargetStates(checker, head.reads), rule, pair.vocab_size, budget, timer)


def _is_compiled(pair: Pair) -> bool:
    """Whether the target's layers are compiled for a GPU: then proposals and decisions are, too."""
    target = pair.target
    return pair.device.type == "cuda" and isinstance(target, HuggingFaceLM) and target.layers.name in COMPILED


def allocator_of(layouts: Seq[Layout], run_limits: RunLimits, config: DecodeConfig) -> KVAllocator[Sequence]:
    """Room for the K/V that the layouts of all models store, as the scheduler sees it."""
    layout = layouts[0]
    if not layout.block_size:
        return KVAllocator()
    pool = BlockPool(layout.pool.rows - 1, layout.block_size)
    in_chunks = config.joint_prefill or config.resolved_token_budget is not None
    stateful, seen = any(each.shape.states for each in layouts), _first_seen(layouts)
    sharing = "nothing" if stateful else sharing_of(config)  # a block holds no state to go on from
    return PagedKVAllocator(pool, run_limits.most_drafts, sharing, in_chunks=in_chunks, first_seen=seen)


def _first_seen(layouts: Seq[Layout]) -> Callable[[int], int] | None:
    """First position that queries from a given one on may see, in any layer; None where one sees all of a row."""
    spans = {span for layout in layouts for span in layout.shape.spans or (FULL,)}
    return None if FULL in spans else lambda query: min(span.start(query) for span in spans)


def sharing_of(config: DecodeConfig) -> Sharing:
    """What rows share: under fixed shapes only prompts, as what is generated is cached in passes of another shape."""
    if not config.prefix_sharing:
        return "nothing"
    return "prompts" if config.shape_stable else "texts"


def _pool_size(pair: Pair, run_limits: RunLimits, config: DecodeConfig, window_size: int) -> PoolSize:
    """The pool of a run; a paged one has fewer blocks where memory is short, enough for the longest row at least.

    Raises:
        InputError: the K/V cannot fit.
    """
    layout, batch_size, block_size = config.resolved_method.layout or "", config.resolved_batch_size, config.block_size
    per_token = sum(model.kv_shape.bytes_per_token for model in pair.models(run_limits.uses_draft))
    size = PoolSize.of_run(
        run_limits.lengths,
        window_size=window_size,
        batch_size=batch_size,
        span=run_limits.span,
        least_rows=batch_size if config.shape_stable else 0,
        block_size=block_size,
    )
    per_row = sum(model.kv_shape.bytes_per_row for model in pair.models(run_limits.uses_draft))
    states_bytes = per_row * num_states(size.rows, size.batch_rows, run_limits.span)
    usable = usable_bytes(config.kv_memory_gib, pair.device) - states_bytes
    least = blocks_for(run_limits.longest, block_size)
    fitting = usable / (per_token * block_size) - 1 if per_token else math.inf  # models without attention cache nothing
    size = replace(size, num_blocks=int(max(least, min(size.num_blocks, fitting))))
    require_room(PLACEMENTS[layout].num_slots(size), per_token, usable, paged=layout == "paged")
    return size


def bias(config: DecodeConfig) -> str:
    """Why a run would not follow the target's law, and what to choose instead; empty where it does."""
    budget, rule = make_budget(config.drafting), config.resolved_acceptance
    if make_rule(config).keeps_tokens:
        return ""
    if budget.shares and config.resolved_method.layout == "rollback":
        return (
            f"draft_budget {config.draft_budget!r} ties the lengths of rounds to what other rows draw, which "
            f"changes the law of acceptance {rule!r} where all rows commit the batch minimum: choose another layout"
        )
    if not budget.predictable:
        return (
            f"draft_budget {config.draft_budget!r} ranks a draft by what was drawn, which changes the law under "
            f"acceptance {rule!r}: choose capacity"
        )
    return ""


def _require_possible(
    pair: Pair, config: DecodeConfig, checker: Checker, *, uses_draft: bool, is_enumeration: bool
) -> None:
    """Refuse biased runs, but for an enumeration, which may run one to see the bias, and what a model cannot do."""
    if not is_enumeration and (reason := bias(config)):
        raise InputError(reason)
    if config.shape_stable:
        pair.require_steady(with_draft=uses_draft)
    elif pair.shape_bound:
        raise InputError(
            f"the target of {pair.name} gives numbers that depend on the shape of a pass (as int8 activations do), so "
            "tokens would depend on the batch: use shape_stable"
        )
    if config.cuda_graphs:
        _require_recordable(pair, checker, uses_draft)


def _require_recordable(pair: Pair, checker: Checker, uses_draft: bool) -> None:
    if checker.covers("device"):
        raise InputError(f"recorded rounds cannot be checked at level {checker.level}: choose host or off")
    if waiting := [model for model in pair.models(uses_draft) if not model.recordable]:
        states = waiting[0].kv_shape.states
        waits = "its states wait for lengths" if states else "its RoPE waits for the longest row in every pass"
        raise InputError(f"{pair.name} cannot be recorded: {waits}")


def _cached_model(
    pair: Pair,
    role: Literal["target", "draft"],
    config: DecodeConfig,
    size: PoolSize,
    checker: Checker,
    timer: StageTimer,
    run_limits: RunLimits,
) -> CachedModel:
    model = pair.target if role == "target" else pair.require_draft()
    fixed = config.shape_stable and role == "target"
    layout = make_layout(
        config.resolved_method.layout or "",
        model.kv_shape,
        size,
        compaction_threshold=config.compaction_threshold,
        max_positions=model.max_positions,
        tagged=checker.covers("device"),
        block_rows=config.resolved_batch_size if fixed else None,
    )
    window = run_limits.span if fixed else None
    states = StateStore(model.kv_shape, size.rows) if model.kv_shape.states else None
    if checker.covers("host"):
        return CheckedModel(model, layout, role, timer, window, states, checker=checker)
    return CachedModel(model, layout, role, timer, window, states)
