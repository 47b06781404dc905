"""How fast the simulator itself is: rounds per second on one core."""

import statistics
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from refimpl.core import provenance
from simulator.service.simulation import Simulation
from simulator.settings.fields import Spec
from simulator.settings.json_files import with_environment
from simulator.settings.scenario import Engine, Scenario, Study, Workload

WINDOWS = (64, 1024, 4096)
TIMEOUTS = 50_000


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed at one window size; medians over the repeats.

    Attributes:
        rounds_per_cpu_s: rounds over the process's CPU seconds, which other programs on the machine do not disturb.
        rounds_per_wall_s: rounds over wall-clock seconds.
    """

    window_size: int
    batch_size: int
    rounds_per_cpu_s: float
    rounds_per_wall_s: float


def bench_scenario(window_size: int, batch_size: int) -> Scenario:
    """EXSPEC on requests of varied prompts, with noise, so that nothing of a usual study is left out."""
    return Scenario(
        study=Study(num_requests=max(3000, 2 * window_size)),
        workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=16, high_tokens=256)),
        engine=Engine(layout="realigned", scheduler="grouped", batch_size=batch_size, window_size=window_size),
        acceptance=Spec.of("beta", a=4.0, b=2.0),
        cost=Spec.of("linear", verify_base_s=0.025, draft_base_s=0.003, realign_base_s=0.01, noise_cv=0.05),
    )


def measure_speed(window_size: int, batch_size: int, repeats: int) -> Speed:
    """Run the scenario several times; acceptance draws and logging are part of what is timed."""
    cpu, wall = [], []
    for repeat in range(repeats):
        simulation = Simulation(bench_scenario(window_size, batch_size), repeat)
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        rounds = len(simulation.run().lines)
        cpu.append(rounds / (time.process_time() - cpu_start))
        wall.append(rounds / (time.perf_counter() - wall_start))
    return Speed(window_size, batch_size, statistics.median(cpu), statistics.median(wall))


def measure_timeouts(repeats: int) -> float:
    """Timeouts per CPU second of one process that does nothing else: what SimPy alone takes, median of the repeats."""
    speeds = []
    for _ in range(repeats):
        environment = simpy.Environment()
        environment.process(_wait(environment))
        start = time.process_time()
        environment.run()
        speeds.append(TIMEOUTS / (time.process_time() - start))
    return statistics.median(speeds)


def _wait(environment: simpy.Environment) -> Generator[simpy.Event, None, None]:
    for _ in range(TIMEOUTS):
        yield environment.timeout(1.0)


def speed_report(speeds: Sequence[Speed], timeouts_per_s: float) -> dict[str, Any]:
    """Speeds by window, of CPU time and of the clock, and SimPy's own, with what they were measured on."""
    return with_environment(
        {
            "device": provenance.processor(),
            "batch_size": speeds[0].batch_size,
            "rounds_per_s": {str(speed.window_size): speed.rounds_per_cpu_s for speed in speeds},
            "rounds_per_wall_s": {str(speed.window_size): speed.rounds_per_wall_s for speed in speeds},
            "simpy_timeouts_per_s": timeouts_per_s,
            "ratio": {str(speed.window_size): speed.rounds_per_cpu_s / timeouts_per_s for speed in speeds},
        }
    )
