"""Overlapped execution beside serial: with half as many rows, as published, and with as many rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from simulator.intervals import mean_interval
from simulator.runner import Progress, run_points
from simulator.service.scenario_cost import make_cost
from simulator.service.streams import Streams
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload

K = 5
CONTEXT = 150  # tokens of a row, on average, that costs are looked up at
QWEN = {"device": "h100", "target": "qwen3-32b", "draft": "qwen3-1.7b", "tensor_parallel": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """Costs, and the rows that overlapped execution has.

    Attributes:
        cost: of both models, each on devices of its own.
        rows: in both cohorts together.
        duration_s: of a run.
        layout: where K/V are.
    """

    cost: Spec
    rows: int
    duration_s: float
    layout: Literal["inplace", "paged"] = "inplace"


CASES = {
    "25 ms to verify, 3 ms a draft": Case(Spec.of("linear", verify_base_s=0.025, draft_base_s=0.003), 32, 60.0),
    "5 ms and 0.1 ms a token to verify, 3 ms a draft": Case(
        Spec.of("linear", verify_base_s=0.005, verify_s_per_token=1e-4, draft_base_s=0.003), 32, 60.0
    ),
    "Qwen3 32B on 4 H100, 1.7B on one more": Case(Spec.of("roofline", **QWEN), 32, 30.0, "paged"),
    "the same, passes launched one by one": Case(Spec.of("roofline", **QWEN, graphs=False), 32, 200.0, "paged"),
    "bundled pair, one CPU thread": Case(Spec.of("table", calibration="cpu/tiny", outside="extrapolate"), 8, 60.0),
}
OTHERS = ("half", "equal")  # half as many rows as overlapped execution has, or as many


def scenario_of(case: Case) -> Scenario:
    """Chat-like requests, more than there are rows at any time, on two devices that do not disturb each other."""
    return Scenario(
        study=Study(kind="closed", clients=2 * case.rows, duration_s=case.duration_s),
        workload=Workload(
            prompt_tokens=Spec.of("uniform", low_tokens=50, high_tokens=150),
            output_tokens=Spec.of("geometric", mean_tokens=100),
        ),
        engine=Engine(
            layout=case.layout,
            batch_size=case.rows,
            num_speculative_tokens=K,
            max_new_tokens=200,
            execution="overlapped",
        ),
        acceptance=Spec.of("beta", a=5.83, b=2.5),
        cost=case.cost,
    )


def variants(case: Case) -> dict[str, Scenario]:
    """Overlapped execution, and serial with half as many rows and with as many."""
    base, serial = scenario_of(case), {"engine.execution": "serial"}
    return {
        "overlapped": base,
        "half": base.but({**serial, "engine.batch_size": case.rows // 2}),
        "equal": base.but(serial),
    }


def pass_seconds(case: Case, rows: int) -> tuple[float, float]:
    """Seconds of drafting and of verifying for so many rows."""
    scenario = scenario_of(case).but(noise=False)
    cost, width = make_cost(scenario, Streams(0, 0)), np.array([CONTEXT])
    passes = (("draft", K), ("verify", K + 1))
    draft_s, verify_s = (cost.seconds(name, rows, n, width, False)[0] for name, n in passes)
    return float(draft_s), float(verify_s)


def expected_ratios(case: Case) -> dict[str, float]:
    """What passes alone let expect of overlapped over serial execution, without prompts, host and partial batches.

    A pair of rounds commits tokens of all n rows and takes 2 max(t, V) of half of them; a serial round takes the sum
    of both for n rows. With a fixed cost V0 of each verify pass, and no more drafting than verifying, the second ratio
    is above 1 where V0 is below the seconds of drafting for n rows.
    """
    draft_s, verify_s = pass_seconds(case, case.rows)
    half_draft_s, half_verify_s = pass_seconds(case, case.rows // 2)
    pair_s = 2 * max(half_draft_s, half_verify_s)
    return {
        "draft_s": draft_s,
        "verify_s": verify_s,
        "fixed_s": 2 * half_verify_s - verify_s,
        "expected_half": 2 * (half_draft_s + half_verify_s) / pair_s,
        "expected_equal": (draft_s + verify_s) / pair_s,
    }


def run_overlap(
    names: Sequence[str], replications: int, *, workers: int = 1, progress: Progress | bool | None = None
) -> pd.DataFrame:
    """One line per machine, variant and replication with its tokens per second; variants meet the same requests."""
    jobs = {(name, kind): each for name in names for kind, each in variants(CASES[name]).items()}
    columns = ("machine", "variant")
    return run_points(jobs, replications, columns, ("tokens_per_s",), workers=workers, progress=progress)


def judge_overlap(runs: pd.DataFrame) -> pd.DataFrame:
    """Tokens per second of overlapped over serial execution: paired ratios with 95 % intervals, a line a machine."""
    return pd.DataFrame(
        {"machine": name, "rows": CASES[name].rows} | expected_ratios(CASES[name]) | dict(_ratios(part))
        for name, part in runs.groupby("machine", sort=False)
    )


def _ratios(part: pd.DataFrame) -> Iterator[tuple[str, float]]:
    speeds = part.pivot(index="replication", columns="variant", values="tokens_per_s")
    for other in OTHERS:
        found = mean_interval((speeds["overlapped"] / speeds[other]).to_numpy(), 0.95)[:3]
        yield from zip((other, f"{other}_low", f"{other}_high"), found, strict=True)
