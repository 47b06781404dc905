"""Draft budgets over the batch size: the engine with the bundled pair on one thread, and the simulator beside it.

``python tools/budget_curve.py docs/results/budgets-cpu.json`` runs fixed numbers of drafts and budgets that adapt in
turn, several times, in an order that is drawn for each turn. Speeds are tokens per second of CPU time, compared as
ratios to that without drafts in the same turn. Budgets are told what fixed numbers of drafts did before, measured in
the same way on other prompts: `by_load` tokens per second at each batch size, `goodput` what rounds cost. Beside them
is what the simulator makes of each run's trace, with the shipped costs and their uncertainty; those of more rows than
were calibrated are extrapolated.
"""

import gc
import json
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from output_argument import output_argument

import refimpl
from refimpl.bench.engines import Bench, round_s
from refimpl.bench.run import make_bench
from refimpl.bench.settings import BenchSettings, prompt_ids, spread
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from simulator import simulate
from simulator.engine_runs.parity import replay_scenario
from simulator.intervals import mean_interval
from simulator.settings.fields import Spec
from simulator.settings.traces import read_engine_trace
from simulator.studies.adaptive import Rounds, Speeds, by_load, cost_table, goodput, load_table

BATCH_SIZES, FIXED, MOST, REPLICATIONS = (1, 4, 8, 16, 32), (0, 1, 3, 5), 5, 20
TRIED, REPEATS = 5, 10  # turns beforehand, and of what is compared
COST = Spec.of("table", calibration="cpu/tiny", outside="extrapolate")
SETTINGS = BenchSettings(batch_sizes=BATCH_SIZES, max_new_tokens=32, checks="off")
PLAIN = "fixed 0"
NEVER_DRAFTED = Spec.of("iid", probability=0.0)
Key = tuple[int, str]  # batch size, budget


class Run(NamedTuple):
    """What one run of a turn shows; seconds of a round are by the clock, while all rows run, prefill left out."""

    tokens_per_s: float
    round_s: float


def fixed_number(k: int) -> dict[str, Any]:
    """Settings of so many drafts; with none, no draft model caches the prompts."""
    return {"num_speculative_tokens": k} | ({} if k else {"drafter": "ngram"})


def tried(bench: Bench, prompts: list[list[int]]) -> tuple[Rounds, Speeds]:
    """Batch sizes with seconds of a round, and with tokens per second, with 0, 1, … drafts a row."""
    runs = measure(bench, prompts, {f"fixed {k}": fixed_number(k) for k in range(MOST + 1)}, TRIED)
    turns = [(size, [runs[size, f"fixed {k}"] for k in range(MOST + 1)]) for size in BATCH_SIZES]
    rounds = [(size, [median(run.round_s for run in each) for each in tries]) for size, tries in turns]
    speeds = [(size, [mean(run.tokens_per_s for run in each) for each in tries]) for size, tries in turns]
    return rounds, speeds


def find_budgets(rounds: Rounds, speeds: Speeds) -> dict[str, dict[str, Any]]:
    """Settings by name: fixed numbers of drafts, and budgets with what rounds cost, or how fast they are."""
    adaptive = {"by_load": by_load(load_table(speeds)), "goodput": goodput(cost_table(rounds))}
    return {f"fixed {k}": fixed_number(k) for k in FIXED} | {
        name: {"num_speculative_tokens": MOST, "draft_budget": budget} for name, budget in adaptive.items()
    }


def prompts_at(prompts: list[list[int]], size: int) -> list[list[int]]:
    """Three for each row where there are as many, so that rows that have finished are replaced; sixteen at least."""
    return spread(prompts, max(16, 3 * size))


