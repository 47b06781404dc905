# ruff: noqa: RUF009 (field helpers and frozen Specs are safe defaults)
"""The parts of a scenario: study, workload, engine, switches and service; frozen, checked, units in names."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from refimpl.core.declared import documented, setting
from refimpl.core.engine_settings import LAYOUTS, SCHEDULERS, EngineSettings, LayoutName, SchedulerName
from refimpl.core.errors import require
from refimpl.core.request import PRIORITY
from simulator.settings.fields import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    REPLICAS,
    REQUESTS,
    Range,
    Spec,
    check_fields,
    number_field,
    spec_field,
)
from simulator.settings.kinds import ACCEPTANCE, ARRIVALS, COMMON, FAILURES, LENGTHS, POOLS, SCALING
from simulator.settings.methods import engine_settings

DEFAULT_BUDGET = 128
BLOCKS = Range(1, 2**24, integer=True)
MIN_PHASE = 1e-3  # requests that an on phase brings
MAX_BUDGET = 2**18  # tokens; a number is drawn for each of them, for hundreds of requests at a time
RECORDED = ("trace", "replay")  # arrivals that were written down, and end
LENGTH_NAMES = ("prompt_tokens", "output_tokens")
IGNORED = {  # kind of study -> settings that have no effect there
    "offline": ("duration_s", "clients", "think_time_s", "arrivals", "warmup"),
    "open": ("clients", "think_time_s"),
    "closed": ("num_requests", "arrivals"),
}


@dataclass(frozen=True, slots=True)
class Study:
    """How requests come, and when the study ends. What a kind of study would ignore is refused.

    Attributes:
        kind: ``offline`` (all at time 0, until the last has finished), ``open`` (arrivals), ``closed`` (clients).
        num_requests: requests in all (offline, open); None, without `duration_s`, for all that recorded arrivals have.
        duration_s: stop the clock here; what is unfinished is reported as censored (open, closed).
        clients: clients that each wait for an answer before they ask again (closed).
        think_time_s: mean of a client's exponential pause (closed).
        arrivals: arrival process (open).
        warmup: how the beginning is left out of the metrics of an open or closed study: not at all, or where MSER-5
            says; the latter refuses runs that are too short.
    """

    kind: Literal["offline", "open", "closed"] = "offline"
    num_requests: int | None = number_field(REQUESTS, None)
    duration_s: float | None = number_field(POSITIVE, None)
    clients: int | None = number_field(REQUESTS, None)
    think_time_s: float = number_field(NON_NEGATIVE, 0.0)
    arrivals: Spec = spec_field(ARRIVALS, Spec.of("poisson", rate_per_s=1.0))
    warmup: Literal["none", "mser5"] = "none"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind == "offline":
            require(self.num_requests is not None, "num_requests is missing: an offline study needs it")
            require(self.warmup == "none", "warmup must be none: an offline study has no steady state")
        elif self.kind == "open":
            given = self.num_requests is not None or self.duration_s is not None or self.arrivals.kind in RECORDED
            message = "num_requests or duration_s is missing: an open study needs one of them"
            require(given, f"{message}, unless its arrivals are of kind {' or '.join(RECORDED)}")
        else:
            require(self.clients is not None, "clients is missing: a closed study needs it")
            require(self.duration_s is not None, "duration_s is missing: a closed study needs it")
        self._refuse_ignored()
        self._refuse_endless()

    @property
    def ends_with_record(self) -> bool:
        """Whether nothing but the record of its arrivals says how many requests come."""
        return self.kind == "open" and self.num_requests is None and self.duration_s is None

    def _refuse_endless(self) -> None:
        """Arrivals without end, and pauses so short that they are never all drawn."""
        values = dict(self.arrivals.values)
        if self.kind != "open" or self.arrivals.kind in RECORDED:
            return
        rate = values.get("rate_per_s") or 1 / values["interval_s"]
        expected = rate * (self.duration_s or 0)
        few = self.num_requests is not None or expected <= REQUESTS.most
        require(few, f"duration_s {self.duration_s} brings about {expected:.3g} requests; at most {REQUESTS.most}")
        phase = values.get("mean_on_s", math.inf) * rate
        require(phase >= MIN_PHASE, f"arrivals.mean_on_s brings {phase:.3g} requests a phase; at least {MIN_PHASE}")

    def _refuse_ignored(self) -> None:
        for item in fields(self):
            idle = item.name in IGNORED[self.kind] and getattr(self, item.name) != item.default
            require(not idle, f"{item.name} has no effect in a study of kind {self.kind}: leave it out")


DEFAULT_STUDY = Study(num_requests=64)  # where nothing is said of one


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One kind of requests; None stands for what holds for all of them.

    Attributes:
        name: ending of the names of its metrics.
        share: of the requests, relative to the sum of all shares.
        priority: who enters first, and is preempted last: the smallest.
        prompt_tokens, output_tokens, acceptance: of its requests, of the same kinds as those of all.
        slo_first_token_s, slo_per_token_s: what its requests must meet to count as goodput.
    """

    name: str
    share: float = number_field(POSITIVE, 1.0)
    priority: int = number_field(PRIORITY, 0)
    prompt_tokens: Spec | None = spec_field(LENGTHS, None)
    output_tokens: Spec | None = spec_field(LENGTHS, None)
    acceptance: Spec | None = spec_field(ACCEPTANCE, None)
    slo_first_token_s: float | None = number_field(POSITIVE, None)
    slo_per_token_s: float | None = number_field(POSITIVE, None)

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.name.isidentifier(), f"name must be a word of letters, digits and _, not {self.name!r}")


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of prompts and outputs, in tokens; a service trace of arrivals brings its own.

    An output longer than the budget is cut there, and counts in the metric `cut_outputs`.

    Attributes:
        prompt_tokens, output_tokens: lengths.
        sort_prompts: whether an offline study starts with the shortest prompt.
        common: which requests begin with the same tokens, and may share blocks: none; ``system_prompt``: the first
            `tokens`, one of so many `prompts`; ``sessions``: users in turn, who come back with their whole conversation
            before the new prompt, up to `turns` times; ``trace``: as an engine has found it.
        classes: kinds of requests with lengths, acceptance and limits of their own, in random order; metrics are also
            given for each.
    """

    prompt_tokens: Spec = spec_field(LENGTHS, Spec.of("fixed", tokens=64))
    output_tokens: Spec = spec_field(LENGTHS, Spec.of("fixed", tokens=128))
    sort_prompts: bool = False
    common: Spec = spec_field(COMMON, Spec.of("none"))
    classes: tuple[RequestClass, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        names = [each.name for each in self.classes]
        require(len(set(names)) == len(names), f"classes: a name stands twice: {', '.join(names)}")
        for name, lengths in self.lengths:
            values = dict(lengths.values)
            low, high = values.get("low_tokens", 0), values.get("high_tokens", math.inf)
            require(low <= high, f"{name}.low_tokens {low} is larger than high_tokens {high}")

    @property
    def lengths(self) -> list[tuple[str, Spec]]:
        """All laws of lengths, each with the path of its setting."""
        places = [("", self), *((f"classes[{at}].", each) for at, each in enumerate(self.classes))]
        found = [(f"{at}{name}", getattr(each, name)) for at, each in places for name in LENGTH_NAMES]
        return [(name, lengths) for name, lengths in found if lengths]


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(EngineSettings):
    """The engine's settings, as in `refimpl`, and what only a simulation has."""

    layout: LayoutName = setting("inplace", "Where K/V are stored.", LAYOUTS)
    scheduler: SchedulerName = setting("fifo", "Which rows run in a round.", SCHEDULERS)
    max_new_tokens: int | None = setting(
        None, "Most tokens generated per request; an engine trace brings the budgets of its own run.",
        Range(1, MAX_BUDGET, integer=True),
        none=f"what each request of a service trace has generated, {DEFAULT_BUDGET} where no trace says",
    )  # fmt: skip
    num_blocks: int | None = setting(
        None, "Blocks of the pool of the paged layout.", BLOCKS,
        none="as many as service.kv_capacity_bytes or the device's memory holds, else for no limit",
    )  # fmt: skip
    contention: float = setting(
        0.0, "Of overlapped execution: 0 drafts beside verification on a second device, 1 behind it on the same one.",
        PROBABILITY,
    )  # fmt: skip

    expanded = staticmethod(engine_settings)

    def __post_init__(self) -> None:
        check_fields(self)
        self.check_together()

    @property
    def varies_drafts(self) -> bool:
        """Whether rows are offered other numbers of drafts than they can use."""
        return not self.drafting.fixed


