"""How fast the simulator is.

python tools/simulator_speed.py rounds docs/results/speed-simulator.json   on one core, beside what SimPy alone takes
python tools/simulator_speed.py fleet docs/results/fleet-simulator.json    a large fleet: one process, one replication
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
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
REQUESTS, REPLICAS, ROWS = 1_000_000, 100, 64
FLEET: dict[str, Any] = {
    "study": {"kind": "open", "arrivals": {"kind": "poisson", "rate_per_s": 25.0 * REPLICAS}},
    "workload": {
        "prompt_tokens": {"kind": "lognormal", "median_tokens": 300, "sigma": 1.0, "max_tokens": 4000},
        "output_tokens": {"kind": "geometric", "mean_tokens": 130},
    },
    "engine": {"method": "paged+continuous", "batch_size": ROWS, "token_budget": 512, "max_new_tokens": 1000},
    "acceptance": {"kind": "beta", "a": 4.0, "b": 2.0},
    "cost": {"kind": "roofline", "device": "h100", "target": "llama-3-8b", "draft": "llama-3-1b"},
    "service": {"replicas": REPLICAS, "router": "least_loaded"},
}


def scenario(window_size: int) -> Scenario:
    """EXSPEC on requests of varied prompts, with noise, so that nothing of a usual study is left out."""
    return Scenario(
        study=Study(num_requests=max(3000, 2 * window_size)),
        workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=16, high_tokens=256)),
        engine=Engine(layout="realigned", scheduler="grouped", batch_size=BATCH_SIZE, window_size=window_size),
        acceptance=Spec.of("beta", a=4.0, b=2.0),
        cost=Spec.of("linear", verify_base_s=0.025, draft_base_s=0.003, realign_base_s=0.01, noise_cv=0.05),
    )


def rounds_per_s(window_size: int, repeats: int = REPEATS) -> float:
    """Per CPU second: median over repeats. Draws of acceptance and logging are timed."""

    def speed(repeat: int) -> float:
        simulation = Simulation(scenario(window_size), repeat)
        start = time.process_time()
        log = simulation.run()
        return log.num_rounds / (time.process_time() - start)

    return statistics.median(map(speed, range(repeats)))


def timeouts_per_s() -> float:
    """Timeouts per CPU second of one process that does nothing else: median of the repeats."""

    def wait(environment: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(TIMEOUTS):
            yield environment.timeout(1.0)

    def speed() -> float:
        environment = simpy.Environment()
        environment.process(wait(environment))
        start = time.process_time()
        environment.run()
        return TIMEOUTS / (time.process_time() - start)

    return statistics.median(speed() for _ in range(REPEATS))


def rounds() -> dict[str, Any]:
    """Speeds by window, and SimPy's own."""
    speeds = {str(window): rounds_per_s(window) for window in WINDOWS}
    bare = timeouts_per_s()
    ratio = {window: speed / bare for window, speed in speeds.items()}
    return {"batch_size": BATCH_SIZE, "rounds_per_s": speeds, "simpy_timeouts_per_s": bare, "ratio": ratio}


def fleet(requests: int = REQUESTS) -> dict[str, Any]:
    """Seconds and memory of the command that simulates so many requests, and how much it did."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        path.write_text(json.dumps(FLEET | {"study": FLEET["study"] | {"num_requests": requests}}))
        call = [sys.executable, "-m", "raggedspec", "sim", "run", str(path), "-n", "1", "--all", "--json"]
        start = time.perf_counter()
        with subprocess.Popen(call, stdout=subprocess.PIPE) as child:
            found = json.load(child.stdout)["metrics"] if child.stdout else {}
            _, status, used = os.wait4(child.pid, 0)  # of this child alone
            child.returncode = os.waitstatus_to_exitcode(status)
    mean = {name: each["mean"] for name, each in found.items()}
    return {
        "replicas": REPLICAS,
        "requests": mean["completed"],
        "rounds": mean["rounds"],
        "rows": mean["rounds"] * mean["occupancy"] * ROWS,
        "wall_s": time.perf_counter() - start,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
    }


STUDIES = {"rounds": rounds, "fleet": fleet}


def main() -> None:
    """Measure, and write the file."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=[*STUDIES])
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    found = STUDIES[given.study]()
    write_json(with_environment({"device": provenance.processor()} | found), given.output)


if __name__ == "__main__":
    main()
