# ruff: noqa: RUF009 (field helpers and frozen Specs are safe defaults)
"""What is simulated: frozen, validated, units in names, YAML in and out."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from refimpl.core.errors import InputError, require, shown
from refimpl.core.files import write_whole
from refimpl.core.values import as_path
from simulator.settings.fields import (
    Range,
    Spec,
    check_fields,
    from_mapping,
    number_field,
    spec_field,
    to_mapping,
)
from simulator.settings.folders import or_example
from simulator.settings.kinds import ACCEPTANCE, CONFIDENCE, COST, DEFAULT_PROBABILITY, HEAD, LOOKUP
from simulator.settings.parts import DEFAULT_STUDY, Engine, Service, Study, Switches, Workload
from simulator.settings.paths import apply_settings
from simulator.settings.plain_yaml import Dumper, read_yaml

FIXED_DRAFTS = ("k_policy", "keep_bonus", "draft_cache")  # switches that know no other rounds
OF_ARRIVALS = ("refill", "wait_for_rows", "wait_at_most_s")  # switches that change no round


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to simulate. Equal scenarios give equal bytes.

    Attributes:
        name: label in tables and plots; has no effect on the numbers.
        seed: key of every random number. Scenarios with equal seeds share their random numbers (request by request,
            position by position), so that their differences are paired.
        acceptance: how many drafts of the draft model are right.
        confidence: what its probabilities say of them, for draft budgets that read these.
        lookup: how often a lookup finds drafts, how many of those are right, and what it costs.
        head: what a step of a draft head costs; how many of its drafts are right is what `acceptance` says.
        noise: whether residual noise and calibration uncertainty are drawn.
    """

    name: str = "scenario"
    seed: int = number_field(Range(0, 2**63 - 1, integer=True), 0)
    study: Study = DEFAULT_STUDY
    workload: Workload = Workload()
    engine: Engine = Engine()
    switches: Switches = Switches()
    acceptance: Spec = spec_field(ACCEPTANCE, Spec.of("iid", probability=DEFAULT_PROBABILITY))
    confidence: Spec = spec_field(CONFIDENCE, Spec.of("drawn"))
    lookup: Spec = spec_field(LOOKUP, Spec.of("iid", found=0.25, probability=0.5))
    head: Spec = spec_field(HEAD, Spec.of("steps", step_s=5e-4))
    cost: Spec = spec_field(COST, Spec.of("linear", verify_base_s=0.025, draft_base_s=0.003))
    service: Service = Service()
    noise: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for message in (*self._refused_drafts(), *self._refused_beside_others()):
            raise InputError(message)

    def _refused_drafts(self) -> Iterator[str]:
        """A draft that never runs, or is missing, and acceptance that does not say what a budget or a lookup needs."""
        engine, drafting = self.engine, self.engine.drafting
        if not drafting.uses_draft and dict(self.cost.values).get("draft"):
            yield f"engine.drafter {engine.drafter!r} runs no draft: leave out cost.draft"
        if drafting.uses_draft and engine.num_speculative_tokens and not self.has_draft:
            cures = "give cost.draft, or set engine.num_speculative_tokens to 0, or engine.drafter to ngram"
            yield f"engine.drafter {engine.drafter!r} runs a draft, and cost has none: {cures}"
        profiles = [each["probabilities"] for _, each in self.acceptances if each.kind == "profile"]
        if all(len(set(probabilities)) == 1 for probabilities in profiles):
            return
        lacks = "which acceptance.kind profile lacks: choose another acceptance"
        if drafting.reads_probabilities and self.confidence.kind == "drawn":
            yield f"engine.draft_budget {engine.draft_budget!r} reads probabilities, {lacks}"
        if engine.drafter == "hybrid":
            yield f"engine.drafter 'hybrid' needs the acceptance of drafts behind what it has found, {lacks}"

    def _refused_beside_others(self) -> Iterator[str]:
        """Switches that know rounds of a given number of drafts only, K/V of no size, and waits without an end."""
        engine, switches, clients, replicas = self.engine, self.switches, self.study.clients, self.service.replicas
        departing = [item.name for item in fields(Switches) if getattr(switches, item.name) != item.default]
        for name in departing:
            if name in FIXED_DRAFTS and engine.varies_drafts:
                yield f"switches.{name} needs engine.drafter model and engine.draft_budget fixed"
            if name not in OF_ARRIVALS and engine.execution != "serial":
                yield f"switches.{name} needs engine.execution serial"
            if self.service.moves:
                yield f"switches.{name} is of servers that keep their requests: leave pools, failures and scaling out"
            if name not in OF_ARRIVALS and engine.cuda_graphs:
                yield f"switches.{name} is of rounds that are not recorded: leave engine.cuda_graphs out"
        if engine.joint_prefill and switches.discard_mixed_caches:
            yield "switches.discard_mixed_caches prefills rows in a pass of their own: leave engine.joint_prefill out"
        if engine.cuda_graphs and self.cost.kind == "roofline" and not self.cost.resolved(COST)["graphs"]:
            yield "cost.graphs false has passes that the host launches, engine.cuda_graphs records them: leave one out"
        sized = {
            "kv_capacity_bytes": self.service.kv_capacity_bytes is not None,
            "pools": self.service.pools.kind != "colocated",
        }
        for name in (name for name, given in sized.items() if given and not self.knows_kv_bytes):
            yield f"service.{name} needs the bytes of a token: give cost.kv_bytes_per_token"
        if self.study.arrivals.kind == "trace" and len(self.workload.lengths) > 2 and self.study.kind == "open":
            yield "workload.classes: a service trace brings the lengths: leave prompt_tokens and output_tokens out"
        if self.service.router == "by_prefix" and not self.shares_prefixes:
            cache = "engine.layout paged, prefix_sharing, and engine.num_blocks or a capacity"
            yield f"service.router by_prefix needs a prefix cache: {cache}"
        rows, endless = switches.wait_for_rows, switches.wait_at_most_s == float("inf")
        if clients is not None and clients <= replicas * (rows - 1) and endless:  # each server waits for one more
            given = f"there are {clients} study.clients, service.replicas is {replicas}"
            yield f"switches.wait_for_rows {rows} may never come: {given}"

    @property
    def has_draft(self) -> bool:
        """Whether a draft model is loaded, used or not: the drafter is one that runs it, and costs have one."""
        known = self.cost.kind != "roofline" or bool(self.cost.resolved(COST)["draft"])
        return known and self.engine.drafting.uses_draft

    @property
    def runs_draft(self) -> bool:
        """Whether the draft model runs: the engine leaves it alone where nothing is drafted."""
        return self.has_draft and self.engine.num_speculative_tokens > 0

    @property
    def acceptances(self) -> list[tuple[str, Spec]]:
        """How many drafts are right, of all requests and of classes of their own, each with its setting's path."""
        own = [(f"classes[{at}].acceptance", each.acceptance) for at, each in enumerate(self.workload.classes)]
        return [("acceptance", self.acceptance), *((name, spec) for name, spec in own if spec)]

    @property
    def has_limits(self) -> bool:
        """Whether some request has a limit to meet."""
        of_classes = [(each.slo_first_token_s, each.slo_per_token_s) for each in self.workload.classes]
        return any(map(any, [(self.service.slo_first_token_s, self.service.slo_per_token_s), *of_classes]))

    @property
    def shares_prefixes(self) -> bool:
        """Whether replicas keep a prefix cache: of a paged pool of known size."""
        engine, limited = self.engine, self.service.kv_capacity_bytes is not None or self.cost.kind == "roofline"
        return engine.layout == "paged" and engine.prefix_sharing and (engine.num_blocks is not None or limited)

    @property
    def knows_kv_bytes(self) -> bool:
        """Whether the costs say how many bytes the K/V of a token take."""
        return self.cost.kind != "linear" or self.cost.resolved(COST)["kv_bytes_per_token"] > 0

    @property
    def content_hash(self) -> str:
        """Sixteen hex digits that change with every setting but the name."""
        return content_hash({key: value for key, value in to_mapping(self).items() if key != "name"})

    def to_yaml(self) -> str:
        """YAML text that `load_scenario` reads back to an equal scenario."""
        return yaml.dump(to_mapping(self), Dumper=Dumper, sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Write the YAML file, whole or not at all."""
        write_whole(as_path(path), [self.to_yaml().rstrip("\n")])

    def but(self, changes: Mapping[str, Any] | None = None, **more: Any) -> "Scenario":
        """Copy with changes.

        Args:
            changes: dotted path → value, for example ``{"engine.batch_size": 4}``; later ones see earlier ones.
            more: settings whose path has no dot, for example ``method="exspec"`` or ``seed=1``.

        Raises:
            InputError: no such setting, or a value out of range.
        """
        data = to_mapping(self)
        apply_settings(data, {**(changes or {}), **more})
        return from_data(data)


def content_hash(data: Any) -> str:
    """Sixteen hex digits of the canonical JSON of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def from_data(data: Any) -> Scenario:
    """Build a Scenario from plain data; ``engine.method`` may replace layout and scheduler."""
    return from_mapping(Scenario, data)


# settings that name a file, or a folder with the file named here
ANCHORED = {"path": "", "calibration": "points.csv", "from_calibration": "points.csv"} | dict.fromkeys(
    ("device", "target", "draft"), ""
)


def anchored(data: Any, folder: Path) -> Any:
    """Plain data in which every relative file that is found below `folder` starts there, see `ANCHORED`."""
    if isinstance(data, dict):
        return {key: _anchored_value(str(key), value, folder) for key, value in data.items()}
    return [anchored(value, folder) for value in data] if isinstance(data, list) else data


def _anchored_value(key: str, value: Any, folder: Path) -> Any:
    file = ANCHORED.get(key.rpartition(".")[2])  # the paths of a sweep are dotted
    if file is None or isinstance(value, dict):
        return anchored(value, folder)
    if isinstance(value, list):
        return [_anchored_value(key, item, folder) for item in value]
    return str(folder / value) if isinstance(value, str) and (folder / value / file).is_file() else value


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario from a YAML file; ``example`` is the one that comes with the package.

    A relative path in it (see `ANCHORED`) is looked up beside the file, then in the working directory and, for engine
    traces and scaling laws, in the shipped data; calibrations, devices and models in the shipped data first.

    Raises:
        InputError: unreadable file, unknown key or bad value; one line that starts with the file's name.
    """
    path = or_example(path, "scenario.yaml")
    data = anchored(read_yaml(path), path.parent)
    require(data is not None, f"{path}: holds no settings")
    try:
        return from_data(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


ScenarioLike = Scenario | str | Path  # a scenario, or its YAML file


def as_scenario(given: ScenarioLike) -> Scenario:
    """A scenario, or the one in a YAML file.

    Raises:
        InputError: neither, or `load_scenario` refuses the file.
    """
    if isinstance(given, Scenario):
        return given
    require(isinstance(given, str | Path), f"give a Scenario or the path of a YAML file, not {shown(given)}")
    return load_scenario(given)
