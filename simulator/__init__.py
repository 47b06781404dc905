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
    "simulator.studies.plan": ("Plan", "find_plan"),
    "simulator.studies.designs": ("SweepSpec", "Task", "build_sweep", "load_sweep", "sobol_indices"),
    "simulator.studies.sweeps": ("sweep",),
    "simulator.engine_runs.trace_export": ("export_trace",),
    "simulator.settings.traces": ("EngineTrace", "ServiceTrace", "read_engine_trace", "read_service_trace"),
    "simulator.engine_runs.validation": ("Validation", "read_validation", "validate"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Attribution", "Capacity", "Comparison", "Comparisons", "Engine", "EngineTrace", "Fit", "InputError", "Parity",
    "Plan", "Replication", "Results", "Scenario", "Service", "ServiceTrace", "Simulation", "Spec", "Study", "SweepSpec",
    "Switches", "Task", "Validation", "Workload", "attribute", "build_sweep", "check_parity", "compare",
    "export_trace", "find_capacity", "find_plan", "fit_all", "load_scenario", "load_sweep", "metric_names", "plots",
    "read_engine_trace", "read_provenance", "read_service_trace", "read_validation", "simulate", "simulate_once",
    "sobol_indices", "sweep", "validate",
]  # fmt: skip

if TYPE_CHECKING:
    from refimpl.core.errors import InputError
    from simulator import plots
    from simulator.engine_runs.acceptance_fit import Fit, fit_all
    from simulator.engine_runs.parity import Parity, check_parity
    from simulator.engine_runs.trace_export import export_trace
    from simulator.engine_runs.validation import Validation, read_validation, validate
    from simulator.runner import Replication, Results, simulate
    from simulator.service.metrics import metric_names
    from simulator.service.simulation import Simulation, simulate_once
    from simulator.settings.fields import Spec
    from simulator.settings.scenario import Engine, Scenario, Service, Study, Switches, Workload, load_scenario
    from simulator.settings.tables import read_provenance
    from simulator.settings.traces import EngineTrace, ServiceTrace, read_engine_trace, read_service_trace
    from simulator.studies.attribution import Attribution, attribute
    from simulator.studies.capacity import Capacity, find_capacity
    from simulator.studies.comparison import Comparison, Comparisons, compare
    from simulator.studies.designs import SweepSpec, Task, build_sweep, load_sweep, sobol_indices
    from simulator.studies.plan import Plan, find_plan
    from simulator.studies.sweeps import sweep
else:  # unseen by type checkers, which would take any name for granted

    def __getattr__(name: str) -> Any:
        if name == "plots":
            return importlib.import_module(f"{__name__}.plots")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
