# ruff: noqa: RUF009 (field helpers and frozen Specs are safe defaults)
"""What is simulated: frozen, validated, units in names, YAML in and out."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from refimpl.core.config import LAYOUTS, MAX_SPECULATIVE_TOKENS, MAX_WINDOW, SCHEDULERS, LayoutName, SchedulerName
from refimpl.core.errors import InputError, require
from refimpl.core.files import write_whole
from simulator.settings.fields import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    REQUESTS,
    WHOLE,
    Range,
    Spec,
    as_data,
    check_fields,
    from_mapping,
    number_field,
    spec_field,
    to_mapping,
)
from simulator.settings.kinds import ACCEPTANCE, ARRIVALS, COST, KINDS, LENGTHS, METHODS
from simulator.settings.plain_yaml import Dumper, read_yaml

METHOD_PATHS = ("method", "engine.method")
DEFAULT_BUDGET = 128
WINDOW = Range(1, integer=True, most=MAX_WINDOW, bytes_each=2**11)
REPLICAS = Range(1, integer=True, most=2**12, bytes_each=2**14)
MIN_PHASE = 1e-3  # requests that an on phase brings
MAX_BUDGET = 2**18  # tokens; a number is drawn for each of them, for hundreds of requests at a time
IGNORED = {  # kind of study -> settings that have no effect there
    "offline": ("duration_s", "clients", "think_time_s", "arrivals"),
    "open": ("clients", "think_time_s"),
    "closed": ("num_requests", "arrivals"),
}


@dataclass(frozen=True, slots=True)
class Study:
    """How requests come, and when the study ends. What a kind of study would ignore is refused.

    Attributes:
        kind: ``offline`` (all at time 0, until the last has finished), ``open`` (arrivals), ``closed`` (clients).
        num_requests: requests in all (offline, open).
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
            given = self.num_requests is not None or self.duration_s is not None
            require(given, "num_requests or duration_s is missing: an open study needs one of them")
        else:
            require(self.clients is not None, "clients is missing: a closed study needs it")
            require(self.duration_s is not None, "duration_s is missing: a closed study needs it")
        self._refuse_ignored()
        self._refuse_endless()

    def _refuse_endless(self) -> None:
        """Arrivals without end, and pauses so short that they are never all drawn."""
        values = dict(self.arrivals.values)
        if self.kind != "open" or self.arrivals.kind == "trace":
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


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of prompts and outputs, in tokens; a service trace of arrivals brings its own.

    An output longer than the budget is cut there, and counts in the metric `cut_outputs`.
    """

    prompt_tokens: Spec = spec_field(LENGTHS, Spec.of("fixed", tokens=64))
    output_tokens: Spec = spec_field(LENGTHS, Spec.of("fixed", tokens=128))
    sort_prompts: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine's settings: layout × scheduler, as in `refimpl`.

    Attributes:
        batch_size: rows a round runs at most, B.
        window_size: sequences a grouped scheduler chooses from; None for 4 · B.
        aging_bound: rounds after which a sequence that is passed over is due; None for eight turns of the window, inf
            never.
        num_speculative_tokens: drafts per row and round at most, k.
        max_new_tokens: budget per sequence; None for what each request of a service trace has generated, and for
            `DEFAULT_BUDGET` where no trace says. An engine trace brings the budgets of its own run.
        compaction_threshold: share of dead slots at which the masked layout compacts.
    """

    layout: LayoutName = "inplace"
    scheduler: SchedulerName = "fifo"
    batch_size: int = number_field(Range(1, 4096, integer=True), 8)
    window_size: int | None = number_field(WINDOW, None)
    aging_bound: float | None = number_field(Range(0, infinite=True), None)
    num_speculative_tokens: int = number_field(Range(0, MAX_SPECULATIVE_TOKENS, integer=True), 5)
    max_new_tokens: int | None = number_field(Range(1, MAX_BUDGET, integer=True), None)
    compaction_threshold: float = number_field(Range(0, 1, open_low=True), 0.25)

    def __post_init__(self) -> None:
        check_fields(self)
        small = self.scheduler == "grouped" and self.window_size is not None and self.window_size < self.batch_size
        require(not small, f"window_size {self.window_size} is smaller than batch_size {self.batch_size}")

    @property
    def resolved_window_size(self) -> int:
        """Sequences with K/V at a time."""
        return (self.window_size or 4 * self.batch_size) if self.scheduler == "grouped" else self.batch_size


