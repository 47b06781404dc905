"""What each behaviour of the published code costs, and what exact methods would have reached on its machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.intervals import mean_interval
from simulator.runner import simulate
from simulator.settings.scenario import Scenario
from simulator.studies.published import (
    OVERHEAD_PROMPTS,
    Constants,
    committed_lengths,
    load_constants,
    machine,
    overhead_scenario,
)

BATCH_SIZE = 4  # of the logged runs
Changes = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One change of the way from EQSPEC as published to the engine.

    Attributes:
        name: what is changed, with all changes before it kept.
        tokens_per_s: afterwards, mean over the replications.
        gain, low, high: paired difference to the step before with its 95 % interval.
        alone: gain of this change by itself from EXSPEC as published; None for the steps that lead there.
    """

    name: str
    tokens_per_s: float
    gain: float
    low: float
    high: float
    alone: float | None


def first_changes(constants: Constants) -> dict[str, Changes]:
    """From EQSPEC to EXSPEC, both as published."""
    operation_s = constants.host_operation_s
    return {
        "finished rows are replaced at once": {"engine.scheduler": "fifo"},
        "copies are launched, not read from the device": {
            "switches.realign_read_s": 0.0,
            "switches.copy_launch_s": operation_s,
        },
        "equal lengths run together, from a window of 48": {
            "engine.scheduler": "grouped",
            "engine.window_size": 48,
            "engine.aging_bound": float("inf"),
            "switches.group_key": "padded_length",
            "switches.copy_groups": True,
        },
    }


def further_changes(constants: Constants) -> dict[str, Changes]:
    """From EXSPEC as published to the engine's own methods."""
    return {
        "a mixed batch keeps its caches": {"switches.discard_mixed_caches": False, "switches.pad_prompts": False},
        "one gather moves all rows and layers": {"switches.copy_launch_s": 0.0, "switches.copy_groups": False},
        "each row drafts to its own budget": {"switches.k_policy": "per_row"},
        "the bonus token is kept": {"switches.keep_bonus": True},
        "the draft keeps its cache": {"switches.draft_cache": True},
        "nothing moves: inplace + fifo": {"engine.method": "inplace", "switches.group_key": "length_and_lag"},
        "passes are recorded as graphs": {"cost": machine(constants, graphs=True)},
        "K/V in blocks, read where they lie: paged": {"engine.layout": "paged"},
        "prompts in chunks beside the rows: paged + continuous": {"engine.method": "paged+continuous"},
    }


def explain(replications: int = 20, constants: Constants | None = None) -> list[Step]:
    """Change one behaviour after the other, on the same requests and the same luck."""
    constants = constants or load_constants()
    lengths = committed_lengths()[:OVERHEAD_PROMPTS]
    start = overhead_scenario("eqspec", BATCH_SIZE, constants, lengths)
    published = overhead_scenario("exspec", BATCH_SIZE, constants, lengths)
    first, further = first_changes(constants), further_changes(constants)
    return list(_steps(start, published, first, further, replications))


def _steps(
    start: Scenario, published: Scenario, first: dict[str, Changes], further: dict[str, Changes], replications: int
) -> Iterator[Step]:
    before = _speed(start, replications)
    yield Step("EQSPEC as published", float(before.mean()), 0.0, 0.0, 0.0, None)
    scenario, of_published = start, _speed(published, replications)
    for name, changes in (first | further).items():
        scenario = scenario.but(changes)
        after = _speed(scenario, replications)
        gain, low, high, _ = mean_interval(after - before, 0.95)
        alone = None
        if name in further:
            alone = float((_speed(published.but(changes), replications) - of_published).mean())
        yield Step(name, float(after.mean()), gain, low, high, alone)
        before = after


def _speed(scenario: Scenario, replications: int) -> np.ndarray:
    """Tokens per second ``[replications]``."""
    return simulate(scenario, replications, keep_frames=False).metrics["tokens_per_s"].to_numpy()
