"""Settings with an effect only beside others, refused where they have none: of parts, of drafts, and of costs.

The table knows what follows from the kind of engine and study. Whether requests share tokens, or a cost is 0, is a fact
of what is simulated: a setting that then changes nothing is a result, and no mistake.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from refimpl.core.drafting import DRAFT_BUDGETS
from refimpl.core.errors import InputError
from simulator.settings.fields import Spec, as_data
from simulator.settings.kinds import COST, LENGTHS
from simulator.settings.methods import engine_settings
from simulator.settings.parts import Engine, Service, Switches, Workload

Value = str | bool | None
Needs = Mapping[str, tuple[Value, ...]]  # setting -> values; where none is named, any but the one of `NO_USE`
NO_USE = {"engine.num_speculative_tokens": 0, "engine.aging_bound": math.inf}  # of all others the default

WITHOUT_BUDGETS = tuple(kind for kind in LENGTHS if kind != "trace")  # lengths that bring none of their own
MOVING = ("realigned", "masked", "rollback")  # layouts that gather their rows
ANY: tuple[str, ...] = ()
OF_PROBABILITIES = tuple(name for name, budget in DRAFT_BUDGETS.items() if budget.reads_probabilities)
EFFECTS: tuple[tuple[Needs, tuple[str, ...]], ...] = (  # one of these is needed, for these settings
    ({"engine.scheduler": ("grouped",)}, (
        "engine.window_size", "engine.aging_bound", "switches.group_key", "switches.serve_first",
        "switches.copy_groups", "switches.pad_ends",
    )),
    ({"engine.num_speculative_tokens": ANY}, (
        "engine.draft_budget", "switches.k_policy", "switches.keep_bonus", "switches.draft_cache",
    )),
    ({"study.kind": ("offline",)}, ("workload.sort_prompts",)),
    ({"workload.output_tokens.kind": WITHOUT_BUDGETS, "study.arrivals.kind": ("trace",)}, ("engine.max_new_tokens",)),
    ({"cost.graphs": (False,)}, ("cost.eager_pass_s", "cost.eager_layer_s", "cost.eager_cv")),
    ({"cost.from_calibration": ("",)}, ("cost.host_s", "cost.attention")),
    ({"engine.layout": ("inplace", "paged")}, ("cost.attention",)),
    ({"engine.cuda_graphs": (False,)}, ("cost.attention",)),
    ({"engine.scheduler": ("static",)}, ("switches.zombies",)),
    ({"engine.scheduler": ("fifo", "grouped", "continuous")}, ("switches.refill",)),
    ({"engine.scheduler": ("static", "fifo", "grouped")}, ("switches.discard_mixed_caches",)),
    ({"engine.scheduler": ("continuous",)}, ("engine.token_budget",)),
    ({"engine.layout": ("masked",)}, ("engine.compaction_threshold",)),
    ({"engine.layout": ("paged",)}, ("engine.block_size", "engine.num_blocks", "engine.prefix_sharing")),
    ({"engine.num_blocks": ANY, "service.kv_capacity_bytes": ANY, "cost.kind": ("roofline",)}, (
        "engine.block_size", "engine.prefix_sharing",
    )),
    ({"engine.num_blocks": (None,)}, ("service.kv_capacity_bytes",)),
    ({"service.replicas": ANY}, ("service.router",)),
    ({"engine.execution": ("overlapped",)}, ("engine.contention",)),
    ({"engine.draft_budget": OF_PROBABILITIES}, ("confidence",)),
    ({"engine.drafter": ("ngram", "suffix", "hybrid")}, ("lookup",)),
    ({"engine.drafter": ("head",)}, ("head",)),
    ({"study.kind": ("open", "closed")}, ("switches.wait_for_rows",)),
    ({"switches.wait_for_rows": ANY}, ("switches.wait_at_most_s",)),
    ({"engine.scheduler": ("static",), "engine.layout": MOVING}, ("switches.realign_read_s",)),
    ({"switches.realign_read_s": ANY, "switches.copy_launch_s": ANY}, ("switches.realign_layers",)),
    ({
        "engine.layout": MOVING, "switches.copy_groups": ANY, "switches.realign_read_s": ANY,
        "switches.copy_launch_s": ANY,
    }, ("switches.free_realign",)),
)  # fmt: skip
OF_DRAFTS = {  # what is modelled of drafts, where nothing says
    "confidence": Spec.of("drawn"),
    "lookup": Spec.of("iid", found=0.25, probability=0.5),
    "head": Spec.of("steps", step_s=5e-4),
}
PARTS = {"workload": Workload, "engine": Engine, "switches": Switches, "service": Service}
DEFAULTS = {f"{part}.{item.name}": as_data(item.default) for part, cls in PARTS.items() for item in fields(cls)}
DEFAULTS |= {name: as_data(spec) for name, spec in OF_DRAFTS.items()}
DEFAULTS |= {f"cost.{name}": rule[1] for name, rule in COST["roofline"].items() if isinstance(rule, tuple)}
DEFAULTS["workload.output_tokens.kind"] = Workload().output_tokens.kind


def require_effects(scenario: Any) -> None:
    """Raise InputError for the first setting of a scenario that has no effect beside the others."""
    for path, needs in _idle(scenario):
        needed = " or ".join(_asked(name, values) for name, values in needs.items())
        raise InputError(f"{path} has no effect without {needed}: leave it out")


def drop_idle(data: dict[str, Any], kept: Collection[str] = ()) -> None:
    """Set what has no effect in the plain data of a scenario back to its default, as far as it was not asked for.

    Args:
        data: as `to_mapping` makes it; its engine may be the name of a method.
        kept: paths of settings, or of parts, that stay as they are.
    """
    data["engine"] = engine_settings(data["engine"])
    while idle := [path for path, _ in _idle(data) if not _is_asked_for(path, kept)]:
        for path in idle:
            part, _, name = path.partition(".")
            if part == "cost":
                data[part] = {key: value for key, value in as_data(data[part]).items() if key != name}
            else:
                data[part] = {**data[part], name: DEFAULTS[path]} if name else DEFAULTS[path]


def _is_asked_for(path: str, kept: Collection[str]) -> bool:
    """Whether a setting, the part that it belongs to, or something within it is among the paths that are kept."""
    return any(f"{path}.".startswith(f"{asked}.") or f"{asked}.".startswith(f"{path}.") for asked in kept)


def _asked(path: str, values: tuple[Value, ...]) -> str:
    """A setting, and the values that would do; of numbers the one that does not, but for a default of 0."""
    if values:
        return f"{path} {'|'.join(map(_shown, values))}"
    default = DEFAULTS.get(path)
    return f"{path} other than {NO_USE.get(path, default)}" if default or path in NO_USE else path


def _shown(value: Value) -> str:
    """As YAML has it."""
    return {None: "null", False: "false", "": "''"}.get(value, str(value))


def _idle(settings: Any) -> Iterator[tuple[str, Needs]]:
    """Settings without effect that are not at their defaults, and what they need."""
    for needs, paths in EFFECTS:
        if not any(_meets(settings, path, values) for path, values in needs.items()):
            yield from ((path, needs) for path in paths if as_data(_value(settings, path)) != DEFAULTS[path])


def _meets(settings: Any, path: str, values: tuple[Value, ...]) -> bool:
    value = _value(settings, path)
    value = str(value).partition(":")[0] if path == "engine.draft_budget" else value  # its name
    return value in values if values else value != NO_USE.get(path, DEFAULTS[path])


def _value(settings: Any, path: str) -> Any:
    """A setting of a scenario or of its plain data; its default, if it has one, where none is given."""
    for name in path.split("."):
        settings = settings.as_mapping() if isinstance(settings, Spec) else settings
        if not isinstance(settings, Mapping):
            settings = getattr(settings, name, DEFAULTS.get(path))
        elif name in settings:
            settings = settings[name]
        else:
            return DEFAULTS.get(path)
    return settings
