"""How fast the simulator is: rounds per second on one core, beside what SimPy alone takes.

``python tools/simulator_speed.py docs/results/speed-simulator.json``
"""

import statistics
import time
from argparse import ArgumentParser
from collections.abc import Generator
from pathlib import Path
from typing import Any

import simpy

from refimpl.core import provenance
from simulator.service.simulation import Simulation
from simulator.settings.fields import Spec
from simulator.settings.json_files import with_environment, write_json
from simulator.settings.scenario import Engine, Scenario, Study, Workload

WINDOWS, BATCH_SIZE, REPEATS, TIMEOUTS = (64, 1024, 4096), 4, 5, 50_000


def scenario(window_size: int) -> Scenario:
    """EXSPEC on requests of varied prompts, with noise, so that nothing of a usual study is left out."""
    return Scenario(
        study=Study(num_requests=max(3000, 2 * window_size)),
        workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=16, high_tokens=256)),
        engine=Engine(layout="realigned", scheduler="grouped", batch_size=BATCH_SIZE, window_size=window_size),
        acceptance=Spec.of("beta", a=4.0, b=2.0),
        cost=Spec.of("linear", verify_base_s=0.025, draft_base_s=0.003, realign_base_s=0.01, noise_cv=0.05),
    )


def rounds_per_s(window_size: int, repeats: int) -> float:
    """Per CPU second: median over repeats. Draws of acceptance and logging are timed."""

    def speed(repeat: int) -> float:
        simulation = Simulation(scenario(window_size), repeat)
        start = time.process_time()
        log = simulation.run()
        return log.num_rounds / (time.process_time() - start)

    return statistics.median(map(speed, range(repeats)))


def timeouts_per_s(repeats: int) -> float:
    """Timeouts per CPU second of one process that does nothing else: median of the repeats."""

    def wait(environment: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(TIMEOUTS):
            yield environment.timeout(1.0)

    speeds = []
    for _ in range(repeats):
        environment = simpy.Environment()
        environment.process(wait(environment))
        start = time.process_time()
        environment.run()
        speeds.append(TIMEOUTS / (time.process_time() - start))
    return statistics.median(speeds)


def report(repeats: int) -> dict[str, Any]:
    """Speeds by window, and SimPy's own, with what they were measured on."""
    speeds = {str(window): rounds_per_s(window, repeats) for window in WINDOWS}
    bare = timeouts_per_s(repeats)
    about = {"device": provenance.processor(), "batch_size": BATCH_SIZE, "rounds_per_s": speeds}
    ratio = {window: speed / bare for window, speed in speeds.items()}
    return with_environment(about | {"simpy_timeouts_per_s": bare, "ratio": ratio})


def main() -> None:
    """Measure, and write the file."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    write_json(report(REPEATS), parser.parse_args().output)


if __name__ == "__main__":
    main()
