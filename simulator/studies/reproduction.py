"""The published figures, simulated: one row per figure, with an interval, and the constants that were fitted."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from simulator.intervals import range_of_runs
from simulator.runner import Results, simulate
from simulator.settings.hardware import load_architecture
from simulator.studies.published import (
    OVERHEAD_PROMPTS,
    Constants,
    caption_scenario,
    committed_lengths,
    load_constants,
    overhead_scenario,
)
from simulator.studies.targets import METHODS, RATIO, Targets

HELD = 0.95  # share of single runs between low and high
FIT_STEPS, WHOLE_FILE_REPLICATIONS = 5, 6
FITTED = ("ms_per_verify", "draft_s", "verify_s", "align_s", "draft_acceptance_rate")  # of EQSPEC, per round

Values = dict[str, np.ndarray]  # measure -> its value in each replication


@dataclass(frozen=True)
class Row:
    """One published figure.

    Attributes:
        target: where it stands in the file of targets.
        published: the figure.
        simulated: mean over the replications.
        low, high: 95 % of single runs lie between them; with fewer than 39 replications, the least and the greatest.
            Of the headline, which is of the whole file of prompts, there are at most `WHOLE_FILE_REPLICATIONS`.
        fitted: whether constants were fitted to it.
    """

    target: str
    published: float
    simulated: float
    low: float
    high: float
    fitted: bool

    @property
    def relative_error(self) -> float:
        """Simulated over published, less 1."""
        return self.simulated / self.published - 1

    @property
    def inside(self) -> bool:
        """Whether a single run may come out as published."""
        return self.low <= self.published <= self.high

    def as_mapping(self) -> dict[str, Any]:
        """Fields, relative error, and whether the figure is inside."""
        return asdict(self) | {"relative_error": self.relative_error, "inside": self.inside}


def measures(results: Results) -> Values:
    """What the published logs print, of each replication."""
    metrics = {name: column.to_numpy() for name, column in results.metrics.items()}
    rounds, total_s = metrics["rounds"], metrics["makespan_s"]
    verify_s = (metrics["verify_share"] + metrics["prefill_share"]) * total_s  # the logs count prefill as verification
    grouped = metrics["grouping_rate"] * rounds
    return {
        "tokens_per_s": metrics["tokens_per_s"],
        "verify_calls": rounds,
        "ms_per_verify": 1e3 * verify_s / rounds,
        "draft_s": metrics["draft_share"] * total_s,
        "verify_s": verify_s,
        "align_s": metrics["realign_share"] * total_s,
        "total_s": total_s,
        "draft_acceptance_rate": metrics["draft_acceptance_rate"],
        "grouped_rounds": grouped,
        "fallback_rounds": rounds - grouped,
        "get_batch_s + write_back_s": metrics["realign_share"] * total_s,
        "align_percent": 100 * metrics["realign_share"],
        "grouped_percent": 100 * metrics["grouping_rate"],
    }


class Reproduction:
    """Runs each published experiment once and compares its figures.

    Args:
        targets: what is compared.
        replications: runs of every experiment.
        constants: what the setting leaves open; the committed ones if None.
        lengths: prompt lengths of Spec-Bench in tokens; the committed summary if None.
    """

    def __init__(
        self,
        targets: Targets,
        replications: int = 40,
        constants: Constants | None = None,
        lengths: tuple[int, ...] | None = None,
    ):
        self.targets, self.replications = targets, replications
        self.constants, self.lengths = constants or load_constants(), lengths or committed_lengths()
        self.overhead = lru_cache(maxsize=None)(self._overhead)

    def _overhead(self, method: str, batch_size: int) -> Values:
        lengths = self.lengths[:OVERHEAD_PROMPTS]
        scenario = overhead_scenario(method, batch_size, self.constants, lengths)
        return measures(simulate(scenario, self.replications, keep_frames=False))

    def _throughput(self, batch_size: int) -> np.ndarray:
        """Tokens per second of EXSPEC on every prompt ``[replications]``."""
        scenario = overhead_scenario("exspec", batch_size, self.constants, self.lengths)
        results = simulate(scenario, min(self.replications, WHOLE_FILE_REPLICATIONS), keep_frames=False)
        return measures(results)["tokens_per_s"]

    def _captions(self, batch_size: int) -> Values:
        scenario = caption_scenario(batch_size, self.constants)
        return measures(simulate(scenario, self.replications, keep_frames=False))

    def rows(self) -> Iterator[Row]:
        """A row for every figure of the targets that is simulated."""
        for method in METHODS:
            yield from self._anatomy(method)
        for size, percent in self.targets.grouping_percent.items():
            yield make_row(f"grouping_rate_all_mean.batch {size}", percent, self._captions(size)["grouped_percent"])
        for size, percent in self.targets.alignment_percent.items():
            values = self.overhead("eqspec", size)["align_percent"]
            yield make_row(f"alignment_share_text.batch {size}", percent, values)
        if self.targets.ratio is not None:
            yield make_row(f"headline.{RATIO}", self.targets.ratio, self._throughput(8) / self._throughput(1))

    def _anatomy(self, method: str) -> Iterator[Row]:
        published = dict(self.targets.anatomy[method])
        if not published:
            return
        if "get_batch_s" in published and "write_back_s" in published:
            published["get_batch_s + write_back_s"] = published["get_batch_s"] + published["write_back_s"]
        values = self.overhead(method, 4)
        for name in [name for name in published if name in values]:
            target = f"overhead_anatomy.{method}.{name}"
            fitted = method == "eqspec" and name in FITTED
            yield make_row(target, published[name], values[name], fitted=fitted)


def make_row(target: str, published: float, values: np.ndarray, *, fitted: bool = False) -> Row:
    """A row from the values of single runs."""
    low, high = range_of_runs(values, HELD)
    return Row(target, float(published), float(values.mean()), float(low), float(high), fitted)


def to_frame(rows: list[Row]) -> pd.DataFrame:
    """A table of rows by target."""
    return pd.DataFrame([row.as_mapping() for row in rows]).set_index("target")


def fit_constants(
    row: dict[str, float], start: Constants, replications: int = 20, lengths: tuple[int, ...] | None = None
) -> Constants:
    """Fit everything but `caption_output_tokens` to one published row: that of EQSPEC.

    Each step scales a constant by what its own figure is off: acceptance, tokens in all, and seconds of drafting, of
    verifying and of aligning per round. The number of rounds, and what follows from it, stay predictions.

    Args:
        row: published figures of its log.
        start: where to begin.
        replications: of each step.
        lengths: prompt lengths of Spec-Bench in tokens; the committed summary if None.
    """
    constants, lengths = start, (lengths or committed_lengths())[:OVERHEAD_PROMPTS]
    for _ in range(FIT_STEPS):
        scenario = overhead_scenario("eqspec", 4, constants, lengths).but(noise=False)
        found = measures(simulate(scenario, replications, keep_frames=False))
        constants = _stepped(constants, row, {name: float(values.mean()) for name, values in found.items()})
    return constants


def _stepped(constants: Constants, row: dict[str, float], found: dict[str, float]) -> Constants:
    def off(name: str) -> float:
        return row[name] / row["verify_calls"] / (found[name] / found["verify_calls"])

    deep, shallow = (load_architecture(name).layers for name in ("vicuna-7b", "vicuna-68m"))
    verify_s = (constants.eager_pass_s + deep * constants.eager_layer_s) * off("verify_s")
    draft_s = (constants.eager_pass_s + shallow * constants.eager_layer_s) * off("draft_s")
    layer_s = (verify_s - draft_s) / (deep - shallow)
    tokens = row["tokens_per_s"] * row["total_s"] / (found["tokens_per_s"] * found["total_s"])
    rate = row["draft_acceptance_rate"] / found["draft_acceptance_rate"]
    return replace(
        constants,
        acceptance_probability=constants.acceptance_probability * rate**0.5,  # the rate grows about as its square
        output_mean_tokens=constants.output_mean_tokens * tokens**2,  # the budget cuts half of the change
        eager_pass_s=draft_s - shallow * layer_s,
        eager_layer_s=layer_s,
        host_operation_s=constants.host_operation_s * off("align_s"),
    )
