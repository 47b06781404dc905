"""A broken engine behind the public interface of the conformance kit."""

from dataclasses import fields
from typing import Any

from refimpl.conformance.adapters import SERVED, MethodEngine, mixed_script
from refimpl.conformance.protocol import EngineSettings
from refimpl.core.config import CheckLevel, DecodeConfig, SamplingConfig
from refimpl.core.errors import InputError
from refimpl.faults import FAULTS
from refimpl.faults.base import LAW_ONLY, Fault
from refimpl.models.adapter import Pair
from refimpl.models.table_model import VOCAB_SIZE, table_pair, unrelated_pair
from refimpl.pairs.random_pairs import random_pair
from refimpl.selfcheck.cases import OF_PAIR

OWN = {item.name for cls in (DecodeConfig, SamplingConfig) for item in fields(cls)} - {
    *SERVED, "acceptance", "window_size",
}  # fmt: skip


class FaultyEngine(MethodEngine):
    """Our engine with a fault injected while it decodes; the reference stays whole."""

    def __init__(self, fault: Fault, *, checks: CheckLevel = "oracle", pair: Pair | None = None):
        scheduler = "fifo" if "fifo" in fault.schedulers else fault.schedulers[0]
        settings = {name: value for name, value in fault.settings.items() if name in OWN}
        acceptance = fault.settings.get("acceptance")
        law_rule = acceptance if acceptance in LAW_ONLY else None
        super().__init__(
            f"{fault.layouts[0]}+{scheduler}",
            pair or (unrelated_pair() if law_rule else _pair_of(fault)),
            checks="host" if checks == "oracle" and "cuda_graphs" in settings else checks,
            law_rule=law_rule,
            **settings,
        )
        self.fault = fault

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Any:
        """Decode on the broken engine."""
        with self.fault.injected():
            return super().__call__(prompts, settings)


def _pair_of(fault: Fault) -> Pair:
    settings = fault.settings
    if "architecture" in settings:
        return random_pair(settings["architecture"], vocab_size=VOCAB_SIZE)
    layers = {name: settings[name] for name in OF_PAIR if name in settings}
    return table_pair(mixed_script(), **layers)


def faulty(name: str) -> FaultyEngine:
    """Test the engine with the fault `name`, checks on."""
    return FaultyEngine(_find(name))


def faulty_unchecked(name: str) -> FaultyEngine:
    """Test the engine with the fault `name`, checks off: its outputs tell, and the errors that it still raises."""
    return FaultyEngine(_find(name), checks="off")


def _find(name: str) -> Fault:
    if name not in FAULTS:
        raise InputError(f"unknown fault {name!r}: choose {', '.join(FAULTS)}")
    return FAULTS[name]
