"""The roofline against published numbers that it was not fitted to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import InputError
from refimpl.core.files import write_whole
from simulator.service.cost import Fed
from simulator.service.roofline import UNCERTAINTY, Machine, ModelCost, RooflineCost
from simulator.settings.fields import Spec
from simulator.settings.folders import PUBLISHED
from simulator.settings.hardware import load_architecture, load_device

CHECKS, ERRORS = (PUBLISHED / name for name in ("checks.csv", "check_errors.csv"))
OUTLIER = 0.25  # relative error beyond which a row needs an explanation
LATENT_HEADS = 128  # of the published attention passes, whose K/V are like those of their architecture
EXPLAINED = {  # group -> what is known of its rows that are beyond
    "NeMo": "1.8 to 3.5 ms more a pass than predicted; time outside of the kernels would explain it, which counts most "
    "where they are short: in small batches and on several devices",
    "Qwen on H20": "1.0 to 1.1 ms more a step than predicted, as if the host prepared it while the device waits: "
    "cost.host_s adds such a time",
    "Plain beside speculative": "half of the seconds predicted for the mixture of experts on two devices are its 96 "
    "all-reduces, at 30 µs each: kernels that servers have for small ones take less",
    "MI300X": "the efficiency is that of NVIDIA's kernels, which large batches in float8 did not reach with that "
    "release; one row of the smaller model is faster than the all-reduces of the table allow",
    "FlashMLA unequal rows": "queries and outputs of 128 heads, 36 MB a pass, and the joining of split rows are left "
    "out, which counts where the rows are short: of the longest ones it is 2 % off, where charging every row as the "
    "longest would be 119 % off",
}


def check_roofline() -> pd.DataFrame:
    """The published rows of `CHECKS` with columns predicted_s and relative_error (predicted over published, less 1)."""
    checks = pd.read_csv(CHECKS, keep_default_na=False)
    predicted = np.array([_predict(row) for row in checks.to_dict(orient="records")])
    return checks.assign(predicted_s=predicted, relative_error=predicted / checks["measured_s"] - 1)


def attention_s(row: dict[str, Any], context: float) -> float:
    """Seconds of one layer's attention over rows that look back at `context` tokens on average."""
    model = replace(load_architecture(row["target"]), heads=LATENT_HEADS, kv_heads=LATENT_HEADS)
    machine = Machine(
        load_device(row["device"]), row["dtype"], 1, "compiled", (0.0, 0.0), dict.fromkeys(UNCERTAINTY, 1.0)
    )
    return float(ModelCost(model, machine).attention_s([Fed(row["rows"], 1, context - 1)])) / model.layers


def _predict(row: dict[str, Any]) -> float:
    """Seconds of a step, a prefill, a whole batch of requests, or one layer's attention."""
    if row["what"] == "attention":
        return attention_s(row, row["prompt_tokens"])
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
    raise InputError(f"{CHECKS}: what must be step, prefill, request or attention, not {row['what']!r}")


def summarize_checks(checks: pd.DataFrame) -> pd.DataFrame:
    """A line per group: rows, median and worst size of the errors; the last line is of all rows."""

    def line(name: str, errors: pd.Series) -> dict[str, Any]:
        size = errors.abs()
        worst = float(errors.loc[size.idxmax()])
        return {"group": name, "rows": len(size), "median": float(size.median()), "worst": worst}

    groups = [line(str(name), group["relative_error"]) for name, group in checks.groupby("group", sort=False)]
    return pd.DataFrame([*groups, line("all", checks["relative_error"])]).set_index("group")


def write_checks(checks: pd.DataFrame, path: str | Path) -> None:
    """Write the rows with their errors as CSV, whole or not at all."""
    rounded = checks.assign(predicted_s=checks["predicted_s"].map("{:.5g}".format))
    rounded["relative_error"] = checks["relative_error"].map("{:.3f}".format)
    write_whole(Path(path), [rounded.to_csv(index=False, lineterminator="\n").rstrip("\n")])
