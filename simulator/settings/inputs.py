"""Files that a scenario reads, and their digests."""

import hashlib
from pathlib import Path
from typing import Any

from refimpl.core.reading import is_file
from simulator.settings.calibration import find_calibration
from simulator.settings.curves import TABLE
from simulator.settings.fields import Kinds, Spec, to_mapping
from simulator.settings.folders import find_data
from simulator.settings.hardware import hardware_file
from simulator.settings.kinds import ACCEPTANCE, ARRIVALS, COMMON, CONFIDENCE, COST, LENGTHS, LOOKUP
from simulator.settings.scenario import Scenario


def input_files(scenario: Scenario) -> dict[str, Path]:
    """Every file that a scenario reads, by the setting that names it."""
    specs = {name: (lengths, LENGTHS) for name, lengths in scenario.workload.lengths}
    specs |= {"common": (scenario.workload.common, COMMON), "arrivals": (scenario.study.arrivals, ARRIVALS)}
    specs |= {name: (acceptance, ACCEPTANCE) for name, acceptance in scenario.acceptances}
    specs |= {"confidence": (scenario.confidence, CONFIDENCE)} if scenario.engine.drafting.reads_probabilities else {}
    specs |= {"lookup": (scenario.lookup, LOOKUP)} if scenario.engine.drafting.lookup else {}
    paths = {name: path for name, given in specs.items() if (path := _path_of(*given))}
    files = {name: find_data(path) or Path(path) for name, path in paths.items()}
    cost = scenario.cost.resolved(COST)
    if name := cost.get("calibration") or cost.get("from_calibration"):
        folder = find_calibration(name)
        files |= {"calibration": folder / "points.csv", "calibration meta": folder / "meta.json"}
    return files | _hardware(cost) if scenario.cost.kind == "roofline" else files


def _hardware(cost: dict[str, Any]) -> dict[str, Path]:
    """Files with the facts of a device and its models, and the table of its efficiency."""
    models = {name: hardware_file("architectures", cost[name]) for name in ("target", "draft") if cost[name]}
    return {"device": hardware_file("devices", cost["device"]), **models, "operator table": TABLE}


def scenario_meta(scenario: Scenario, replications: int) -> dict[str, Any]:
    """What a file of results says about the scenario that made them."""
    meta = {"scenario": to_mapping(scenario), "seed": scenario.seed}
    return meta | {"inputs": input_digests(scenario), "replications": replications}


def input_digests(scenario: Scenario) -> dict[str, str]:
    """Digest of every file that a scenario reads, by the setting that names it."""
    return {name: _digest(path) for name, path in input_files(scenario).items()}


def _path_of(spec: Spec, kinds: Kinds) -> Any:
    return spec.resolved(kinds).get("path")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if is_file(path) else "missing"
