"""Files that a scenario reads, and their digests."""

import hashlib
from pathlib import Path
from typing import Any

from refimpl.core.reading import is_file
from simulator.settings.calibration import find_calibration
from simulator.settings.curves import TABLE
from simulator.settings.fields import Spec
from simulator.settings.folders import DATA
from simulator.settings.hardware import hardware_file
from simulator.settings.kinds import COST
from simulator.settings.scenario import Scenario


def input_files(scenario: Scenario) -> dict[str, Path]:
    """Every file that a scenario reads, by the setting that names it."""
    specs = {
        "prompt_tokens": scenario.workload.prompt_tokens,
        "output_tokens": scenario.workload.output_tokens,
        "arrivals": scenario.study.arrivals,
        "acceptance": scenario.acceptance,
    }
    specs |= {"confidence": scenario.confidence} if scenario.engine.drafting().reads_probabilities else {}
    specs |= {"lookup": scenario.lookup} if scenario.engine.drafting().looks else {}
    files = {name: _found(Path(path)) for name, spec in specs.items() if (path := _path_of(spec))}
    cost = scenario.cost.resolved(COST)
    if name := cost.get("calibration") or cost.get("from_calibration"):
        folder = find_calibration(name)
        files |= {"calibration": folder / "points.csv", "calibration meta": folder / "meta.json"}
    return files | _hardware(cost) if scenario.cost.kind == "roofline" else files


def _hardware(cost: dict[str, Any]) -> dict[str, Path]:
    """Files with the facts of a device and its models, and the table of its efficiency."""
    models = {name: hardware_file("architectures", cost[name]) for name in ("target", "draft") if cost[name]}
    return {"device": hardware_file("devices", cost["device"]), **models, "operator table": TABLE}


def input_digests(scenario: Scenario) -> dict[str, str]:
    """Digest of every file that a scenario reads, by the setting that names it."""
    return {name: _digest(path) for name, path in input_files(scenario).items()}


def _path_of(spec: Spec) -> Any:
    return dict(spec.values).get("path")


def _found(path: Path) -> Path:
    return next((p for p in (path, DATA / path) if is_file(p)), path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if is_file(path) else "missing"