@dataclass(frozen=True, slots=True)
class Switches:
    """What is changed beside the engine's named methods; the defaults are the engine.

    Attributes:
        refill: whether a free row is filled at once; otherwise only when the window is empty.
        zombies: whether a static batch carries finished rows; otherwise they leave it and the batch shrinks.
        partial_groups: run the largest group of at least two when none is full.
        bucket_tokens: lengths count as equal up to this tolerance, at the price of padding.
        group_choice: the first full group, or the one with most members.
        cost_aware: choose, each round, by expected tokens per second: the group, the oldest rows at the price of
            realigning them, or to wait for a further row while some are free.
        k_policy: each row drafts to its own budget, or to the smallest of the batch (published code).
        k_by_load: pairs (rows, k): with at least that many rows in the round, at most k drafts.
        wait_for_rows, wait_at_most_s: hold an idle server until that many requests wait, or that long.
        keep_bonus: whether full acceptance yields k + 1 tokens; the published code yields k.
        draft_cache: whether the draft keeps its cache between rounds; the published code prefills it every round.
        group_key: equal length and draft lag (engine), or equal padded length and whether a cache exists (published).
        aging_from: a request begins to age at its first round, or when it enters the window.
        discard_mixed_caches: a fallback of fresh and cached rows prefills them all anew (published code).
        copy_groups: an equal-length round still concatenates and splits its members' K/V (published code).
        realign_read_s: seconds of one host read of the published realignment, which makes (6 · B + 2) per layer.
        realign_layers: layers that are read so.
        free_realign: realigning, gathering, writing back and compacting cost nothing.
    """

    refill: bool = True
    zombies: bool = True
    partial_groups: bool = False
    bucket_tokens: int = number_field(COUNT, 1)
    group_choice: Literal["first", "largest"] = "first"
    cost_aware: bool = False
    k_policy: Literal["per_row", "batch_min"] = "per_row"
    k_by_load: tuple[tuple[int, int], ...] = ()
    wait_for_rows: int = number_field(COUNT, 1)
    wait_at_most_s: float = number_field(Range(0, infinite=True), float("inf"))
    keep_bonus: bool = True
    draft_cache: bool = True
    group_key: Literal["length_and_lag", "padded_length"] = "length_and_lag"
    aging_from: Literal["first_round", "admission"] = "first_round"
    discard_mixed_caches: bool = False
    copy_groups: bool = False
    realign_read_s: float = number_field(NON_NEGATIVE, 0.0)
    realign_layers: int = number_field(COUNT, 32)
    free_realign: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            isinstance(self.k_by_load, tuple), f"k_by_load must be a list of pairs (rows, k), not {self.k_by_load!r}"
        )
        for i, pair in enumerate(self.k_by_load):
            require(
                isinstance(pair, tuple) and len(pair) == 2, f"k_by_load[{i}] must be a pair (rows, k), not {pair!r}"
            )
            COUNT.check(pair[0], f"k_by_load[{i}] rows")
            WHOLE.check(pair[1], f"k_by_load[{i}] k")


@dataclass(frozen=True, slots=True)
class Service:
    """Limits and promises; None means no limit.

    Attributes:
        replicas: servers, each with an engine of its own.
        router: how requests are shared out among them.
        kv_capacity_bytes: of each replica; requests wait until it holds their prompts and budgets, and the buffers of
            a working batch where the layout has one.
        slo_first_token_s, slo_per_token_s: what a request must meet to count as goodput.
    """

    replicas: int = number_field(REPLICAS, 1)
    router: Literal["round_robin", "least_loaded", "by_length"] = "round_robin"
    kv_capacity_bytes: float | None = number_field(POSITIVE, None)
    slo_first_token_s: float | None = number_field(POSITIVE, None)
    slo_per_token_s: float | None = number_field(POSITIVE, None)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to simulate. Equal scenarios give equal bytes.

    Attributes:
        name: label in tables and plots; has no effect on the numbers.
        seed: key of every random number. Scenarios with equal seeds share their random numbers (request by request,
            position by position), so that their differences are paired.
        noise: whether residual noise and calibration uncertainty are drawn.
    """

    name: str = "scenario"
    seed: int = number_field(Range(0, 2**63 - 1, integer=True), 0)
    study: Study = Study(num_requests=64)
    workload: Workload = Workload()
    engine: Engine = Engine()
    switches: Switches = Switches()
    acceptance: Spec = spec_field(ACCEPTANCE, Spec.of("iid", probability=0.7))
    cost: Spec = spec_field(COST, Spec.of("linear", verify_base_s=0.025, draft_base_s=0.003))
    service: Service = Service()
    noise: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        offline = self.study.kind == "offline"
        require(
            offline or not self.workload.sort_prompts,
            f"workload.sort_prompts has no effect in a study of kind {self.study.kind}: leave it out",
        )
        clients, switches = self.study.clients, self.switches
        stuck = clients is not None and switches.wait_for_rows > clients and switches.wait_at_most_s == float("inf")
        require(
            not stuck, f"switches.wait_for_rows {switches.wait_for_rows} never come: there are {clients} study.clients"
        )
        weightless = self.cost.kind == "linear" and self.cost.resolved(COST)["kv_bytes_per_token"] == 0
        require(
            self.service.kv_capacity_bytes is None or not weightless,
            "service.kv_capacity_bytes has no effect while cost.kv_bytes_per_token is 0: give the bytes of a token",
        )

    @property
    def content_hash(self) -> str:
        """Sixteen hex digits that change with anything but the name."""
        return content_hash({key: value for key, value in to_mapping(self).items() if key != "name"})

    def to_yaml(self) -> str:
        """YAML text that `from_yaml` reads back to an equal scenario."""
        return yaml.dump(to_mapping(self), Dumper=Dumper, sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Write the YAML file, whole or not at all."""
        write_whole(Path(path), [self.to_yaml().rstrip("\n")])

    def but(self, **changes: Any) -> "Scenario":
        """Copy with changes given by dotted path, for example ``{"engine.batch_size": 4}``; dots written as ``__``."""
        data = to_mapping(self)
        apply_settings(data, {key.replace("__", "."): value for key, value in changes.items()})
        return from_mapping(Scenario, data)