def measure(
    bench: Bench, prompts: list[list[int]], budgets: dict[str, dict[str, Any]], turns: int
) -> dict[Key, list[Run]]:
    """Runs of each batch size and budget, one of every turn; a short turn before them warms up."""
    runs: dict[Key, list[Run]] = defaultdict(list)
    for turn in range(turns + 1):
        print(f"turn {turn} of {turns}", file=sys.stderr, flush=True)
        for size in BATCH_SIZES:
            for name, changes in random.Random(f"{turn}:{size}").sample(list(budgets.items()), len(budgets)):
                shorter = {} if turn else {"max_new_tokens": 4}
                run = run_once(bench, prompts_at(prompts, size), size, changes | shorter)
                if turn:
                    runs[size, name].append(run)
    return runs


def run_once(bench: Bench, prompts: list[list[int]], size: int, changes: dict[str, Any]) -> Run:
    """Decode the prompts; tokens are counted per second of CPU time, prefill included."""
    gc.collect()
    begun = time.process_time()
    result = refimpl.generate(bench.pair, prompts, **bench.settings.engine_settings("inplace", size) | changes)
    spent_s = time.process_time() - begun
    full = [round_s(record) for record in result.rounds if len(record.rows) == size]
    return Run(result.stats.num_generated / spent_s, median(full))


def simulated(bench: Bench, prompts: list[list[int]], size: int, changes: dict[str, Any]) -> np.ndarray:
    """Tokens per second of the same decisions, with the calibrated costs, one of every replication."""
    settings = bench.settings.engine_settings("inplace", size) | changes
    with TemporaryDirectory() as folder:
        trace = Path(folder, "run.ndjson")
        result = refimpl.generate(bench.pair, prompts_at(prompts, size), **settings)
        result.write_trace(trace)
        acceptance = None if result.stats.acceptance.drafted else NEVER_DRAFTED
        scenario = replay_scenario(read_engine_trace(trace), COST, acceptance).but({"noise": True})
        return simulate(scenario, REPLICATIONS, keep_frames=False).metrics["tokens_per_s"].to_numpy()


def compared(speeds: dict[Key, np.ndarray]) -> dict[Key, dict[str, Any]]:
    """Ratios to no drafts, and to the best fixed number at the same batch size; paired, with 95 % intervals."""
    lines = {}
    for size, name in speeds:
        fixed = [each for rows, each in speeds if rows == size and each.startswith("fixed")]
        best = max(fixed, key=lambda each: speeds[size, each].mean())
        over = {which: speeds[size, name] / speeds[size, other] for which, other in (("none", PLAIN), ("best", best))}
        intervals = {which: mean_interval(ratios, 0.95)[:3] for which, ratios in over.items()}
        lines[size, name] = {"over_none": intervals["none"], "over_best": intervals["best"], "best": best}
    return lines


def main() -> None:
    """Write the lines and where they come from."""
    output = output_argument(__doc__)
    torch.set_num_threads(1)
    bench = make_bench(refimpl.load_pair("tiny"), SETTINGS)
    texts = read_prompts(TINY / "prompts.jsonl")
    every = prompt_ids(bench.pair, texts, len(texts), 0, 0)
    rounds, speeds = tried(bench, every[::2])
    prompts = every[1::2]
    budgets = find_budgets(rounds, speeds)
    keys = [(size, name) for size in BATCH_SIZES for name in budgets]
    replayed = {(size, name): simulated(bench, prompts, size, budgets[name]) for size, name in keys}
    runs = measure(bench, prompts, budgets, REPEATS)
    measured = {key: np.array([run.tokens_per_s for run in runs[key]]) for key in keys}
    ours, theirs = compared(measured), compared(replayed)
    rows = [
        {"batch_size": size, "budget": name, "tokens_per_s": measured[size, name].tolist()}
        | {"measured": ours[size, name], "simulated": theirs[size, name]}
        for size, name in measured
    ]
    data = {
        "rows": rows,
        "budgets": budgets,
        "rounds_s": rounds,
        "tried_tokens_per_s": speeds,
        "meta": provenance(bench.device),
    }
    write_whole(output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
