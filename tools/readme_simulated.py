"""Tables of how accurate the simulator is: against runs of the engine, and its roofline against a measured machine."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from pages import markdown_table, origin
from readme_measured import by_batch_size

from simulator.engine_runs.acceptance_fit import clustered_error
from simulator.engine_runs.validation import FIT, Validation, read_validation
from simulator.service.roofline import RooflineCost
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec
from simulator.settings.folders import VALIDATION
from simulator.settings.traces import read_engine_trace
from simulator.studies.roofline_calibration import compare_calibration, summarize_components

VALIDATION_METRICS = {
    "cost_error": "cost: the run's own acceptance, replayed",
    "acceptance_error": "acceptance: drawn from the fit instead",
    "makespan_error": "makespan, all together",
    "uncorrected_makespan_error": "makespan, speed of the machine not known",
    "tokens_per_s_error": "tokens/s, all together",
    "study_tokens_per_s_error": "tokens/s, mean of a study's runs",
    "first_token_p50_error": "first token, median of a run: own acceptance",
    "first_token_p90_error": "first token, 90 % of a run",
    "inter_token_p50_error": "between tokens, median of a run",
    "inter_token_p90_error": "between tokens, 90 % of a run",
    "scheduler_error": "rounds of a replay (consistency check)",
}


def simulator(name: str) -> str:
    """Errors of the simulator against held-out runs of the engine; `name` is ``device/pair``."""
    found = read_validation(name)
    summary = found.summary
    known = {name: label for name, label in VALIDATION_METRICS.items() if name in summary.index}
    rows = [[label, *_error_cells(summary.loc[name])] for name, label in known.items()]
    command = f"`raggedspec sim validate --calibration {name}`, on runs measured by"
    text = f"\n{_bands(found)}\n\n{_given(name, found.meta)}\n\n{command}\n"
    return markdown_table(["error", "mean size", "mean", "worst", "of"], rows) + text + origin(found.meta).lstrip("\n")


def _bands(found: Validation) -> str:
    """What the bands cover, and where they fail."""
    low, high = found.interval()
    errors = found.table.groupby("study")["cost_error"].mean()
    missed = {
        study: f"{100 * errors[study]:+.1f} % off on average{_verify(found, study)}" for study in found.missed_studies
    }
    return (
        f"Decisions agree in {100 * found.parity:.0f} % of row-rounds. {100 * found.share_held:.3g} % bands cover "
        f"{_share_of(found, 'in_band')} "
        f"(95 % interval {100 * low:.0f} … {100 * high:.0f} %) at the speed measured during the run, and "
        f"{_share_of(found, 'in_planner_band')} if the speed is drawn. Bands of the costs alone cover "
        f"{_share_of(found, 'in_cost_band')}"
        + (": the error of the costs depends on the study" if found.cost_coverage < found.share_held else "")
        + "".join(f"; {study} misses its bands in every run, with costs {error}" for study, error in missed.items())
        + "."
    )


def _verify(found: Validation, study: str) -> str:
    """Errors of a study's verify passes, with chunks of prompts and without; empty where it does not have both."""
    mixed, alone = (
        100 * found.stages[name][found.table["study"] == study].mean() for name in ("verify_mixed", "verify_alone")
    )
    return (
        ""
        if math.isnan(mixed + alone)
        else f" (verify passes: {mixed:+.1f} % with chunks of prompts, {alone:+.1f} % without)"
    )


def _share_of(found: Validation, column: str) -> str:
    inside = found.table[column]
    return f"{int(inside.sum())} of {len(inside)} runs ({100 * inside.mean():.1f} %)"


def _given(name: str, meta: dict[str, Any]) -> str:
    """What the simulations know of the runs, and where acceptance comes from."""
    trace = read_engine_trace(VALIDATION / name / FIT)
    error, count = clustered_error(trace), len(set(trace.documents))
    split = "other documents than" if meta.get("split") == "document" else "other prompts, but the same documents, as"
    count_again = len(meta.get("runs_again", ()))
    again = (
        f" {count_again} run{'s were' if count_again > 1 else ' was'} interrupted and run again." if count_again else ""
    )
    return (
        "Every simulation is given the run's real prompt and output lengths. Its acceptance is fitted to "
        f"{len(trace.documents)} prompts from {count} documents (standard error of the mean acceptance length "
        f"{100 * error:.1f} %, clustered by document); the runs have {split} the fit.{again}"
    )