def content_hash(data: Any) -> str:
    """Sixteen hex digits of the canonical JSON of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def set_path(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested mappings; ``method`` stands for the layout, scheduler and so on that it names.

    With another kind goes what that kind does not know: parameters, and settings of a study.

    Raises:
        InputError: no such path.
    """
    if path in METHOD_PATHS:
        data["engine"].update(resolve_method(value))
        return
    *parents, last = path.split(".")
    here: Any = data
    for name in parents:
        require(isinstance(here, dict) and name in here, f"{path}: no such setting; {name!r} is unknown")
        here = here[name]
    known = isinstance(here, dict) and (last in here or "kind" in here)
    require(known, f"{path}: no such setting; allowed: {', '.join(here) if isinstance(here, dict) else 'nothing'}")
    here[last] = value
    if last == "kind":
        _drop_unknown(here, ".".join(parents), str(value))


def _drop_unknown(here: dict[str, Any], path: str, kind: str) -> None:
    """Leave to the setting at `path`, which is now of another kind, what that kind knows."""
    if path == "study":
        here.update({item.name: as_data(item.default) for item in fields(Study) if item.name in IGNORED.get(kind, ())})
    elif kind in KINDS[path]:
        for name in set(here) - {"kind", *KINDS[path][kind]}:
            del here[name]


def apply_settings(data: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Set dotted paths in nested mappings, one after the other, see `set_path`.

    Raises:
        InputError: no such path, or a method beside a setting that it fixes otherwise.
    """
    for path, value in settings.items():
        if path in METHOD_PATHS:
            require_agreement(value, {name.removeprefix("engine."): given for name, given in settings.items()})
        set_path(data, path, value)


def require_agreement(method: Any, engine: Mapping[str, Any]) -> None:
    """Raise InputError where a setting of the engine differs from what the method fixes."""
    for name, value in resolve_method(method).items():
        agrees = name not in engine or engine[name] == value
        require(agrees, f"engine.{name}: method {method} has {value}, not {engine.get(name)!r}; leave one of them out")


def resolve_method(name: Any) -> dict[str, Any]:
    """Engine settings behind a method's name, or behind ``layout+scheduler``."""
    if str(name) in METHODS:
        return dict(METHODS[str(name)])
    layout, _, scheduler = str(name).partition("+")
    known = layout in LAYOUTS and scheduler in SCHEDULERS
    allowed = f"{', '.join(METHODS)}, or LAYOUT+SCHEDULER of {'|'.join(LAYOUTS)} and {'|'.join(SCHEDULERS)}"
    require(known, f"method must be one of {allowed}, not {name!r}")
    return {"layout": layout, "scheduler": scheduler}


def from_data(data: Any) -> Scenario:
    """Build a Scenario from plain data; ``engine.method`` may stand for layout and scheduler."""
    if isinstance(data, dict) and isinstance(data.get("engine"), dict) and "method" in data["engine"]:
        engine = dict(data["engine"])
        method = engine.pop("method")
        require_agreement(method, engine)
        data = {**data, "engine": engine | resolve_method(method)}
    return from_mapping(Scenario, data)


def anchored(data: Any, folder: Path) -> Any:
    """Plain data in which every relative ``path`` and ``calibration`` that is found below `folder` starts there."""
    if isinstance(data, dict):
        return {key: _anchored_value(str(key), value, folder) for key, value in data.items()}
    return [anchored(value, folder) for value in data] if isinstance(data, list) else data


def _anchored_value(key: str, value: Any, folder: Path) -> Any:
    files = {"path": "", "calibration": "points.csv"}
    file = files.get(key.rpartition(".")[2])  # the paths of a sweep are dotted
    if file is None or isinstance(value, dict):
        return anchored(value, folder)
    if isinstance(value, list):
        return [_anchored_value(key, item, folder) for item in value]
    return str(folder / value) if isinstance(value, str) and (folder / value / file).is_file() else value


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario from a YAML file.

    A relative ``path`` or ``calibration`` in it is sought beside the file; what is not there is left as it stands, and
    then sought in the working directory and, for engine traces and calibrations, in the shipped data.

    Raises:
        InputError: unreadable file, unknown key or bad value; one line that starts with the file's name.
    """
    data = anchored(read_yaml(path), Path(path).parent)
    try:
        return from_data(data if data is not None else {})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
