"""A discrete-event model of batch speculative decoding that runs the engine's own schedulers.

Names are loaded when first used, so that ``import simulator`` is quick.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Scenario": "scenario",
    "load_scenario": "scenario",
    "Spec": "fields",
    "simulate": "runner",
    "compare": "runner",
    "Results": "runner",
    "sweep": "sweeps",
    "attribute": "attribution",
    "validate": "validation",
    "build_sweep": "sweeps",
    "export_trace": "trace_export",
    "InputError": "errors",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return getattr(import_module(f"simulator.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