@dataclass(frozen=True, slots=True)
class Switches:
    """What is changed beside the engine's named methods; the defaults are the engine.

    Attributes:
        refill: whether a free row is filled at once; otherwise only when the window is empty.
        zombies: whether a static batch carries finished rows; otherwise they leave it and the batch shrinks.
        k_policy: each row drafts to its own budget, or to the smallest of the batch (published code).
        wait_for_rows, wait_at_most_s: an idle server waits for that many requests, or that long.
        keep_bonus: whether full acceptance yields k + 1 tokens; the published code yields k.
        draft_cache: whether the draft keeps its cache between rounds; the published code prefills it every round.
        group_key: equal length and draft lag (engine), or equal padded length and whether a cache exists (published).
        pad_prompts: passes are rectangles: prompts that are prefilled together, and rows that are verified together,
            are padded to the longest (published code, and models that run nothing else).
        discard_mixed_caches: rows are prefilled in their first round, and with them the whole batch, whose other rows
            lose their caches (published code).
        copy_groups: an equal-length round still concatenates and splits its members' K/V (published code).
        realign_read_s: seconds of one host read of the published realignment, which makes (6 · B + 2) per layer.
        copy_launch_s: seconds of launching one copy of the published pool, which makes 2 · B + 2 per layer to gather a
            fallback, 2 to gather a group, and B to write rows back.
        realign_layers: layers that are read or copied so.
        pad_ends: whether a row that a fallback pads ends with that round (published code where the pad means the end).
        free_realign: realigning, gathering, writing back and compacting cost nothing.
    """

    refill: bool = True
    zombies: bool = True
    k_policy: Literal["per_row", "batch_min"] = "per_row"
    wait_for_rows: int = number_field(COUNT, 1)
    wait_at_most_s: float = number_field(Range(0, infinite=True), float("inf"))
    keep_bonus: bool = True
    draft_cache: bool = True
    group_key: Literal["length_and_lag", "padded_length"] = "length_and_lag"
    pad_prompts: bool = False
    discard_mixed_caches: bool = False
    copy_groups: bool = False
    realign_read_s: float = number_field(NON_NEGATIVE, 0.0)
    copy_launch_s: float = number_field(NON_NEGATIVE, 0.0)
    realign_layers: int = number_field(COUNT, 32)
    pad_ends: bool = False
    free_realign: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Service:
    """Limits and promises; None means no limit.

    Attributes:
        replicas: servers, each with an engine of its own.
        router: who gets a request: replicas in turn; the one with least unfinished tokens; by length of the prompt; the
            one whose cache holds most of its first tokens, of several the one with least work.
        pools: whether each replica does everything, or `prefill_replicas` cache prompts for the `replicas`.
        failures: whether replicas fail, and serve again after `repair_s`.
        scaling: whether the number of `replicas` follows the load.
        kv_capacity_bytes: of each replica, of its fullest device: the blocks of a paged pool; with other layouts
            requests wait until there is room for prompt, budget and the buffers of a working batch. None for what costs
            of kind roofline leave, else for no limit.
        slo_first_token_s, slo_per_token_s: what a request must meet to count as goodput.
        cost_per_hour, watts: of one device, in any currency, and what it draws on average; None for those of the
            device's file, which gives the limit of its power and no price unless it is your own.
    """

    replicas: int = number_field(REPLICAS, 1)
    router: Literal["round_robin", "least_loaded", "by_length", "by_prefix"] = "round_robin"
    pools: Spec = spec_field(POOLS, Spec.of("colocated"))
    failures: Spec = spec_field(FAILURES, Spec.of("none"))
    scaling: Spec = spec_field(SCALING, Spec.of("fixed"))
    kv_capacity_bytes: float | None = number_field(POSITIVE, None)
    slo_first_token_s: float | None = number_field(POSITIVE, None)
    slo_per_token_s: float | None = number_field(POSITIVE, None)
    cost_per_hour: float | None = number_field(POSITIVE, None)
    watts: float | None = number_field(POSITIVE, None)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.scaling.kind != "fixed":
            least, most = self.scaling.resolved(SCALING)["least_replicas"], self.most_replicas
            within = f"replicas {self.replicas} must be from scaling.least_replicas {least} to most_replicas {most}"
            require(least <= self.replicas <= most, within)

    @property
    def moves(self) -> bool:
        """Whether requests go from one replica to another, or replicas come and go."""
        return self.pools.kind != "colocated" or self.varies

    @property
    def varies(self) -> bool:
        """Whether replicas come and go."""
        return self.failures.kind != "none" or self.scaling.kind != "fixed"

    @property
    def most_replicas(self) -> int:
        """Of those that decode, at a time."""
        return self.replicas if self.scaling.kind == "fixed" else int(self.scaling["most_replicas"])

    @property
    def prompt_replicas(self) -> tuple[int, int]:
        """Number of the first replica that caches prompts, and the number behind the last."""
        if self.pools.kind == "colocated":
            return 0, self.most_replicas
        return self.most_replicas, self.most_replicas + int(self.pools["prefill_replicas"])
