"""A discrete-event model of batch speculative decoding that runs the engine's own schedulers.

The public names are loaded on first use, so `import simulator` is quick. They are named twice: as imports for type
checkers and editors, by module for the loading.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "acceptance_fit": ("Fit", "fit_all"),
    "attribution": ("Attribution", "attribute"),
    "capacity": ("Capacity", "find_capacity"),
    "errors": ("InputError",),
    "fields": ("Spec",),
    "metrics": ("metric_names",),
    "model": ("Simulation", "simulate_once"),
    "parity": ("Parity", "check_parity"),
    "runner": ("Comparison", "Replication", "Results", "compare", "simulate"),
    "scenario": ("Engine", "Scenario", "Service", "Study", "Switches", "Workload", "load_scenario"),
    "sweeps": ("SweepSpec", "Task", "build_sweep", "load_sweep", "sobol_indices", "sweep"),
    "trace_export": ("export_trace",),
    "traces": ("EngineTrace", "ServiceTrace", "read_engine_trace", "read_service_trace"),
    "validation": ("Validation", "read_validation", "validate"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "plots"])

if TYPE_CHECKING:
    from simulator import plots as plots
    from simulator.acceptance_fit import Fit as Fit
    from simulator.acceptance_fit import fit_all as fit_all
    from simulator.attribution import Attribution as Attribution
    from simulator.attribution import attribute as attribute
    from simulator.capacity import Capacity as Capacity
    from simulator.capacity import find_capacity as find_capacity
    from simulator.errors import InputError as InputError
    from simulator.fields import Spec as Spec
    from simulator.metrics import metric_names as metric_names
    from simulator.model import Simulation as Simulation
    from simulator.model import simulate_once as simulate_once
    from simulator.parity import Parity as Parity
    from simulator.parity import check_parity as check_parity
    from simulator.runner import Comparison as Comparison
    from simulator.runner import Replication as Replication
    from simulator.runner import Results as Results
    from simulator.runner import compare as compare
    from simulator.runner import simulate as simulate
    from simulator.scenario import Engine as Engine
    from simulator.scenario import Scenario as Scenario
    from simulator.scenario import Service as Service
    from simulator.scenario import Study as Study
    from simulator.scenario import Switches as Switches
    from simulator.scenario import Workload as Workload
    from simulator.scenario import load_scenario as load_scenario
    from simulator.sweeps import SweepSpec as SweepSpec
    from simulator.sweeps import Task as Task
    from simulator.sweeps import build_sweep as build_sweep
    from simulator.sweeps import load_sweep as load_sweep
    from simulator.sweeps import sobol_indices as sobol_indices
    from simulator.sweeps import sweep as sweep
    from simulator.trace_export import export_trace as export_trace
    from simulator.traces import EngineTrace as EngineTrace
    from simulator.traces import ServiceTrace as ServiceTrace
    from simulator.traces import read_engine_trace as read_engine_trace
    from simulator.traces import read_service_trace as read_service_trace
    from simulator.validation import Validation as Validation
    from simulator.validation import read_validation as read_validation
    from simulator.validation import validate as validate
else:  # unseen by type checkers, which would take any name for granted

    def __getattr__(name: str) -> Any:
        if name == "plots":
            return importlib.import_module(f"{__name__}.plots")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
