"""docs/reproduction.md and its figures, from docs/reproduction.json.

Run from the repository root: ``python tools/reproduction.py`` renders them, ``--check`` only reports what is stale
(exit code 1), ``--run`` simulates everything anew first and writes the data (minutes).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import reproduction_figures as figures
from reproduction_page import page

from refimpl.core import provenance
from simulator.settings.kinds import DEFAULT_PROBABILITY
from simulator.studies.crossing import DEVICES
from simulator.studies.reproduction import WHOLE_FILE_REPLICATIONS

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs" / "reproduction.json", ROOT / "docs" / "reproduction.md"
REPLICATIONS, CAPTION_REPLICATIONS, DRAWS = 40, 10, 20
COUNTS = {  # of the studies, as the page says
    "figures and behaviours": REPLICATIONS,
    "lengths of captions": CAPTION_REPLICATIONS,
    "all 480 prompts and arrivals": WHOLE_FILE_REPLICATIONS,
    "crossings": DRAWS,
}
PAIRS = (  # whose crossings the page shows
    ({"target": "qwen3-8b", "draft": "qwen3-0.6b", "dtype": "bfloat16"}, DEVICES),
    ({"target": "llama-3-70b", "draft": "llama-3-1b", "dtype": "float8"}, ("h200", "b200", "mi300x")),
)
OUTPUTS = {  # lengths of the captions' outputs -> settings
    "50 tokens, the whole budget": {"workload.output_tokens": {"kind": "fixed", "tokens": 50}},
    "50 tokens, and a pad is the end": {
        "workload.output_tokens": {"kind": "fixed", "tokens": 50},
        "switches.pad_ends": True,
    },
    "geometric, mean 3 tokens": {"workload.output_tokens": {"kind": "geometric", "mean_tokens": 3}},
    "geometric, mean 1.8 tokens": {},
}
SIZES = (1, 2, 4, 8, 16, 32)
RATES = ((2, 0.8), (4, 1.1), (8, 1.2), (2, 1.2), (4, 1.65), (8, 1.8))  # batch size, requests per second
SCHEDULERS = {  # what serves requests that arrive -> changes to EXSPEC as published
    "EXSPEC as published": {},
    "with aging after 16 rounds": {"engine.aging_bound": 16},
    "oldest first, no groups": {
        "engine.scheduler": "fifo", "engine.window_size": None, "engine.aging_bound": None,
        "switches.group_key": "length_and_lag", "switches.copy_groups": False,
    },
    "EXSPEC that keeps its caches": {"switches.discard_mixed_caches": False},
}  # fmt: skip
ONLINE_METRICS = ("busy_share", "latency_p50_s", "latency_p90_s", "latency_p99_s", "longest_gap_s", "prefill_share")


def measure() -> dict[str, Any]:
    """Run every study of the page."""
    from reproduction_forensics import measure as forensics

    from simulator.settings.curves import curve_errors
    from simulator.studies.crossing import find_crossings
    from simulator.studies.explanation import explain
    from simulator.studies.published import load_constants
    from simulator.studies.reproduction import Reproduction
    from simulator.studies.roofline_checks import EXPLAINED, check_roofline, needed_lengths, summarize_checks
    from simulator.studies.targets import read_targets

    constants = load_constants()
    rows = Reproduction(read_targets(), REPLICATIONS, constants).rows()
    crossings = [
        {**cost, **found.as_mapping()}
        for cost, devices in PAIRS
        for found in find_crossings(cost, devices, DEFAULT_PROBABILITY, DRAWS)
    ]
    summary = summarize_checks(check_roofline()).reset_index()
    return {
        "meta": {"command": "python tools/reproduction.py --run", "replications": COUNTS}
        | provenance.stamp("numpy", "scipy", "simpy"),
        "rows": [row.as_mapping() for row in rows],
        "steps": [step.as_mapping() for step in explain(REPLICATIONS, constants)],
        "captions": captions(constants),
        "throughput": throughput(constants),
        "online": online(constants),
        "forensics": forensics(),
        "acceptance_probability": DEFAULT_PROBABILITY,
        "crossings": crossings,
        "curves": list(curve_errors()),
        "checks": summary.to_dict(orient="records"),
        "explained": EXPLAINED,
        "speculative": needed_lengths().to_dict(orient="records"),
    }


def captions(constants: Any) -> list[dict[str, Any]]:
    """Grouping rates of the captions by length of their outputs."""
    from simulator.runner import simulate
    from simulator.studies.published import caption_scenario

    def percent(size: int, change: dict[str, Any]) -> float:
        scenario = caption_scenario(size, constants).but(change)
        return 100 * simulate(scenario, CAPTION_REPLICATIONS, keep_frames=False)["grouping_rate"]

    return [
        {"outputs": name, "percent": [percent(size, change) for size in SIZES[1:]]} for name, change in OUTPUTS.items()
    ]


def throughput(constants: Any) -> list[dict[str, Any]]:
    """Tokens per second on all 480 prompts by method and batch size, with the range of single runs."""
    from simulator.runner import simulate
    from simulator.studies.published import committed_lengths, overhead_scenario
    from simulator.studies.reproduction import make_row

    lines = []
    for method in ("eqspec", "exspec"):
        for size in SIZES:
            scenario = overhead_scenario(method, size, constants, committed_lengths())
            results = simulate(scenario, WHOLE_FILE_REPLICATIONS, keep_frames=False)
            row = make_row("", 1.0, results.metrics["tokens_per_s"].to_numpy())
            share = 100 * results["prefill_share"]
            lines.append(
                {"method": method, "batch_size": size, "tokens_per_s": row.simulated, "low": row.low, "high": row.high}
                | {"prefill_percent": share, "align_percent": 100 * results["realign_share"]}
            )
    return lines


def online(constants: Any) -> list[dict[str, Any]]:
    """Latency of requests that arrive, by batch size, load and scheduler."""
    from simulator.runner import simulate
    from simulator.studies.published import online_scenario

    lines = []
    for size, rate in RATES:
        for name, change in SCHEDULERS.items():
            scenario = online_scenario(size, rate, constants).but(change)
            results = simulate(scenario, WHOLE_FILE_REPLICATIONS, keep_frames=False)
            metrics = {metric: results[metric] for metric in ONLINE_METRICS}
            lines.append({"batch_size": size, "rate_per_s": rate, "scheduler": name} | metrics)
    return lines


def stale(data: dict[str, Any]) -> list[str]:
    """What differs from the data."""
    same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page(data)
    return ([] if same else [PAGE.name]) + [name for name in figures.FIGURES if not figures.is_fresh(name, data)]


def main(arguments: list[str] | None = None) -> int:
    """Render, check or run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report what is stale")
    parser.add_argument("--run", action="store_true", help="simulate everything anew first")
    options = parser.parse_args(arguments)
    if options.run:
        DATA.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    data = json.loads(DATA.read_text(encoding="utf-8"))
    if options.check:
        print(*stale(data) or ["nothing is stale"], sep="\n")
        return 1 if stale(data) else 0
    PAGE.write_text(page(data), encoding="utf-8")
    for name in figures.FIGURES:
        figures.write(name, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
