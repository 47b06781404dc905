"""What a caller may choose: frozen, validated, free of tensors."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, Literal, get_args

from refimpl.core.drafting import DraftingConfig
from refimpl.core.errors import InputError, did_you_mean, require, shown
from refimpl.core.execution import ExecutionName, check_execution, check_joint_prefill, check_shapes
from refimpl.core.request import check_stops
from refimpl.core.values import MAX_SPECULATIVE_TOKENS, is_list, is_number, require_bool, require_int, use_plain_numbers

LayoutName = Literal["realigned", "masked", "rollback", "inplace", "paged"]
SchedulerName = Literal["static", "fifo", "grouped", "continuous"]
AcceptanceName = Literal["greedy", "rejection", "block", "coupled", "forced"]
CheckLevel = Literal["off", "host", "device", "oracle"]

LAYOUTS: tuple[str, ...] = get_args(LayoutName)
SCHEDULERS: tuple[str, ...] = get_args(SchedulerName)
ACCEPTANCE_RULES: tuple[str, ...] = get_args(AcceptanceName)
CHECK_LEVELS: tuple[str, ...] = get_args(CheckLevel)

MAX_WINDOW = 2**20  # sequences
MAX_TOKEN_BUDGET = 2**20  # tokens of a round
WINDOW_BATCHES = 4  # in a window, unless its size is given
CHUNK_TOKENS = 256  # of prompts, in a round whose budget is not given
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)  # tokens


@dataclass(frozen=True, slots=True)
class Method:
    """A named point in layout × scheduler. `autoregressive` has neither: it is the oracle."""

    name: str
    layout: LayoutName | None
    scheduler: SchedulerName | None
    batch_size: int | None = None  # None: as asked for


NAMED_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("autoregressive", None, None, batch_size=1),
        Method("speculative", "inplace", "fifo", batch_size=1),
        Method("rollback", "rollback", "static"),
        Method("masked", "masked", "static"),
        Method("eqspec", "realigned", "static"),
        Method("exspec", "realigned", "grouped"),
        Method("inplace", "inplace", "fifo"),
        Method("paged", "paged", "fifo"),
    )
}
METHODS: tuple[str, ...] = (*NAMED_METHODS, *map("+".join, product(LAYOUTS, SCHEDULERS)))


def resolve_method(name: str) -> Method:
    """Look up a named method or a pair written ``layout+scheduler``, for example ``"masked+fifo"``.

    Raises:
        InputError: the name is neither; the message names what may have been meant, and lists what exists.
    """
    if isinstance(name, str) and name in NAMED_METHODS:
        return NAMED_METHODS[name]
    layout, _, scheduler = str(name).partition("+")
    if layout in LAYOUTS and scheduler in SCHEDULERS:
        return Method(name, layout, scheduler)  # type: ignore[arg-type]
    raise InputError(
        f"unknown method {shown(name)}{did_you_mean(name, METHODS)}: choose {', '.join(NAMED_METHODS)}, "
        f"or LAYOUT+SCHEDULER of {'|'.join(LAYOUTS)} and {'|'.join(SCHEDULERS)}"
    )


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the target's next-token distribution is shaped. Temperature 0 is greedy.

    Filters apply in the order temperature, top-k, top-p, min-p, to the target and the draft alike.

    Attributes:
        temperature: divides the logits; 0 means always the most probable token.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens with mass ≥ top_p, in (0, 1].
        min_p: drop tokens less probable than min_p times the most probable one, in [0, 1].
        seed: key of the random numbers, together with sequence id, position and purpose.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        require(
            is_number(self.temperature) and 0 <= self.temperature < math.inf,
            f"temperature must be a finite number ≥ 0, not {shown(self.temperature)}",
        )
        require_int("top_k", self.top_k, 0)
        require(is_number(self.top_p) and 0 < self.top_p <= 1, f"top_p must lie in (0, 1], not {shown(self.top_p)}")
        require(is_number(self.min_p) and 0 <= self.min_p <= 1, f"min_p must lie in [0, 1], not {shown(self.min_p)}")
        require_int("seed", self.seed, -(2**63), 2**63 - 1)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


PARTS: dict[str, type] = {"sampling": SamplingConfig, "drafting": DraftingConfig}  # of a DecodeConfig


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Everything that a run of the engine depends on beside the pair and the prompts.

    Attributes:
        method: a named method or ``layout+scheduler``.
        batch_size: rows a round runs at most, B.
        num_speculative_tokens: drafts per row and round at most, k; 0 is plain autoregression.
        max_new_tokens: budget of generated tokens per sequence, exact.
        window_size: sequences that a grouped scheduler chooses from, W ≥ B; None for 4 · B.
        aging_bound: rounds after which a sequence that has begun and is passed over is due; None for eight turns of the
            window.
        acceptance: rule that decides how many drafts survive; None picks ``"greedy"`` at temperature 0, else
            ``"coupled"``. Greedy and coupled reproduce the autoregressive tokens. ``"rejection"`` reproduces their
            law: its tokens are the same for any batch, order, layout and schedule, with the exception of the
            rollback layout, of draft budgets that look at the batch, of the drafter ``"hybrid"``, and of rows that
            are preempted under the drafter ``"head"``.
            ``"block"`` preserves it, too, and accepts more drafts, as it weighs all of a row together.
        forced_lengths: probability of 0, 1, … accepted drafts under acceptance ``"forced"``, for which both models
            do their full work. For timing only: its output is not the target's.
        sampling: shape of the distribution.
        drafting: what proposes tokens.
        stop_token_ids: replaces the pair's stop tokens; may be empty.
        stop_strings: texts that end a generation.
        logprobs: alternatives to report per generated token; None reports nothing, 0 the emitted token's only.
        checks: level of the run-time checks; None for ``"device"`` on a CPU, ``"host"`` elsewhere and for recorded
            rounds.
        compaction_threshold: share of dead slots at which the masked layout compacts.
        shape_stable: run every pass of the target in one fixed shape, idle rows and columns included, so that what a
            row computes does not depend, to the last bit, on which other rows are in the batch, on their order or on
            acceptance. The shape is that of `batch_size`, the largest k and the longest row of the run. For `inplace`
            and `paged` layouts and `autoregressive`, which then give the same logits.
        cuda_graphs: record a round's drafts and its verify pass once for each width of the context, and replay them.
            For `inplace` with checks ``"host"`` (then the default) or ``"off"``; without CUDA the same work runs
            unrecorded. No effect on `autoregressive`.
        kv_memory_gib: bound on the K/V of both models, working copies included; None for most of what is free. A run
            that needs more is refused before it starts. A paged pool is made smaller instead, as long as the longest
            row fits; where it runs dry, the youngest sequences are preempted, and prefilled again later. No effect on
            `autoregressive`.
        block_size: tokens of a block of the `paged` layout, a power of two, at most 64.
        prefix_sharing: let rows of the `paged` layout share full blocks of equal first tokens. Blocks that are given
            back can be found until they are needed. With `shape_stable` only prompts are shared, as what is generated
            is cached in passes of another shape.
        token_budget: tokens that a round of the `continuous` scheduler feeds at most, those of prompts included; at
            least k + 1. None for a verify pass of the whole batch and 256 tokens of prompts.
        joint_prefill: let a row decode in the pass that caches its prompt, or the last chunk of it, for which it
            otherwise waits: the prompt beside the row's own drafts, after one pass of the draft over the prompt. For
            `inplace` and `paged`, in rounds that are neither recorded nor overlapped nor of one shape. No effect on
            `autoregressive`.
        max_model_len: tokens of a sequence at most, prompt and budget together. When it is given, K/V are allocated for
            a whole window of such sequences, and further requests may be submitted while others run.
        execution: ``"serial"``: a round drafts, then verifies. ``"overlapped"``: rows form two cohorts, and beside the
            verification of one the other is drafted for. For `inplace` and `paged`, without `cuda_graphs`.
    """

    method: str = "inplace"
    batch_size: int = 8
    num_speculative_tokens: int = 5
    max_new_tokens: int = 64
    window_size: int | None = None
    aging_bound: float | None = None
    acceptance: AcceptanceName | None = None
    forced_lengths: tuple[float, ...] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    drafting: DraftingConfig = field(default_factory=DraftingConfig)
    stop_token_ids: Seq[int] | None = None
    stop_strings: Seq[str] = ()
    logprobs: int | None = None
    checks: CheckLevel | None = None
    compaction_threshold: float = 0.25
    shape_stable: bool = False
    cuda_graphs: bool = False
    kv_memory_gib: float | None = None
    block_size: int = 16
    prefix_sharing: bool = True
    token_budget: int | None = None
    joint_prefill: bool = False
    max_model_len: int | None = None
    execution: ExecutionName = "serial"

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        for name, kind in PARTS.items():
            value = getattr(self, name)
            require(isinstance(value, kind), f"{name} must be a {kind.__name__}, not {shown(value)}")
        self._check_sizes()
        self._check_choices()
        self._check_acceptance()
        self._check_method(resolve_method(self.method))
        check_stops(self.stop_token_ids, self.stop_strings)

    def _check_sizes(self) -> None:
        require_int("batch_size", self.batch_size, 1, 4096)
        require_int("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_SPECULATIVE_TOKENS)
        require_int("max_new_tokens", self.max_new_tokens, 1)
        if self.window_size is not None:
            require_int("window_size", self.window_size, 1, MAX_WINDOW)
        if self.token_budget is not None:
            require_int("token_budget", self.token_budget, 1, MAX_TOKEN_BUDGET)
        if self.max_model_len is not None:
            require_int("max_model_len", self.max_model_len, 2)
        if self.logprobs is not None:
            require_int("logprobs", self.logprobs, 0, 1000)
        require(
            self.aging_bound is None or (is_number(self.aging_bound) and self.aging_bound >= 0),
            f"aging_bound must be at least 0 rounds, not {shown(self.aging_bound)}",
        )
        require(
            is_number(self.compaction_threshold) and 0 < self.compaction_threshold <= 1,
            f"compaction_threshold must lie in (0, 1], not {shown(self.compaction_threshold)}",
        )
        require(
            self.kv_memory_gib is None or (is_number(self.kv_memory_gib) and self.kv_memory_gib > 0),
            f"kv_memory_gib must be a number above 0, not {shown(self.kv_memory_gib)}",
        )
        require(
            type(self.block_size) is int and self.block_size in BLOCK_SIZES,
            f"block_size must be one of {BLOCK_SIZES}, not {shown(self.block_size)}",
        )

    def _check_choices(self) -> None:
        for name in ("shape_stable", "cuda_graphs", "prefix_sharing", "joint_prefill"):
            require_bool(name, getattr(self, name))
        for name, value, known in (
            ("acceptance", self.acceptance, ACCEPTANCE_RULES),
            ("checks", self.checks, CHECK_LEVELS),
        ):
            require(value is None or value in known, f"{name} must be one of {', '.join(known)}, not {shown(value)}")

    def _check_acceptance(self) -> None:
        require(
            is_list(self.forced_lengths),
            f"forced_lengths must be a list of probabilities, not {shown(self.forced_lengths)}",
        )
        require(
            (self.acceptance == "forced") == bool(self.forced_lengths),
            "acceptance 'forced' and forced_lengths go together",
        )
        require(
            all(map(is_number, self.forced_lengths)),
            f"forced_lengths must be numbers, not {shown(self.forced_lengths)}",
        )
        require(
            not self.forced_lengths or (min(self.forced_lengths) >= 0 and abs(sum(self.forced_lengths) - 1) < 1e-6),
            f"forced_lengths must be probabilities that sum to 1, not {self.forced_lengths}",
        )
        require(
            self.acceptance != "greedy" or self.sampling.greedy,
            f"acceptance 'greedy' needs temperature 0, not {self.sampling.temperature}",
        )

    def _check_method(self, method: Method) -> None:
        """Settings that not every method can have; those that a method does not read hold for others."""
        if self.resolved_token_budget is not None:
            require_verify_tokens(self.resolved_token_budget, self.num_speculative_tokens)
        require(
            method.scheduler != "grouped" or self.window_size is None or self.window_size >= self.batch_size,
            f"window_size {self.window_size} is smaller than batch_size {self.batch_size}: "
            f"{self.method} needs a window of at least one batch",
        )
        check_execution(self.execution, method.layout, method.scheduler)
        check_shapes(self, method.layout, method.scheduler)
        check_joint_prefill(self, method.layout)

    def check_level(self, device_type: str) -> CheckLevel:
        """The level in force: unless chosen, `device` on a CPU, but `host` elsewhere and for recorded rounds."""
        return self.checks or ("device" if device_type == "cpu" and not self.cuda_graphs else "host")

    @property
    def resolved_method(self) -> Method:
        """Layout and scheduler behind `method`."""
        return resolve_method(self.method)

    @property
    def resolved_batch_size(self) -> int:
        """Rows a round runs: the method's own number where it has one."""
        return self.resolved_method.batch_size or self.batch_size

    @property
    def resolved_window_size(self) -> int:
        """Sequences with K/V at a time."""
        if self.resolved_method.scheduler != "grouped":
            return self.resolved_batch_size
        return self.window_size or WINDOW_BATCHES * self.batch_size

    @property
    def resolved_token_budget(self) -> int | None:
        """Tokens of a round at most, for a scheduler that has such a bound."""
        if self.resolved_method.scheduler != "continuous":
            return None
        return self.token_budget or default_token_budget(self.resolved_batch_size, self.num_speculative_tokens)

    @property
    def resolved_acceptance(self) -> AcceptanceName:
        """The acceptance rule in force."""
        return self.acceptance or ("greedy" if self.sampling.greedy else "coupled")


def default_token_budget(batch_size: int, num_speculative_tokens: int) -> int:
    """Tokens of a verify pass of the whole batch, and of one chunk of prompts."""
    return batch_size * (num_speculative_tokens + 1) + CHUNK_TOKENS


def require_verify_tokens(token_budget: int, num_speculative_tokens: int) -> None:
    """Raise InputError where a row's drafts, and the token before them, would not fit into a round."""
    row = f"a row with {num_speculative_tokens} drafts takes {num_speculative_tokens + 1} tokens"
    require(token_budget > num_speculative_tokens, f"token_budget {token_budget} is too small: {row}")


def make_config(**settings: Any) -> DecodeConfig:
    """Build a DecodeConfig from flat keywords; the settings of sampling and drafting can be given directly.

    Raises:
        InputError: an unknown keyword, or a value out of range.
    """
    names = {part: {f.name for f in fields(kind)} for part, kind in PARTS.items()}
    known = {f.name for f in fields(DecodeConfig)}.union(*names.values())
    unknown = sorted(set(settings) - known)
    require(not unknown, f"unknown setting {', '.join(unknown)}: choose among {', '.join(sorted(known))}")
    for part, own in names.items():
        given = {name: settings.pop(name) for name in own & set(settings)}
        if given:
            require(part not in settings, f"give either `{part}` or its fields, not both")
            settings[part] = PARTS[part](**given)
    return DecodeConfig(**settings)
