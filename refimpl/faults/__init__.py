"""The fault zoo: deliberately broken variants of the engine, each with what must catch it."""

from importlib import import_module
from pkgutil import iter_modules

from refimpl.faults.base import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]

for module in iter_modules(__path__):  # in order of their names
    if module.name.endswith("_faults"):
        import_module(f"{__name__}.{module.name}")
