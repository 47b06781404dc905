"""What a caller may choose: frozen, validated, free of tensors."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Literal, get_args

from refimpl.core.declared import Range, check_fields, documented, setting
from refimpl.core.engine_settings import LAYOUTS, SCHEDULERS, EngineSettings, LayoutName, SchedulerName
from refimpl.core.errors import InputError, did_you_mean, require, shown
from refimpl.core.execution import check_shapes
from refimpl.core.tokens import check_stops

AcceptanceName = Literal["greedy", "rejection", "block", "coupled", "forced"]
CheckLevel = Literal["off", "host", "device", "oracle"]

ACCEPTANCE_RULES: tuple[str, ...] = get_args(AcceptanceName)
CHECK_LEVELS: tuple[str, ...] = get_args(CheckLevel)
MAX_LOGPROBS = 1000  # alternatives a token


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


@documented
@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the target's next-token distribution is shaped. Temperature 0 is greedy.

    Filters apply in the order temperature, top-k, top-p, min-p, to the target and the draft alike.
    """

    temperature: float = setting(0.0, "Divides the logits; 0 takes the most probable token.", Range(0), option=())
    top_k: int = setting(0, "Draw from the k most probable tokens; 0 for all.", Range(0, integer=True), option=())
    top_p: float = setting(
        1.0, "Draw from the most probable tokens that reach this probability.", Range(0, 1, open_low=True), option=()
    )
    min_p: float = setting(0.0, "Drop tokens below this share of the most probable one's.", Range(0, 1), option=())
    seed: int = setting(
        0, "Key of the random numbers, with a sequence's index and position.",
        Range(-(2**63), 2**63 - 1, integer=True), option=(),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(EngineSettings):
    """Everything that a run of the engine depends on beside the pair and the prompts.

    Greedy and coupled acceptance reproduce the autoregressive tokens. ``"rejection"`` and ``"block"`` reproduce their
    law; docs/engine.md says which tokens then depend on the batch.
    """

    method: str = setting("inplace", f"{', '.join(NAMED_METHODS)}, or LAYOUT+SCHEDULER.", option=())
    max_new_tokens: int = setting(64, "Most tokens generated per prompt.", Range(1, integer=True), option=())
    acceptance: str | None = setting(
        None,
        "Rule that accepts drafts: greedy, coupled, rejection, block or, for timing only, forced:P/P/…, the "
        "probabilities of 0, 1, … accepted drafts.",
        none="greedy at temperature 0, else coupled", option=(),
    )  # fmt: skip
    sampling: SamplingConfig = setting(SamplingConfig, "Shape of the distribution that tokens are drawn from.")
    stop_token_ids: Seq[int] | None = setting(
        None, "Stop at these tokens only; may be empty.", none="those of the models", option=()
    )
    stop_strings: Seq[str] = setting((), "Stop when the generated text contains one of these.", option=("--stop",))
    logprobs: int | None = setting(
        None, "Likeliest tokens to report log-probabilities of, beside each generated token.",
        Range(0, MAX_LOGPROBS, integer=True), none="no log-probabilities", option=(),
    )  # fmt: skip
    checks: CheckLevel | None = setting(None, "Run-time checks.", none="device on a CPU, else host", option=())
    shape_stable: bool = setting(
        False, "Run passes of one shape, so that inplace, paged and autoregressive give the same bits in any batch."
    )
    kv_memory_gib: float | None = setting(
        None, "Most memory for both models' K/V; a paged pool shrinks, other layouts refuse a run that needs more.",
        Range(0, open_low=True, infinite=True), none="most of what is free",
    )  # fmt: skip
    max_model_len: int | None = setting(
        None, "Most tokens of a sequence; K/V for a window of these are allocated, and requests may be submitted.",
        Range(2, integer=True), none="what the prompts of the run need",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        resolve_method(self.method)
        self._check_acceptance()
        self.check_together()
        check_shapes(self)
        check_stops(self.stop_token_ids, self.stop_strings)

    def _check_acceptance(self) -> None:
        name, _, numbers = (self.acceptance or "coupled").partition(":")
        known = name in ACCEPTANCE_RULES and (name == "forced") == bool(numbers)
        names = ", ".join(rule for rule in ACCEPTANCE_RULES if rule != "forced")
        require(known, f"acceptance must be one of {names} or forced:P/P/…, not {shown(self.acceptance)}")
        try:
            lengths = self.forced_lengths
        except ValueError:
            lengths = (-1.0,)
        right = not lengths or (min(lengths) >= 0 and abs(sum(lengths) - 1) < 1e-6)
        require(right, f"acceptance 'forced' needs probabilities that sum to 1, not {shown(numbers)}")
        require(
            self.acceptance != "greedy" or self.sampling.greedy,
            f"acceptance 'greedy' needs temperature 0, not {self.sampling.temperature}",
        )

    def check_level(self, device_type: str) -> CheckLevel:
        """The level in force: unless chosen, `device` on a CPU, but `host` elsewhere and for recorded rounds."""
        return self.checks or ("device" if device_type == "cpu" and not self.cuda_graphs else "host")

    @property
    def resolved_method(self) -> Method:
        """Layout and scheduler behind `method`."""
        return resolve_method(self.method)

    @property
    def layout(self) -> LayoutName | None:
        """Where K/V are stored; None for ordinary decoding."""
        return self.resolved_method.layout

    @property
    def scheduler(self) -> SchedulerName | None:
        """Which rows run in a round; None for ordinary decoding."""
        return self.resolved_method.scheduler

    @property
    def resolved_batch_size(self) -> int:
        """Rows a round runs: the method's own number where it has one."""
        return self.resolved_method.batch_size or self.batch_size

    @property
    def resolved_acceptance(self) -> AcceptanceName:
        """The acceptance rule in force."""
        if self.acceptance is None:
            return "greedy" if self.sampling.greedy else "coupled"
        return self.acceptance.partition(":")[0]  # type: ignore[return-value]

    @property
    def forced_lengths(self) -> tuple[float, ...]:
        """Probabilities of 0, 1, … accepted drafts under acceptance forced; empty under the others."""
        _, _, numbers = (self.acceptance or "").partition(":")
        return tuple(map(float, numbers.split("/"))) if numbers else ()


def forced(lengths: Iterable[float]) -> str:
    """The acceptance rule that accepts 0, 1, … drafts with these probabilities."""
    return f"forced:{'/'.join(map(repr, lengths))}"


def make_config(**settings: Any) -> DecodeConfig:
    """Build a DecodeConfig from flat keywords; the settings of sampling can be given directly.

    Raises:
        InputError: an unknown keyword, or a value out of range.
    """
    own = {item.name for item in fields(SamplingConfig)}
    known = {item.name for item in fields(DecodeConfig)} | own
    unknown = sorted(set(settings) - known)
    require(not unknown, f"unknown setting {', '.join(unknown)}: choose among {', '.join(sorted(known))}")
    given = {name: settings.pop(name) for name in own & set(settings)}
    if given:
        require("sampling" not in settings, "give either `sampling` or its fields, not both")
        settings["sampling"] = SamplingConfig(**given)
    return DecodeConfig(**settings)
