"""Draft budgets that adapt, beside fixed numbers of drafts, while requests arrive at different rates."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import require
from refimpl.core.independent import tokens_per_round
from simulator.intervals import mean_interval
from simulator.runner import Progress, run_points
from simulator.service.cost import CostModel
from simulator.service.roofline import RooflineCost
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload

DRAFTS = (0, 1, 3, 5, 8)  # fixed numbers of drafts
PROBABILITY = 0.7  # mean acceptance of a draft
CONTEXT = 400  # tokens of a row, on average, that costs are looked up at
METRICS = (
    "tokens_per_s", "per_token_mean_s", "inter_token_p99_s", "busy_share", "mean_acceptance_length",
    "drawn_tokens_per_round", "verified_tokens_per_round", "verified_rectangle_per_round",
)  # fmt: skip
Rounds = Sequence[tuple[int, Sequence[float]]]  # rows, and seconds of their rounds with 0, 1, … drafts each
Speeds = Rounds  # the same in tokens per second


def base_scenario(device: str, target: str, draft: str, batch_size: int, duration_s: float) -> Scenario:
    """Chat-like requests, acceptance that differs from request to request."""
    return Scenario(
        study=Study(kind="open", duration_s=duration_s),
        workload=Workload(
            prompt_tokens=Spec.of("uniform", low_tokens=100, high_tokens=500),
            output_tokens=Spec.of("geometric", mean_tokens=150),
        ),
        engine=Engine(batch_size=batch_size, max_new_tokens=512),
        acceptance=Spec.of("beta", a=5.83, b=2.5),
        cost=Spec.of("roofline", device=device, target=target, draft=draft),
    )


def round_s(cost: CostModel, rows: int, k: int) -> float:
    """Seconds of a round of so many rows with k drafts each."""
    width = np.array([CONTEXT])
    draft_s = float(cost.seconds("draft", rows, k, width, False)[0]) if k else 0.0
    return draft_s + float(cost.seconds("verify", rows, k + 1, width, False)[0])


def row_steps(batch_size: int) -> list[int]:
    """Numbers of rows that tables have lines for."""
    return sorted({1, *range(8, batch_size, 8), batch_size})


def round_table(cost: CostModel, steps: Iterable[int]) -> Rounds:
    """Seconds of rounds with no drafts a row, and up to the most of `DRAFTS`."""
    return [(rows, [round_s(cost, rows, k) for k in range(max(DRAFTS) + 1)]) for rows in steps]


def load_table(speeds: Speeds) -> list[tuple[int, int]]:
    """Pairs (rows, drafts) of the budget `by_load`: the number with most tokens per second, never more in a crowd."""
    table, most = [], len(speeds[0][1]) - 1
    for rows, tokens_per_s in speeds:
        if (best := int(np.argmax(tokens_per_s[: most + 1]))) < most:
            most = best
            table.append((rows, most))
    return table


def cost_table(rounds: Rounds) -> list[tuple[int, list[float]]]:
    """Pairs (rows, seconds) of the budget `goodput`: rounds with 1, 2, … drafts a row, over those with none."""
    return [(rows, [round(drafted_s / plain_s, 4) for drafted_s in more_s]) for rows, (plain_s, *more_s) in rounds]


def find_budgets(base: Scenario) -> dict[str, dict[str, Any]]:
    """Settings of the engine by name: fixed numbers of drafts, and the budgets with what costs say about them."""
    rounds = round_table(RooflineCost(base.cost, None), row_steps(base.engine.batch_size))
    speeds = [(rows, [tokens_per_round(PROBABILITY, k) / s for k, s in enumerate(seconds)]) for rows, seconds in rounds]
    fixed = {f"fixed {k}": {"engine.num_speculative_tokens": k} for k in DRAFTS}
    budgets = {
        "by_load": by_load(load_table(speeds) or [(1, max(DRAFTS))]),  # it needs a line, also for the most
        "goodput": goodput(cost_table(rounds)),
    }
    adaptive = {
        name: {"engine.draft_budget": budget, "engine.num_speculative_tokens": max(DRAFTS)}
        for name, budget in budgets.items()
    }
    return fixed | adaptive


def by_load(table: list[tuple[int, int]]) -> str:
    """The budget with this table, as a setting."""
    return "by_load:" + ",".join(f"{rows}={drafts}" for rows, drafts in table)


def goodput(table: list[tuple[int, list[float]]]) -> str:
    """The budget with this table, as a setting."""
    return "goodput:" + ",".join(f"{rows}={'/'.join(map(str, seconds))}" for rows, seconds in table)


def run_budgets(
    base: Scenario,
    rates_per_s: Sequence[float],
    replications: int,
    *,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> pd.DataFrame:
    """One line per budget, rate and replication with `METRICS`; all budgets meet the same requests and constants."""
    budgets = find_budgets(base)
    arrivals = {rate: {"study.arrivals": {"kind": "poisson", "rate_per_s": rate}} for rate in rates_per_s}
    jobs = {(name, rate): base.but({**budgets[name], **arrivals[rate]}) for name in budgets for rate in rates_per_s}
    return run_points(jobs, replications, ("budget", "rate_per_s"), METRICS, workers=workers, progress=progress)


def judge_budgets(frame: pd.DataFrame) -> pd.DataFrame:
    """Each adaptive budget over the best fixed number, and over none, at each rate; paired, with 95 % intervals.

    Attained speed is judged: tokens per second, and seconds per token turned around. The best fixed number is the one
    with the least mean seconds per token at that rate.

    Raises:
        InputError: no request with two tokens finishes at some rate, so that nothing can be judged.
    """
    lines = []
    for rate, part in frame.groupby("rate_per_s"):
        runs = part.set_index(["budget", "replication"])
        fixed = runs[runs.index.get_level_values(0).str.startswith("fixed")]
        means = fixed["per_token_mean_s"].groupby(level=0).mean()
        finished = bool(means.notna().any())
        require(finished, f"no request that yields two tokens finishes at {rate} requests/s: run longer, or more often")
        best = str(means.idxmin())
        for name in [name for name in part["budget"].unique() if not name.startswith("fixed")]:
            for over, other in ((f"best, {best}", best), ("fixed 0", "fixed 0")):
                tokens = (runs.loc[name, "tokens_per_s"] / runs.loc[other, "tokens_per_s"]).to_numpy()
                speed = (runs.loc[other, "per_token_mean_s"] / runs.loc[name, "per_token_mean_s"]).to_numpy()
                found = [*mean_interval(tokens, 0.95)[:3], *mean_interval(speed, 0.95)[:3]]
                lines.append((rate, name, over, *found))
    ends = ("", "_low", "_high")
    columns = [*(f"throughput{end}" for end in ends), *(f"token_speed{end}" for end in ends)]
    return pd.DataFrame(lines, columns=["rate_per_s", "budget", "over", *columns])
