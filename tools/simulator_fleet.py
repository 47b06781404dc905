"""What it takes to simulate a large fleet: one process, one replication.

``python tools/simulator_fleet.py docs/results/fleet-simulator.json``
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from refimpl.core import provenance
from simulator.settings.json_files import with_environment, write_json

REQUESTS, REPLICAS, BATCH_SIZE = 1_000_000, 100, 64
SCENARIO: dict[str, Any] = {
    "study": {"kind": "open", "arrivals": {"kind": "poisson", "rate_per_s": 25.0 * REPLICAS}},
    "workload": {
        "prompt_tokens": {"kind": "lognormal", "median_tokens": 300, "sigma": 1.0, "max_tokens": 4000},
        "output_tokens": {"kind": "geometric", "mean_tokens": 130},
    },
    "engine": {"method": "paged+continuous", "batch_size": BATCH_SIZE, "token_budget": 512, "max_new_tokens": 1000},
    "acceptance": {"kind": "beta", "a": 4.0, "b": 2.0},
    "cost": {"kind": "roofline", "device": "h100", "target": "llama-3-8b", "draft": "llama-3-1b"},
    "service": {"replicas": REPLICAS, "router": "least_loaded"},
}


def measure(requests: int) -> dict[str, Any]:
    """Seconds and memory of the command that simulates so many requests, and how much it did."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        path.write_text(json.dumps(SCENARIO | {"study": SCENARIO["study"] | {"num_requests": requests}}))
        call = [sys.executable, "-m", "raggedspec", "sim", "run", str(path), "-n", "1", "--all", "--json"]
        start = time.perf_counter()
        with subprocess.Popen(call, stdout=subprocess.PIPE) as child:
            found = json.load(child.stdout)["metrics"] if child.stdout else {}
            _, status, used = os.wait4(child.pid, 0)  # of this child alone
            child.returncode = os.waitstatus_to_exitcode(status)
    mean = {name: each["mean"] for name, each in found.items()}
    return {
        "device": provenance.processor(),
        "replicas": REPLICAS,
        "requests": mean["completed"],
        "rounds": mean["rounds"],
        "rows": mean["rounds"] * mean["occupancy"] * BATCH_SIZE,
        "wall_s": time.perf_counter() - start,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
    }


def main() -> None:
    """Measure, and write the file."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    given = parser.parse_args()
    write_json(with_environment(measure(given.requests)), given.output)


if __name__ == "__main__":
    main()