def _error_cells(errors: Any) -> list[str]:
    sizes = [f"{100 * errors['mean_absolute']:.1f} %", f"{100 * errors['mean_signed']:+.1f} %"]
    return [*sizes, f"{100 * errors['worst']:+.0f} %", f"{errors['count']:.0f}"]


H200, MODELS = "h200", {"qwen3": {"target": "qwen3-8b", "draft": "qwen3-0.6b"}}
TRUSTED = ("cpu/tiny", "nvidia-h200/vicuna")


def trust() -> str:
    """A line per calibration: how far simulations of held-out runs were off."""
    headings = [
        "costs measured on",
        "runs",
        "decisions",
        "error of tokens/s",
        "90 % bands cover",
        "the same run again",
    ]
    return markdown_table(headings, [_trust_cells(name) for name in TRUSTED])


def _trust_cells(name: str) -> list[str]:
    found = read_validation(name)
    error = found.summary.loc["study_tokens_per_s_error", "mean_absolute"]
    cells = [str(len(found.table)), f"{100 * found.parity:.0f} %", f"±{100 * error:.1f} %"]
    device = f"{found.meta['device']}, pair {found.meta['pair']}"
    return [device, *cells, f"{100 * found.coverage:.0f} %", f"±{100 * found.meta['run_cv']:.1f} %"]


def roofline(name: str, device: str, target: str, draft: str) -> str:
    """Errors of costs of kind roofline by component, on the points of a calibration."""
    summary = summarize_components(compare_calibration(name, device, target, draft))
    headings = ["component", "points", "median size", "mean", "worst", "measured, mean ms", "predicted"]
    rows = [
        [f"`{component}`", str(line["points"]), *_roofline_cells(line)]
        for component, line in summary.sort_values("median").to_dict(orient="index").items()
    ]
    command = f"raggedspec sim roofline --calibration {name} --device {device} --target {target} --draft {draft}"
    meta = load_calibration(name).meta
    return f"{markdown_table(headings, rows)}\n`{command}`, on points measured by\n{origin(meta).lstrip(chr(10))}"


def _roofline_cells(line: dict[str, Any]) -> list[str]:
    shares = [f"{100 * line['median']:.0f} %", f"{100 * line['mean']:+.0f} %", f"{100 * line['worst']:+.0f} %"]
    return [*shares, f"{1e3 * line['measured_s']:.1f}", f"{1e3 * line['predicted_s']:.1f}"]


def recorded(path: Path) -> str:
    """Recorded rounds of a benchmark, what the roofline computes for them, and what their bytes and operations need."""
    data = json.loads(path.read_text())
    meta, models = data["meta"], MODELS[data["meta"]["pair"]]
    k, context = meta["settings"]["num_speculative_tokens"], meta["prompt_tokens"]["median"]
    widths = np.array([context + meta["settings"]["max_new_tokens"] / 2])
    cost = RooflineCost(Spec.of("roofline", device=H200, dtype=meta["dtype"], **models), None)

    def cells(row: dict[str, Any]) -> list[str]:
        rows, drafts = row["batch_size"], k if row["engine"] == "inplace" else 0
        seconds = cost.seconds("draft", rows, drafts, widths, False) + cost.seconds(
            "verify", rows, drafts + 1, widths, False
        )
        times = row["ms_per_round"], row["ms_per_round"] - row["ms_idle"], 1e3 * float(seconds[0])
        shown = [f"{time:.1f}" for time in (*times, row["floor_ms_per_round"])]
        return [row["engine"], str(row["batch_size"]), str(drafts), *shown]

    headings = ["engine", "batch", "drafts", "ms/round", "device busy, ms", "roofline, ms", "floor, ms"]
    table = markdown_table(headings, [cells(row) for row in by_batch_size(data["rows"]) if row["ms_per_round"]])
    source = (
        f"`python tools/readme.py` computes *roofline* (`{H200}`, `{models['target']}`, `{models['draft']}`, "
        f"{widths[0]:g} tokens of context in each row). The rest is in `docs/results/{path.name}`, measured by"
    )
    return f"{table}\n{source}\n{origin(meta)}"
