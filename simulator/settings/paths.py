"""Dotted paths into the plain data of a scenario, such as ``engine.batch_size``."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from refimpl.core.errors import require
from simulator.settings.effects import drop_idle
from simulator.settings.fields import as_data
from simulator.settings.kinds import KINDS
from simulator.settings.methods import method_settings, require_agreement
from simulator.settings.parts import IGNORED, Study

METHOD_PATHS = ("method", "engine.method")


def set_path(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested mappings; ``method`` is short for the layout, scheduler and so on that it names.

    A new kind drops the parameters, and the settings of a study, that it does not know.

    Raises:
        InputError: no such path.
    """
    if path in METHOD_PATHS:
        data["engine"].update(method_settings(value))
        return
    *parents, last = path.split(".")
    here: Any = data
    for name in parents:
        require(isinstance(here, dict) and name in here, f"{path}: no such setting; {name!r} is unknown")
        here = here[name]
    known = isinstance(here, dict) and (last in here or "kind" in here)
    require(known, f"{path}: no such setting; allowed: {_allowed(here, parents)}")
    here[last] = as_data(value)
    if last == "kind":
        _drop_unknown(here, ".".join(parents), str(value))


def _allowed(here: Any, parents: list[str]) -> str:
    """What may be set there, `method` included where it is short for other settings."""
    if not isinstance(here, dict):
        return "nothing"
    return ", ".join([*here, *(["method"] if ".".join([*parents, "method"]) in METHOD_PATHS else [])])


def _drop_unknown(here: dict[str, Any], path: str, kind: str) -> None:
    """Leave to the setting at `path`, which is now of another kind, what that kind knows."""
    if path == "study":
        here.update({item.name: as_data(item.default) for item in fields(Study) if item.name in IGNORED.get(kind, ())})
    elif kind in KINDS[path]:
        for name in set(here) - {"kind", *KINDS[path][kind]}:
            del here[name]


def apply_settings(data: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Set dotted paths in nested mappings, one after the other, see `set_path`.

    What has no effect any more beside them goes back to its default, unless it is one of them.

    Raises:
        InputError: no such path, or a method beside a setting that it fixes otherwise.
    """
    for path, value in settings.items():
        if path in METHOD_PATHS:
            require_agreement(value, {name.removeprefix("engine."): given for name, given in settings.items()})
        set_path(data, path, value)
    drop_idle(data, kept=settings)
