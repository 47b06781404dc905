"""Tables of how accurate the simulator is: against runs of the engine, and its roofline against a measured machine."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pages import markdown_table, origin
from readme_tables import Column, Row, by_batch_size, tabulate

from simulator.engine_runs.acceptance_fit import clustered_error
from simulator.engine_runs.validation import FIT, Validation, read_validation
from simulator.service.roofline import RooflineCost
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec
from simulator.settings.folders import VALIDATION
from simulator.settings.traces import read_engine_trace
from simulator.studies.roofline_calibration import compare_calibration, summarize_components

RESULTS = Path(__file__).parent.parent / "docs" / "results"
VALIDATION_METRICS = {
    "cost_error": "cost: the run's own acceptance, replayed",
    "acceptance_error": "acceptance: drawn from the fit instead",
    "makespan_error": "makespan, all together, speed of the machine known",
    "uncorrected_makespan_error": "makespan, speed of the machine not known",
    "tokens_per_s_error": "tokens/s, all together, speed known",
    "study_tokens_per_s_error": "tokens/s, mean of a study's runs, speed known",
    "first_token_p50_error": "first token, median of a run: own acceptance",
    "first_token_p90_error": "first token, 90 % of a run",
    "inter_token_p50_error": "between tokens, median of a run",
    "inter_token_p90_error": "between tokens, 90 % of a run",
    "scheduler_error": "rounds of a replay (consistency check)",
}
ERRORS: list[Column] = [
    ("error", "{error}"), ("mean size", "{mean_absolute:.1%}"), ("mean", "{mean_signed:+.1%}"),
    ("worst", "{worst:+.0%}"), ("of", "{count:.0f}"),
]  # fmt: skip


def simulator(name: str) -> str:
    """Errors of the simulator against held-out runs of the engine; `name` is ``device/pair``."""
    found = read_validation(name)
    summary = found.summary
    known = [(label, summary.loc[name]) for name, label in VALIDATION_METRICS.items() if name in summary.index]
    table = markdown_table(*tabulate(ERRORS, [{"error": label, **errors} for label, errors in known]))
    command = f"`raggedspec sim validate --calibration {name}`, on runs measured by"
    text = f"\n{_bands(found)}\n\n{_given(name, found.meta)}\n\n{command}\n"
    return table + text + origin(found.meta).lstrip("\n")


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


TRUSTED = ("cpu/tiny", "nvidia-h200/vicuna")
TRUST: list[Column] = [
    ("costs measured on", "{device}, pair {pair}"), ("runs", "{runs}"), ("decisions", "{parity:.0%}"),
    ("error of tokens/s", "±{error:.1%}"), ("of a run's time, speed known / not", "±{known:.1%} / ±{unknown:.1%}"),
    ("90 % bands cover", "{coverage:.0%}"),
    ("the same run again", "±{run_cv:.1%}"),
]  # fmt: skip


def trust() -> str:
    """A line per calibration: how far simulations of held-out runs were off."""
    return markdown_table(*tabulate(TRUST, map(_trusted, TRUSTED)))


def _trusted(name: str) -> Row:
    found = read_validation(name)
    names = {"error": "study_tokens_per_s_error", "known": "makespan_error", "unknown": "uncorrected_makespan_error"}
    errors = {key: found.summary.loc[name, "mean_absolute"] for key, name in names.items()}
    return found.meta | errors | {"runs": len(found.table), "parity": found.parity, "coverage": found.coverage}


COMPONENTS: list[Column] = [
    ("component", "`{component}`"), ("points", "{points}"), ("median size", "{median:.0%}"), ("mean", "{mean:+.0%}"),
    ("worst", "{worst:+.0%}"), ("measured, mean ms", "{measured_s:.1m}"), ("predicted", "{predicted_s:.1m}"),
]  # fmt: skip


def roofline(name: str, device: str, target: str, draft: str) -> str:
    """Errors of costs of kind roofline by component, on the points of a calibration."""
    summary = summarize_components(compare_calibration(name, device, target, draft))
    lines = summary.sort_values("median").to_dict(orient="index").items()
    table = markdown_table(*tabulate(COMPONENTS, [{"component": component} | line for component, line in lines]))
    command = (
        f"raggedspec sim validate --roofline --calibration {name} --device {device} --target {target} --draft {draft}"
    )
    return f"{table}\n`{command}`, on points measured by\n{origin(load_calibration(name).meta).lstrip(chr(10))}"


H200, MODELS = "h200", {"qwen3": {"target": "qwen3-8b", "draft": "qwen3-0.6b"}}
RECORDED: list[Column] = [
    ("engine", "{engine}"), ("batch", "{batch_size}"), ("drafts", "{drafts}"), ("ms/round", "{ms_per_round:.1f}"),
    ("device busy, ms", "{ms_busy:.1f}"), ("roofline, ms", "{roofline_s:.1m}"),
    ("floor, ms", "{floor_ms_per_round:.1f}"),
]  # fmt: skip


def recorded(path: Path) -> str:
    """Recorded rounds of a benchmark, what the roofline computes for them, and what their bytes and operations need."""
    data = json.loads(path.read_text())
    meta, models = data["meta"], MODELS[data["meta"]["pair"]]
    k, context = meta["settings"]["num_speculative_tokens"], meta["prompt_tokens"]["median"]
    widths = np.array([context + meta["settings"]["max_new_tokens"] / 2])
    cost = RooflineCost(Spec.of("roofline", device=H200, dtype=meta["dtype"], **models), None)
    rows = [row for row in by_batch_size(data["rows"]) if row["ms_per_round"]]
    for row in rows:
        drafts = k if row["engine"] == "inplace" else 0
        fed = (("draft", drafts), ("verify", drafts + 1))
        seconds = sum(float(cost.seconds(name, row["batch_size"], n, widths, False)[0]) for name, n in fed)
        row |= {"drafts": drafts, "ms_busy": row["ms_per_round"] - row["ms_idle"], "roofline_s": seconds}
    source = (
        f"`python tools/readme.py` computes *roofline* (`{H200}`, `{models['target']}`, `{models['draft']}`, "
        f"{widths[0]:g} tokens of context in each row). The rest is in `docs/results/{path.name}`, measured by"
    )
    return f"{markdown_table(*tabulate(RECORDED, rows))}\n{source}\n{origin(meta)}"


SIMULATED: dict[str, Callable[[], str]] = {  # tables of what the simulator ships, and not of a file of results alone
    "trust": trust,
    "simulator-cpu-tiny": lambda: simulator("cpu/tiny"),
    "simulator-nvidia-h200-vicuna": lambda: simulator("nvidia-h200/vicuna"),
    "recorded-rounds": lambda: recorded(RESULTS / "bench-gpu-length3.json"),
    "roofline-nvidia-h200-vicuna": lambda: roofline("nvidia-h200/vicuna", "h200", "vicuna-7b", "vicuna-68m"),
}
