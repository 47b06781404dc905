"""Methods in the same bytes of K/V, each with the most rows that it runs in them: residents, exactness, speed.

``python tools/residents.py docs/results/residents-tiny.json`` decodes prompts of many lengths with the bundled pair on
one thread. The most rows are the largest power of two, up to 32, that the engine accepts. Every method runs once to be
compared with the oracle, then in turn, several times. Speeds are tokens per second of CPU time, compared as ratios to
`inplace` in the same turn.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from output_argument import output_argument

import refimpl
from refimpl.core.errors import InputError
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.prompts import read_prompts

ROOT = Path(__file__).parents[1]
METHODS = ("inplace", "inplace+continuous", "paged", "paged+continuous", "masked", "exspec", "eqspec")
REFERENCE = "inplace"
BATCH_SIZES, REPEATS = (32, 16, 8, 4, 2, 1), 3
SETTINGS: dict[str, Any] = {"kv_memory_gib": 0.055, "num_speculative_tokens": 3, "checks": "off"}
STATISTICS = ("most_residents", "mean_residents", "kv_peak_bytes", "kv_live_bytes", "num_preemptions", "num_rounds")


def run(pair: refimpl.Pair, prompts: list, method: str, batch_size: int) -> tuple[refimpl.Result, float]:
    """A result, and tokens per second of CPU time."""
    print(f"{method}, {batch_size} rows", file=sys.stderr, flush=True)
    begun = time.process_time()
    result = refimpl.generate(pair, prompts, method=method, batch_size=batch_size, **SETTINGS)
    return result, result.stats.num_generated / (time.process_time() - begun)


def run_most_rows(pair: refimpl.Pair, prompts: list, method: str) -> tuple[int, refimpl.Result]:
    """The most rows that fit, and a run of them.

    Raises:
        InputError: a single row does not fit.
    """
    for batch_size in BATCH_SIZES[:-1]:
        try:
            return batch_size, run(pair, prompts, method, batch_size)[0]
        except InputError as error:
            print(error, file=sys.stderr, flush=True)
    return BATCH_SIZES[-1], run(pair, prompts, method, BATCH_SIZES[-1])[0]


def measure(pair: refimpl.Pair, prompts: list) -> list[dict[str, Any]]:
    """A line a method."""
    oracle = refimpl.generate(pair, prompts, method="autoregressive").sequences
    fitting = {method: run_most_rows(pair, prompts, method) for method in METHODS}
    turns = [
        {method: run(pair, prompts, method, size)[1] for method, (size, _) in fitting.items()} for _ in range(REPEATS)
    ]
    ratios = {method: [turn[method] / turn[REFERENCE] for turn in turns] for method in METHODS}
    return [
        {
            "method": method,
            "batch_size": size,
            "exact": sum(a.token_ids == b.token_ids for a, b in zip(oracle, result.sequences, strict=True)),
            **{name: getattr(result.stats, name) for name in STATISTICS},
            "tokens_per_s": statistics.median(turn[method] for turn in turns),
            "ratios": ratios[method],
        }
        for method, (size, result) in fitting.items()
    ]


def main() -> None:
    """Write the lines and where they come from."""
    output = output_argument(__doc__)
    torch.set_num_threads(1)
    prompts = read_prompts(ROOT / "docs" / "ragged.jsonl")
    rows = measure(refimpl.load_pair("tiny"), prompts)
    data = {"rows": rows, "prompts": len(prompts), "settings": SETTINGS, "meta": provenance(torch.device("cpu"))}
    write_whole(output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
