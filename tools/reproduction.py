"""The data and figures of docs/reproduction.md; `readme.py` renders its tables.

Run from the repository root: ``python tools/reproduction.py`` draws the figures, ``--check`` only reports which are
stale (exit code 1), ``--run`` simulates everything anew first (minutes), ``--run STUDY …`` parts of it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import reproduction_figures as figures
from reproduction_forensics import measure

from refimpl.core import provenance
from simulator.runner import Results, simulate
from simulator.settings.scenario import Scenario
from simulator.studies.explanation import explain
from simulator.studies.published import (
    OLDEST_FIRST,
    caption_scenario,
    committed_lengths,
    load_constants,
    online_scenario,
    overhead_scenario,
)
from simulator.studies.reproduction import WHOLE_FILE_REPLICATIONS, Reproduction, make_row
from simulator.studies.roofline_checks import check_roofline, summarize_checks
from simulator.studies.targets import read_targets

DATA = Path(__file__).parent.parent / "docs" / "reproduction.json"
COUNTS = {"figures and behaviours": 40, "captions": 10, "all 480 prompts and arrivals": 6}
REPLICATIONS, CAPTION_REPLICATIONS, _ = COUNTS.values()
OUTPUTS: dict[str, dict[str, Any]] = {  # lengths of the captions' outputs -> settings
    "50 tokens, the whole budget": {"workload.output_tokens": {"kind": "fixed", "tokens": 50}},
    "50 tokens, and a pad is the end": {
        "workload.output_tokens": {"kind": "fixed", "tokens": 50},
        "switches.pad_ends": True,
    },
    "geometric, mean 3 tokens": {"workload.output_tokens": {"kind": "geometric", "mean_tokens": 3}},
    "geometric, mean 1.8 tokens": {},
}
SIZES = (1, 2, 4, 8, 16, 32)
LOADS = ((2, 1.2), (4, 1.65), (8, 1.8))  # batch size, requests per second
SCHEDULERS: dict[str, dict[str, Any]] = {  # what serves requests that arrive -> changes to the published scenario
    "EXSPEC as published": {},
    "with aging after 16 rounds": {"engine.aging_bound": 16},
    "oldest first, no groups": OLDEST_FIRST,
    "EXSPEC that keeps its caches": {"switches.discard_mixed_caches": False},
    "EQSPEC as published": {},
}
ONLINE_METRICS = ("busy_share", "latency_p50_s", "latency_p90_s", "latency_p99_s", "longest_gap_s", "prefill_share")


def run(scenario: Scenario, replications: int = WHOLE_FILE_REPLICATIONS) -> Results:
    """Means over replications."""
    return simulate(scenario, replications, keep_frames=False)


def captions(constants: Any) -> Iterator[dict[str, Any]]:
    """Grouping rates of the captions by length of their outputs."""
    for name, change in OUTPUTS.items():
        scenarios = (caption_scenario(size, constants).but(change) for size in SIZES[1:])
        found = (run(scenario, CAPTION_REPLICATIONS) for scenario in scenarios)
        yield {"outputs": name, "percent": [100 * each["grouping_rate"] for each in found]}


def throughput(constants: Any) -> Iterator[dict[str, Any]]:
    """Tokens per second on all 480 prompts by method and batch size, with the range of single runs."""
    for method, size in ((method, size) for method in ("eqspec", "exspec") for size in SIZES):
        found = run(overhead_scenario(method, size, constants, committed_lengths()))
        row = make_row("", 1.0, found.metrics["tokens_per_s"].to_numpy())
        shares = {name: 100 * found[f"{stage}_share"] for name, stage in figures.SHARES.items()}
        line = {"method": method, "batch_size": size, "tokens_per_s": row.simulated, "low": row.low, "high": row.high}
        yield line | shares


def online(constants: Any) -> Iterator[dict[str, Any]]:
    """Latency of requests that arrive, by batch size, load and scheduler."""
    for (size, rate), (name, change) in ((load, item) for load in LOADS for item in SCHEDULERS.items()):
        method = "eqspec" if name.startswith("EQSPEC") else "exspec"
        found = run(online_scenario(size, rate, constants, method).but(change))
        metrics = {metric: found[metric] for metric in ONLINE_METRICS}
        yield {"batch_size": size, "rate_per_s": rate, "scheduler": name} | metrics


STUDIES: dict[str, Callable[[Any], Any]] = {  # part of the data -> what makes it from the constants
    "rows": lambda constants: [
        row.as_mapping() for row in Reproduction(read_targets(), REPLICATIONS, constants).rows()
    ],
    "steps": lambda constants: [asdict(step) for step in explain(REPLICATIONS, constants)],
    "captions": lambda constants: [*captions(constants)],
    "throughput": lambda constants: [*throughput(constants)],
    "online": lambda constants: [*online(constants)],
    "forensics": lambda constants: measure(),
    "checks": lambda constants: summarize_checks(check_roofline()).reset_index().to_dict(orient="records"),
}


def renewed(data: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The data with these studies run again, or with all of them if none is named."""
    if names and data["meta"]["replications"] != COUNTS:
        raise SystemExit("the numbers of replications have changed: run all studies")
    constants, stamp = load_constants(), provenance.stamp("numpy", "scipy", "simpy")
    found = {name: STUDIES[name](constants) for name in names or STUDIES}
    if not names:
        return {"meta": {"command": "python tools/reproduction.py --run", "replications": COUNTS} | stamp} | found
    stamped = {name: {"commit": stamp["commit"], "utc_time": stamp["utc_time"]} for name in names}
    return data | found | {"again": data.get("again", {}) | stamped}


def main(arguments: list[str] | None = None) -> int:
    """Draw, check or run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report stale figures")
    parser.add_argument(
        "--run", nargs="*", choices=[*STUDIES], metavar="STUDY", help="simulate all or some parts first"
    )
    options = parser.parse_args(arguments)
    data = json.loads(DATA.read_text(encoding="utf-8"))
    if options.run is not None:
        data = renewed(data, options.run)
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    stale = [name for name in figures.FIGURES if not figures.is_fresh(name, data)]
    print(*stale or ["nothing is stale"], sep="\n")
    for name in () if options.check else stale:
        figures.write(name, data)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
