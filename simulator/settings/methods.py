"""What a method of the engine is short for: layout, scheduler, and the settings that it fixes."""

from collections.abc import Mapping
from typing import Any

from refimpl.core.config import LAYOUTS, NAMED_METHODS, SCHEDULERS, Method
from refimpl.core.errors import require, shown


def _settings(method: Method) -> dict[str, Any]:
    """Engine settings behind a named method; the oracle is one row in place without drafts."""
    if method.layout is None:
        return {"layout": "inplace", "scheduler": "fifo", "batch_size": 1, "num_speculative_tokens": 0}
    rows = {} if method.batch_size is None else {"batch_size": method.batch_size}
    return {"layout": method.layout, "scheduler": method.scheduler, **rows}


METHODS = {name: _settings(method) for name, method in NAMED_METHODS.items()}


def resolve_method(name: Any) -> dict[str, Any]:
    """Engine settings behind a method's name, or behind ``layout+scheduler``.

    Raises:
        InputError: no such method.
    """
    if str(name) in METHODS:
        return dict(METHODS[str(name)])
    layout, _, scheduler = str(name).partition("+")
    known = layout in LAYOUTS and scheduler in SCHEDULERS
    allowed = f"{', '.join(METHODS)}, or LAYOUT+SCHEDULER of {'|'.join(LAYOUTS)} and {'|'.join(SCHEDULERS)}"
    require(known, f"method must be one of {allowed}, not {shown(name)}")
    return {"layout": layout, "scheduler": scheduler}


def require_agreement(method: Any, engine: Mapping[str, Any]) -> None:
    """Raise InputError where a setting of the engine differs from what the method fixes."""
    for name, value in resolve_method(method).items():
        agrees = name not in engine or engine[name] == value
        message = f"method {method} has {value}, not {engine.get(name)!r}; leave one of them out"
        require(agrees, f"engine.{name}: {message}")


def engine_settings(data: Any) -> Any:
    """Settings of an engine with ``method`` written out; a text is the name of a method."""
    given = {"method": data} if isinstance(data, str) else data
    if not isinstance(given, Mapping) or "method" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "method"}
    require_agreement(given["method"], rest)
    return rest | resolve_method(given["method"])
