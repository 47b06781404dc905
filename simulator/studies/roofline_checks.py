"""The roofline against published numbers that it was not fitted to."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from refimpl.core.errors import InputError
from refimpl.core.files import write_whole
from simulator.service.roofline import RooflineCost
from simulator.settings.fields import Spec
from simulator.settings.folders import DATA
from simulator.settings.plain_yaml import read_yaml

PUBLISHED = DATA / "published"
CHECKS, SOURCES, ERRORS = (PUBLISHED / name for name in ("checks.csv", "sources.yaml", "check_errors.csv"))
SPECULATIVE = PUBLISHED / "speculative.csv"
OUTLIER = 0.25  # relative error beyond which a row needs an explanation
EXPLAINED = {  # group -> why rows of it are beyond
    "NeMo": "the release spent 1.5 to 2.5 ms of a step outside of the kernels, which counts most where they are short: "
    "in small batches and on several devices",
    "Qwen on H20": "SGLang 0.4.6 prepared each step on the host, 1.2 ms that later releases hide: cost.host_s",
    "MI300X": "large batches in float8 did not reach the efficiency of NVIDIA's kernels with that release; one row of "
    "the smaller model is faster than the all-reduces of the table allow",
    "SilyBench first token": "the server's handling of a request, about 10 ms, is in it, and attention on long prompts "
    "is less efficient than the matrix products are",
}


def check_roofline() -> pd.DataFrame:
    """The published rows of `CHECKS` with columns predicted_s and relative_error (predicted over published, less 1)."""
    checks = pd.read_csv(CHECKS, keep_default_na=False)
    predicted = np.array([_predict(row) for row in checks.to_dict(orient="records")])
    return checks.assign(predicted_s=predicted, relative_error=predicted / checks["measured_s"] - 1)


def _predict(row: dict[str, Any]) -> float:
    """Seconds of a step, a prefill, or a whole batch of requests."""
    cost = RooflineCost(
        Spec.of(
            "roofline",
            device=row["device"],
            target=row["target"],
            dtype=row["dtype"],
            tensor_parallel=int(row["tensor_parallel"]),
            graphs=bool(row["graphs"]),
        ),
        None,
    )
    rows, prompt, output = row["rows"], row["prompt_tokens"], row["output_tokens"]

    def step_s(context: np.ndarray) -> np.ndarray:
        return cost.seconds("verify", rows, 1, context, False)

    if row["what"] == "step":
        return float(step_s(np.array([prompt + output / 2]))[0])
    prefill_s = float(cost.seconds("prefill", rows, prompt, np.zeros(1), False)[0])
    if row["what"] == "prefill":
        return prefill_s
    if row["what"] == "request":
        return prefill_s + float(step_s(prompt + np.arange(1.0, output)).sum())
    raise InputError(f"{CHECKS}: what must be step, prefill or request, not {row['what']!r}")


def summarize_checks(checks: pd.DataFrame) -> pd.DataFrame:
    """A line per group: rows, median and worst size of the errors; the last line is of all rows."""

    def line(name: str, errors: pd.Series) -> dict[str, Any]:
        size = errors.abs()
        worst = float(errors.loc[size.idxmax()])
        return {"group": name, "rows": len(size), "median": float(size.median()), "worst": worst}

    groups = [line(str(name), group["relative_error"]) for name, group in checks.groupby("group", sort=False)]
    return pd.DataFrame([*groups, line("all", checks["relative_error"])]).set_index("group")


def needed_lengths() -> pd.DataFrame:
    """Published speculative speeds at batch 1, with the tokens that a round must yield at its predicted seconds.

    Columns round_s, needed_tokens, which cannot exceed the drafts + 1, and acceptance_probability: that of independent
    drafts that would yield as many.
    """
    rows = pd.read_csv(SPECULATIVE)
    rounds_s = np.array([_round_s(row) for row in rows.to_dict(orient="records")])
    needed, drafts = rows["tokens_per_s"] * rounds_s, rows["num_speculative_tokens"]
    probabilities = [_probability(length, k) for length, k in zip(needed, drafts, strict=True)]
    return rows.assign(round_s=rounds_s, needed_tokens=needed, acceptance_probability=probabilities)


def _round_s(row: dict[str, Any]) -> float:
    """Seconds of drafting and verifying for one row."""
    cost = RooflineCost(
        Spec.of("roofline", **{name: row[name] for name in ("device", "target", "draft", "dtype")}), None
    )
    width, k = np.array([float(row["context_tokens"])]), row["num_speculative_tokens"]
    return float((cost.seconds("draft", 1, k, width, False) + cost.seconds("verify", 1, k + 1, width, False))[0])


def _probability(length: float, k: int) -> float:
    """Solve 1 + α + … + α^k = length; NaN where no probability does."""
    if not 1 <= length <= k + 1:
        return float("nan")
    return float(brentq(lambda probability: sum(probability**i for i in range(k + 1)) - length, 0, 1))


def write_checks(checks: pd.DataFrame, path: str | Path) -> None:
    """Write the rows with their errors as CSV, whole or not at all."""
    rounded = checks.assign(predicted_s=checks["predicted_s"].map("{:.5g}".format))
    rounded["relative_error"] = checks["relative_error"].map("{:.3f}".format)
    write_whole(Path(path), [rounded.to_csv(index=False, lineterminator="\n").rstrip("\n")])


def published_sources() -> dict[str, str]:
    """Where the numbers were published, by the name that the rows give."""
    return read_yaml(SOURCES)
