"""Dotted paths into the plain data of a scenario, such as ``engine.batch_size``."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any

from refimpl.core.errors import did_you_mean, require, shown
from simulator.settings.fields import as_data
from simulator.settings.kinds import KINDS
from simulator.settings.methods import engine_settings, method_settings, require_agreement
from simulator.settings.parts import DEFAULT_STUDY, IGNORED, RECORDED, Engine, Service, Study, Switches, Workload

METHOD_PATHS = ("method", "engine.method")
PARTS = {"study": Study, "workload": Workload, "engine": Engine, "switches": Switches, "service": Service}


def set_path(data: dict[str, Any], path: str, value: Any, kept: Collection[str] = ()) -> None:
    """Set a dotted path in nested mappings; ``method`` is short for the layout, scheduler and so on that it names.

    A class of requests is found by its name: ``workload.classes.chat.share``.

    A new kind drops the parameters, and the settings of a study, that it does not know, but for those `kept`. Where a
    whole part is set, what it leaves out has its default.

    Raises:
        InputError: no such path.
    """
    if path in METHOD_PATHS:
        engine = data["engine"]
        require(isinstance(engine, dict), f"{path}: engine must be a mapping or a method, not {shown(engine)}")
        engine.update(method_settings(value))
        return
    *parents, last = path.split(".")
    here: Any = data
    for name in parents:
        known = isinstance(here, dict) and name in here
        require(known, f"{path}: no such setting; {name!r} is unknown{did_you_mean(name, _names(here))}")
        here = _by_name(here[name]) if name == "classes" else here[name]
    known = isinstance(here, dict) and (last in here or "kind" in here)
    allowed = [*_names(here), *(["method"] if ".".join([*parents, "method"]) in METHOD_PATHS else [])]
    require(known, f"{path}: no such setting; allowed: {', '.join(allowed) or 'nothing'}{did_you_mean(last, allowed)}")
    here[last] = _whole(path, deepcopy(as_data(value)))
    if last == "kind":
        _drop_unknown(here, ".".join(parents), str(value), kept)


def _whole(path: str, given: Any) -> Any:
    """All settings of a part, where some are given, so that later changes find their places; other values as such."""
    given = engine_settings(given) if path == "engine" else given
    if path not in PARTS or not isinstance(given, Mapping):
        return given
    return {item.name: as_data(item.default) for item in fields(PARTS[path])} | dict(given)


def _by_name(classes: Any) -> Any:
    """Classes of requests as a mapping, as far as they have names."""
    given = classes if isinstance(classes, list) else []
    return {each["name"]: each for each in given if isinstance(each, dict) and "name" in each}


def _names(here: Any) -> list[str]:
    return list(map(str, here)) if isinstance(here, dict) else []


def _drop_unknown(here: dict[str, Any], path: str, kind: str, kept: Collection[str]) -> None:
    """Leave to the setting at `path`, which is now of another kind, what that kind knows, and what is to be kept."""
    stays = {name for name in here if any(f"{asked}.".startswith(f"{path}.{name}.") for asked in kept)}
    if path == "study":
        idle = set(IGNORED.get(kind, ())) - stays
        here.update({item.name: as_data(item.default) for item in fields(Study) if item.name in idle})
    elif kind in (known := KINDS.get(path, {})):
        for name in set(here) - stays - {"kind", *known[kind]}:
            del here[name]


def apply_settings(data: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Set dotted paths in nested mappings, one after the other, see `set_path`.

    Whatever their order, none is left out without a word. Where nothing was said of the study so far, one of recorded
    arrivals lasts as long as its record.

    Raises:
        InputError: no such path, or a method beside a setting that it fixes otherwise.
    """
    unsaid = data["study"] == as_data(DEFAULT_STUDY)
    for path, value in settings.items():
        if method := _method(path, value):
            require_agreement(method, {name.removeprefix("engine."): given for name, given in settings.items()})
        set_path(data, path, value, kept=settings)
    if unsaid and not {"study", "study.num_requests"} & set(settings) and _has_record(data["study"]):
        data["study"]["num_requests"] = None


def _has_record(study: Any) -> bool:
    """Whether the plain data of a study are of requests that come when a record says."""
    arrivals = study["arrivals"] if study["kind"] == "open" else None
    return isinstance(arrivals, Mapping) and arrivals.get("kind") in RECORDED


def _method(path: str, value: Any) -> Any:
    """The method that a setting names, if it does."""
    if path == "engine" and isinstance(value, Mapping):
        return value.get("method")
    return value if path in ("engine", *METHOD_PATHS) and isinstance(value, str) else None
