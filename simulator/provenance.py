"""Where numbers come from: commit, library versions, digests of input files."""

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simulator.calibration import find_calibration
from simulator.fields import Spec
from simulator.folders import DATA
from simulator.scenario import Scenario


@lru_cache(maxsize=1)
def commit() -> str:
    """Commit of the code that runs; says so where it does not lie in a repository or differs from the commit."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "not in a repository"
    return done.stdout.strip()


def now_utc() -> str:
    """ISO 8601, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=8)
def library_versions(names: tuple[str, ...] = ("numpy", "pandas", "scipy", "simpy")) -> dict[str, str]:
    """Version of Python and of each library that is installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def input_digests(scenario: Scenario) -> dict[str, str]:
    """Digest of every file that a scenario reads, by the setting that names it."""
    specs = {
        "prompt_tokens": scenario.workload.prompt_tokens,
        "output_tokens": scenario.workload.output_tokens,
        "arrivals": scenario.study.arrivals,
        "acceptance": scenario.acceptance,
    }
    digests = {name: _digest(Path(path)) for name, spec in specs.items() if (path := _path_of(spec))}
    if scenario.cost.kind == "table":
        digests["calibration"] = _digest(find_calibration(scenario.cost["calibration"]) / "points.csv")
    return digests


def _path_of(spec: Spec) -> Any:
    return dict(spec.values).get("path")


def _digest(path: Path) -> str:
    found = next((p for p in (path, DATA / path) if p.is_file()), None)
    return hashlib.sha256(found.read_bytes()).hexdigest()[:16] if found else "missing"
