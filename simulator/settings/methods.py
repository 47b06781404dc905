"""What a method of the engine is short for: layout, scheduler, and the settings that it fixes."""

from collections.abc import Mapping
from typing import Any

from refimpl.core.config import resolve_method
from refimpl.core.errors import require


def method_settings(name: Any) -> dict[str, Any]:
    """Engine settings behind a method's name, or behind ``layout+scheduler``.

    Raises:
        InputError: no such method.
    """
    method = resolve_method(name)
    if method.layout is None:  # the oracle: one row in place without drafts
        return {"layout": "inplace", "scheduler": "fifo", "batch_size": 1, "num_speculative_tokens": 0}
    rows = {} if method.batch_size is None else {"batch_size": method.batch_size}
    return {"layout": method.layout, "scheduler": method.scheduler, **rows}


def require_agreement(method: Any, engine: Mapping[str, Any]) -> None:
    """Raise InputError where a setting of the engine differs from what the method fixes."""
    for name, value in method_settings(method).items():
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
    return rest | method_settings(given["method"])
