"""A discrete-event model of batch speculative decoding that runs the engine's own schedulers.

The public names are loaded on first use, so `import simulator` is quick. They are named twice: as imports for type
checkers and editors, by module for the loading.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "simulator.engine_runs.acceptance_fit": ("Fit", "fit_all"),
    "simulator.studies.attribution": ("Attribution", "attribute"),
    "simulator.studies.capacity": ("Capacity", "find_capacity"),
    "refimpl.core.errors": ("InputError",),
    "simulator.settings.fields": ("Spec",),
    "simulator.service.metrics": ("metric_names",),
    "simulator.service.simulation": ("Simulation", "simulate_once"),
    "simulator.engine_runs.parity": ("Parity", "check_parity"),
    "simulator.runner": ("Replication", "Results", "simulate"),
    "simulator.studies.comparison": ("Comparison", "Comparisons", "compare"),
    "simulator.settings.tables": ("read_provenance",),
    "simulator.settings.scenario": ("Engine", "Scenario", "Service", "Study", "Switches", "Workload", "load_scenario"),
    "simulator.studies.designs": ("SweepSpec", "Task", "build_sweep", "load_sweep", "sobol_indices"),
    "simulator.studies.sweeps": ("sweep",),
    "simulator.engine_runs.trace_export": ("export_trace",),
    "simulator.settings.traces": ("EngineTrace", "ServiceTrace", "read_engine_trace", "read_service_trace"),
    "simulator.engine_runs.validation": ("Validation", "read_validation", "validate"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "plots"])

if TYPE_CHECKING:
    from refimpl.core.errors import InputError as InputError
    from simulator import plots as plots
    from simulator.engine_runs.acceptance_fit import Fit as Fit
    from simulator.engine_runs.acceptance_fit import fit_all as fit_all
    from simulator.engine_runs.parity import Parity as Parity
    from simulator.engine_runs.parity import check_parity as check_parity
    from simulator.engine_runs.trace_export import export_trace as export_trace
    from simulator.engine_runs.validation import Validation as Validation
    from simulator.engine_runs.validation import read_validation as read_validation
    from simulator.engine_runs.validation import validate as validate
    from simulator.runner import Replication as Replication
    from simulator.runner import Results as Results
    from simulator.runner import simulate as simulate
    from simulator.service.metrics import metric_names as metric_names
    from simulator.service.simulation import Simulation as Simulation
    from simulator.service.simulation import simulate_once as simulate_once
    from simulator.settings.fields import Spec as Spec
    from simulator.settings.scenario import Engine as Engine
    from simulator.settings.scenario import Scenario as Scenario
    from simulator.settings.scenario import Service as Service
    from simulator.settings.scenario import Study as Study
    from simulator.settings.scenario import Switches as Switches
    from simulator.settings.scenario import Workload as Workload
    from simulator.settings.scenario import load_scenario as load_scenario
    from simulator.settings.tables import read_provenance as read_provenance
    from simulator.settings.traces import EngineTrace as EngineTrace
    from simulator.settings.traces import ServiceTrace as ServiceTrace
    from simulator.settings.traces import read_engine_trace as read_engine_trace
    from simulator.settings.traces import read_service_trace as read_service_trace
    from simulator.studies.attribution import Attribution as Attribution
    from simulator.studies.attribution import attribute as attribute
    from simulator.studies.capacity import Capacity as Capacity
    from simulator.studies.capacity import find_capacity as find_capacity
    from simulator.studies.comparison import Comparison as Comparison
    from simulator.studies.comparison import Comparisons as Comparisons
    from simulator.studies.comparison import compare as compare
    from simulator.studies.designs import SweepSpec as SweepSpec
    from simulator.studies.designs import Task as Task
    from simulator.studies.designs import build_sweep as build_sweep
    from simulator.studies.designs import load_sweep as load_sweep
    from simulator.studies.designs import sobol_indices as sobol_indices
    from simulator.studies.sweeps import sweep as sweep
else:  # unseen by type checkers, which would take any name for granted

    def __getattr__(name: str) -> Any:
        if name == "plots":
            return importlib.import_module(f"{__name__}.plots")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
