"""Throughput against memory: plans for smaller and smaller budgets, run by the engine, and simulated.

``python tools/memory_curve.py docs/results/memory-tiny.json`` plans the bundled prompts for each budget. The plans run
in turn, several times, and their speeds are compared as ratios: tokens per second of CPU time over those of the largest
budget. Beside them is what the simulator makes of each run's trace, with the shipped costs, and a simulated server on
a GPU whose K/V get more and more room.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from output_argument import output_argument

import refimpl
from refimpl.bench.memory import peak_bytes
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.decoding.memory import GIB
from refimpl.pairs.names import TINY
from refimpl.planning import MemoryPlan, plan_memory
from refimpl.prompts import read_prompts
from simulator import Scenario, simulate
from simulator.engine_runs.parity import replay_scenario
from simulator.intervals import mean_interval
from simulator.service.roofline import RooflineCost
from simulator.settings.fields import Spec
from simulator.settings.traces import read_engine_trace

BUDGETS_GIB = (0.125, 0.08, 0.07, 0.062)
NUM_PROMPTS, REPEATS = 16, 3
ASKED: dict[str, Any] = {"batch_size": 16, "num_speculative_tokens": 4, "max_new_tokens": 48}
CHOSEN = ("method", "batch_size", "num_speculative_tokens", "drafter")
MEASURED = Spec.of("table", calibration="cpu/tiny", outside="extrapolate")
GPU = Spec.of("roofline", device="h100", target="qwen3-8b", draft="qwen3-0.6b")
ROOMS_GIB, REPLICATIONS = (1, 2, 4, 8, 16), 8
LONGEST_PROMPT, BUDGET, MOST_ROWS = 512, 512, 64
SERVER = Scenario(
    study={"num_requests": 2 * MOST_ROWS},  # type: ignore[arg-type]
    workload={  # type: ignore[arg-type]
        "prompt_tokens": {"kind": "uniform", "low_tokens": 32, "high_tokens": LONGEST_PROMPT},
        "output_tokens": {"kind": "geometric", "mean_tokens": 160},
    },
    engine={"num_speculative_tokens": 2, "max_new_tokens": BUDGET},  # type: ignore[arg-type]
    cost=GPU,
)


def engine_rows(pair: refimpl.Pair) -> list[dict[str, Any]]:
    """A line for each budget: what was planned and measured, and speeds over that of the largest budget."""
    prompts = read_prompts(TINY / "prompts.jsonl", limit=NUM_PROMPTS)
    plans = [plan_memory(pair, prompts, budget_gib=budget, **ASKED) for budget in BUDGETS_GIB]
    runs = [[_tokens_per_cpu_s(pair, prompts, plan) for plan in plans] for _ in range(REPEATS)]
    simulated = [_simulated_tokens_per_s(pair, prompts, plan) for plan in plans]
    return [
        {"budget_bytes": plan.budget_bytes, **{name: plan.settings[name] for name in CHOSEN}}
        | {"footprint": asdict(plan.footprint), "planned_bytes": plan.footprint.total_bytes}
        | {"measured_bytes": _measured_bytes(pair, prompts, plan), "gave_up": plan.gave_up}
        | {"ratios": [run[i] / run[0] for run in runs], "simulated_ratio": simulated[i] / simulated[0]}
        for i, plan in enumerate(plans)
    ]


def _tokens_per_cpu_s(pair: refimpl.Pair, prompts: list, plan: MemoryPlan) -> float:
    """Of one run; its threads' seconds count, so that other work on the machine does not."""
    begun = time.process_time()
    result = refimpl.generate(pair, prompts, **plan.settings)
    return sum(len(s.token_ids) for s in result.sequences) / (time.process_time() - begun)


def _measured_bytes(pair: refimpl.Pair, prompts: list, plan: MemoryPlan) -> int:
    """Peak of a run, and the weights, which were there before."""
    run = peak_bytes(lambda: refimpl.generate(pair, prompts, **plan.settings))
    return plan.footprint.weights_bytes + run


def _simulated_tokens_per_s(pair: refimpl.Pair, prompts: list, plan: MemoryPlan) -> float:
    """Of the same decisions, with seconds from the shipped calibration."""
    with TemporaryDirectory() as folder:
        trace = Path(folder, "run.ndjson")
        refimpl.generate(pair, prompts, **plan.settings).write_trace(trace)
        scenario = replay_scenario(read_engine_trace(trace), MEASURED)
        return simulate(scenario, 1, keep_frames=False)["tokens_per_s"]


def server_rows() -> list[dict[str, Any]]:
    """A line for each room of K/V and layout, with tokens per second over those of `inplace` in the largest room.

    `inplace` runs as many rows as fit if each is as long as the longest; `paged` takes blocks as rows grow.
    """
    per_token = RooflineCost(GPU, None).kv_bytes_per_token
    layouts = [
        (gib, layout, changes)
        for gib in ROOMS_GIB
        for layout, changes in (
            ("inplace", {"batch_size": min(MOST_ROWS, int(gib * GIB // (per_token * (LONGEST_PROMPT + BUDGET))))}),
            ("paged", {"batch_size": MOST_ROWS, "num_blocks": int(gib * GIB // (per_token * 16))}),
        )
    ]
    found = [
        simulate(SERVER.but({f"engine.{name}": value for name, value in changes.items()}, method=layout), REPLICATIONS)
        for _, layout, changes in layouts
    ]
    reference = found[-2].metrics["tokens_per_s"].to_numpy()
    return [
        {"room_gib": gib, "layout": layout, "preemptions": results["preemptions"]}
        | dict(zip(("ratio", "low", "high"), _interval(results, reference), strict=True))
        for (gib, layout, _), results in zip(layouts, found, strict=True)
    ]


def _interval(results: Any, reference: Any) -> tuple[float, float, float]:
    return mean_interval(results.metrics["tokens_per_s"].to_numpy() / reference, 0.95)[:3]


def main() -> None:
    """Write the lines and where they come from."""
    output = output_argument(__doc__)
    pair = refimpl.load_pair("tiny")
    torch.set_num_threads(1)
    data = {"engine": engine_rows(pair), "server": server_rows(), "meta": provenance(pair.device)}
    write_whole(output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
