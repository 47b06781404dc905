"""A synthetic calibration and a synthetic engine trace: for tests only, never presented as measured."""

import csv
import json
from itertools import product

from refimpl.core.formats import CALIBRATION_SCHEMA, POINT_COLUMNS

SYNTHETIC_META = {
    "schema": CALIBRATION_SCHEMA, "origin": "synthetic", "utc_time": "2026-01-01T00:00:00+00:00", "commit": "none",
    "command": "tests", "device": "none", "libraries": {}, "pair": "toy", "dtype": "float32",
    "torch_threads": 1, "seeds": [0], "check_level": "off", "repeats": 3,
    "drift_cv": 0.02, "run_cv": 0.02, "round_cv": 0.04, "component_cv": {"verify": 0.01},
    "kv_bytes_per_token": {"target": 100, "draft": 20}, "num_layers": {"target": 2, "draft": 1},
}  # fmt: skip


def synthetic_seconds(component, batch_size, tokens, width):
    """Linear in every axis, so that interpolation is exact."""
    base = {
        "prefill": 5, "draft": 1, "verify": 10, "even": 10, "packed": 10, "realign": 2, "concat": 3, "split": 1,
        "compact": 4, "host": 0.5,
    }  # fmt: skip
    return 1e-3 * (base[component] + 0.1 * batch_size + 0.2 * tokens + 0.01 * width)


def write_calibration(folder, meta=None, points=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(SYNTHETIC_META if meta is None else meta))
    with (folder / "points.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(POINT_COLUMNS)
        writer.writerows(synthetic_points() if points is None else points)
    return folder


def synthetic_points():
    axes = {
        "prefill": ([1, 8], [1, 63, 255], [0]), "draft": ([1, 8], [1, 8], [8, 512]),
        "verify": ([1, 8], [1, 9], [8, 512]), "even": ([2, 8], [1, 9], [8, 512]),
        "packed": ([2, 8], [1, 9], [8, 512]),
        "realign": ([1, 8], [0], [8, 512]), "concat": ([1, 8], [0], [8, 512]), "split": ([1, 8], [0], [0]),
        "compact": ([1, 8], [0], [8, 512]),
        "host": ([1, 8], [1, 9], [0]),
    }  # fmt: skip
    for component, grid in axes.items():
        for point in product(*grid):
            seconds = synthetic_seconds(component, *point)
            yield component, "any", *point, 5, seconds, seconds, 0.95 * seconds, 1.05 * seconds


def trace_line(round_, row, sequence, seq_len, accepted, *, k=2, drafted=2, lag=1, mode="fifo", finished=False):
    stages = {"draft_s": 0.1, "verify_s": 0.2, "realign_s": 0.0, "prefill_s": 0.0, "host_s": 0.01, "round_s": 0.31}
    kept = accepted + 1
    following = "bonus" if accepted == drafted else "recovered"
    return {
        "round": round_, "mode": mode, "row": row, "sequence": sequence, "seq_len": seq_len, "draft_lag": lag, "k": k,
        "drafted": drafted, "accepted": accepted, "kept": kept, "next_token": following, "finished": finished, **stages,
    }  # fmt: skip


HEADER = {
    "schema": "raggedspec.trace/1", "method": "inplace", "layout": "inplace", "scheduler": "fifo", "batch_size": 2,
    "window_size": 2, "aging_bound": None, "num_speculative_tokens": 2, "max_new_tokens": 6, "num_sequences": 2,
    "prompt_lens": [4, 5], "num_speculative_tokens_each": [2, 2], "max_new_tokens_each": [6, 6], "device": "cpu",
    "pair": "toy",
}  # fmt: skip

LINES = [
    trace_line(0, 0, 0, 4, 2),
    trace_line(0, 1, 1, 5, 0),
    trace_line(1, 0, 0, 7, 2, lag=2, finished=True),
    trace_line(1, 1, 1, 6, 1),
    trace_line(2, 0, 1, 8, 2, finished=True),
]


def write_engine_trace(path, header=HEADER, lines=LINES):
    path.write_text("\n".join(json.dumps(item) for item in [header, *lines]) + "\n")
    return path
