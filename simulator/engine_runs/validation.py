"""Simulated against measured: engine runs that no cost and no acceptance was fitted to, with signed errors.

Each held-out run is simulated several ways, so that an error can be told apart:

| error        | simulated with                                   | against                              |
|--------------|--------------------------------------------------|--------------------------------------|
| scheduler    | replayed acceptance                              | number of rounds of the engine       |
| cost         | replayed acceptance, calibrated costs            | seconds of the engine                |
| acceptance   | acceptance fitted to other prompts               | the same with replayed acceptance    |
| total        | fitted acceptance, calibrated costs              | the engine                           |
| waits        | replayed acceptance, calibrated costs            | first token, time between tokens     |

The scheduler's error is a consistency check, no prediction: the same scheduler meets the same acceptance. Every
simulation is given the run's real prompts and output lengths, which a planner would have to guess.

Three bands go with it. All contain what the calibration says of its own uncertainty: the noise of a run, the jitter of
a round, the error of each component's cost. The second also contains the acceptance: which prompts the run happens to
have, and which documents it was fitted to. A run of a few prompts cannot be predicted any better than that, so the
total error is also given per study, over the runs that differ in their prompts only.

Machines drift. A reference pass was timed along with the calibration and with each held-out run; `speed` is the
run's over the calibration's, and simulated seconds are multiplied by it. The error without that is given beside it as
`uncorrected_makespan_error`. The third band is the planner's, who does not know the speed: it draws it, with the
spread that the probes of the calibration had (`speed_cv`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from refimpl.core.errors import require
from refimpl.core.files import write_whole
from refimpl.core.formats import VALIDATION_SCHEMA
from refimpl.core.shown import Shown
from simulator.engine_runs.latency import measured_waits
from simulator.engine_runs.parity import check_parity, replay_scenario
from simulator.intervals import MIDDLE, range_of_runs, share_held
from simulator.runner import Progress, Results, run_all, simulate
from simulator.service.records import STAGES
from simulator.settings.calibration import META_FIELDS, find_calibration, read_meta
from simulator.settings.fields import LEVEL, POSITIVE, VARIATION, Spec
from simulator.settings.folders import VALIDATION
from simulator.settings.scenario import Scenario
from simulator.settings.tables import read_table
from simulator.settings.traces import EngineTrace, read_engine_trace

META = (*META_FIELDS, "reference_s", "reference_cv")
NUMBERS = {"reference_s": POSITIVE} | dict.fromkeys(("reference_cv", "drift_cv", "run_cv", "round_cv"), VARIATION)
MIN_STAGE_SHARE = 0.02  # stages below this share of a run are not judged one by one
FIT = "fit/acceptance.ndjson.gz"
PROBES = "fit/probe-*.ndjson.gz"
WAITS = ("first_token_p50", "first_token_p90", "inter_token_p50", "inter_token_p90")
SPEED_SEED = 0
NOTHING = "nothing"  # that a run needed outside the calibrated range


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Shown):
    """Held-out runs beside their simulations.

    Attributes:
        table: one line per run, errors as shares of the measured value, positive when the simulation is too high.
        stages: signed error of the seconds of each stage, one line per run.
        parity: share of row-rounds that the replay decides as the engine did.
        meta: of the calibration.
    """

    table: pd.DataFrame
    stages: pd.DataFrame
    parity: float
    meta: dict[str, Any]

    def __repr__(self) -> str:
        error = self.summary.loc["makespan_error", "mean_absolute"]
        return f"Validation({len(self.table)} held-out runs: makespan off by {100 * error:.2g} % on average)"

    def to_frame(self) -> pd.DataFrame:
        """The errors of runs, then of studies."""
        return self.summary

    @property
    def studies(self) -> pd.DataFrame:
        """Means over the runs of each study, the total errors of these means, and the mean errors of waits."""
        names = ["measured_s", "simulated_s", "measured_tokens_per_s", "simulated_tokens_per_s"]
        means = self.table.groupby("study")[names].mean()
        waits = self.table.filter(like="_token_p").groupby(self.table["study"]).mean()
        return means.assign(
            runs=self.table.groupby("study").size(),
            makespan_error=means["simulated_s"] / means["measured_s"] - 1,
            tokens_per_s_error=means["simulated_tokens_per_s"] / means["measured_tokens_per_s"] - 1,
        ).join(waits)

    @property
    def summary(self) -> pd.DataFrame:
        """Metric → mean absolute error, mean signed error, worst error; over the runs, then over the studies."""
        return pd.concat([summarize_errors(self.table), summarize_errors(self.studies).add_prefix("study_", axis=0)])

    @property
    def outside(self) -> dict[str, str]:
        """Runs that went outside the calibrated range: the components whose costs are extrapolated there."""
        return {str(run): what for run, what in self.table["outside"].items() if what != NOTHING}

    @property
    def coverage(self) -> float:
        """Share of runs whose makespan lies in the simulated band, which holds `share_held` of single replications."""
        return float(self.table["in_band"].mean())

    @property
    def share_held(self) -> float:
        """Share of single replications that every band holds: 90 %, less where there were fewer than 19."""
        return share_held(int(self.table["replications"].min()), MIDDLE)

    @property
    def planner_coverage(self) -> float:
        """The same for the band of a planner, who does not know the machine's speed during the run."""
        return float(self.table["in_planner_band"].mean())

    def interval(self, column: str = "in_band", level: float = 0.95) -> tuple[float, float]:
        """Exact binomial (Clopper and Pearson) interval of a share of runs, as if runs were independent."""
        inside = self.table[column]
        LEVEL.check(level, "level")
        found = binomtest(int(inside.sum()), len(inside)).proportion_ci(level, method="exact")
        return float(found.low), float(found.high)

    @property
    def missed_studies(self) -> list[str]:
        """Studies none of whose runs lies in the band of the costs alone."""
        inside = self.table.groupby("study")["in_cost_band"].any()
        return list(inside.index[~inside])

    @property
    def cost_coverage(self) -> float:
        """The same, at known speed, for the narrower band without uncertainty of acceptance.

        It falls short of `share_held` where the costs of a study are off by more than the calibration says of its own
        error.
        """
        return float(self.table["in_cost_band"].mean())


def validate(
    calibration: str,
    folder: Path | None = None,
    *,
    replications: int = 200,
    workers: int = 1,
    runs: slice = slice(None),
    progress: Progress | bool | None = None,
) -> Validation:
    """Compare the simulator with the held-out runs of a calibration.

    What a run needs outside the calibrated range is extrapolated, and said (`Validation.outside`).

    Args:
        calibration: ``device/pair``, or a folder when `folder` is given.
        folder: where the held-out traces are; None for the ones that are shipped with the calibration.
        replications: per run, for the bands; with fewer than 19 they hold less than 90 % of single ones.
        workers: processes; the results do not depend on it.
        runs: which of the held-out runs, in order of their names.
        progress: True draws a bar; a function is called with (done, planned) after every run.

    Raises:
        InputError: no traces, missing fields, or traces of another pair.
    """
    find_calibration(calibration)
    folder = folder or VALIDATION / calibration
    traces = [read_engine_trace(path) for path in sorted(folder.glob("*.ndjson.gz"))[runs]]
    require(bool(traces), f"{folder}: holds no held-out traces (*.ndjson.gz)")
    meta = _read_meta(folder / "meta.json")
    for trace in traces:
        same = trace.header["pair"] == meta["pair"]
        require(same, f"{trace.path}: pair is {trace.header['pair']!r}, the calibration's is {meta['pair']!r}")
    require((folder / FIT).is_file(), f"{folder / FIT}: no trace to fit acceptance to")
    cost, fit = Spec.of("table", calibration=calibration, outside="extrapolate"), str(folder / FIT)
    meta["speed_cv"] = speed_cv(folder, meta)
    jobs = [(trace, cost, fit, replications, meta) for trace in traces]
    lines = run_all(_judge, jobs, workers, "held-out runs", progress)
    table = pd.DataFrame([line for line, _ in lines]).set_index("run")
    stages = pd.DataFrame([stage for _, stage in lines]).set_index("run")
    return Validation(table, stages, float(table["same_rows"].sum() / table["rows"].sum()), meta)


def _read_meta(path: Path) -> dict[str, Any]:
    """The fields of `META`, of which `NUMBERS` are checked."""
    meta = read_meta(path, META, VALIDATION_SCHEMA)
    for name, limits in NUMBERS.items():
        limits.check(meta[name], f"{path}: {name}")
    return meta


def speed_cv(folder: Path, meta: dict[str, Any]) -> float:
    """Relative standard deviation of the machine's speed from run to run of the probes.

    With fewer than two probes, that of a single reference pass, which is larger.
    """
    probes = [_reference_s(read_engine_trace(path)) for path in sorted(folder.glob(PROBES))]
    return float(np.std(probes, ddof=1) / np.mean(probes)) if len(probes) > 1 else float(meta["reference_cv"])


def _reference_s(trace: EngineTrace) -> float:
    """Seconds of the reference pass around a run."""
    require(trace.reference_s is not None, f"{trace.path}:1: missing reference_s")
    return trace.reference_s or 0.0


def _judge(
    trace: EngineTrace, cost: Spec, fit: str, replications: int, meta: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    run = Path(trace.path).name.removesuffix(".ndjson.gz")
    speed = _reference_s(trace) / meta["reference_s"]
    measured_s, tokens = float(trace.rounds["round_s"].sum()), sum(trace.output_lens)
    require(measured_s > 0, f"{trace.path}: its rounds take no seconds")
    parity = check_parity(trace.path)
    replayed = simulate(_scenario(trace, cost, None, noise=False), 1)
    noisy = simulate(_scenario(trace, cost, None, noise=True), replications, keep_frames=False)
    drawn = Spec.of("bootstrap", path=fit, resample=True)
    fitted = simulate(_scenario(trace, cost, drawn, noise=True), replications, keep_frames=False)
    drawn_speed = np.exp(np.random.default_rng(SPEED_SEED).normal(0.0, meta["speed_cv"], replications))
    cost_low, cost_high = _band(noisy, speed)
    low, high = _band(fitted, speed)
    planner_low, planner_high = _band(fitted, drawn_speed)
    line = {
        "run": run,
        "study": run.rpartition("-")[0] or run,
        "rounds": parity.rounds,
        "rows": parity.rows,
        "same_rows": parity.same_rows,
        "same_moves": parity.same_moves,
        "interrupted_rounds": trace.header.get("interrupted_rounds", 0),
        "replications": replications,
        "speed": speed,
        "measured_s": measured_s,
        "simulated_s": speed * fitted["makespan_s"],
        "measured_tokens_per_s": tokens / measured_s,
        "simulated_tokens_per_s": fitted["tokens_per_s"] / speed,
        "scheduler_error": _share(replayed["rounds"], parity.rounds),
        "cost_error": _share(speed * replayed["makespan_s"], measured_s),
        "acceptance_error": _share(fitted["makespan_s"], replayed["makespan_s"]),
        "makespan_error": _share(speed * fitted["makespan_s"], measured_s),
        "tokens_per_s_error": _share(fitted["tokens_per_s"] / speed, tokens / measured_s),
        "uncorrected_makespan_error": _share(fitted["makespan_s"], measured_s),
        "cost_band_low_s": cost_low,
        "cost_band_high_s": cost_high,
        "in_cost_band": cost_low <= measured_s <= cost_high,
        "band_low_s": low,
        "band_high_s": high,
        "in_band": low <= measured_s <= high,
        "planner_band_low_s": planner_low,
        "planner_band_high_s": planner_high,
        "in_planner_band": planner_low <= measured_s <= planner_high,
        "outside": _components(replayed, noisy, fitted),
    }
    return line | _wait_errors(trace, noisy, speed), {"run": run} | _stage_errors(trace, replayed, speed)


def _components(*simulated: Results) -> str:
    """Components whose costs any of these had to extrapolate."""
    return ", ".join(sorted({what.partition(":")[0] for each in simulated for what in each.extrapolated})) or NOTHING


def _band(results: Results, speed: float | np.ndarray) -> tuple[float, float]:
    seconds = speed * results.metrics["makespan_s"].to_numpy()
    low, high = range_of_runs(seconds, MIDDLE)
    return float(low), float(high)


def _scenario(trace: EngineTrace, cost: Spec, acceptance: Spec | None, *, noise: bool) -> Scenario:
    return replace(replay_scenario(trace, cost, acceptance), noise=noise)


def _share(simulated: float, measured: float) -> float:
    return simulated / measured - 1 if measured else float("nan")


def _wait_errors(trace: EngineTrace, simulated: Results, speed: float) -> dict[str, float]:
    """Signed errors of quantiles of the wait for the first token, and of those between tokens."""
    measured = measured_waits(trace, trace.rounds["round_s"].cumsum())
    return {f"{name}_error": _share(speed * simulated[f"{name}_s"], measured[f"{name}_s"]) for name in WAITS}


def _stage_errors(trace: EngineTrace, replayed: Results, speed: float) -> dict[str, float]:
    """Signed error of each stage's seconds; NaN where a stage hardly counts."""
    measured, ours = trace.rounds, replayed.frame("rounds")
    total_s = float(measured["round_s"].sum())
    errors = {
        name.removesuffix("_s"): _share(speed * float(ours[name].sum()), float(measured[name].sum()))
        if measured[name].sum() > MIN_STAGE_SHARE * total_s
        else float("nan")
        for name in STAGES
    }
    return errors | _verify_errors(measured["verify_s"], speed * ours["verify_s"], trace.chunks["round"])


def _verify_errors(measured_s: pd.Series, ours_s: pd.Series, chunked: pd.Series) -> dict[str, float]:
    """Signed errors of verify passes that chunks of prompts have a part in, and of the others of such a run.

    NaN for runs without chunks, where rounds do not correspond, and where there are no such passes.
    """
    mixed = measured_s.index.isin(chunked)
    comparable = bool(len(chunked)) and len(measured_s) == len(ours_s)

    def error(part: np.ndarray) -> float:
        measured = float(measured_s.to_numpy()[part].sum())
        return _share(float(ours_s.to_numpy()[part].sum()), measured) if comparable and measured else float("nan")

    return {"verify_mixed": error(mixed), "verify_alone": error(~mixed)}


def summarize_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute, mean signed and worst error of each error column, of the runs that have it; NaN if none has."""
    names = [name for name in table.columns if name.endswith("_error")]
    errors = table[names]
    worst = {name: max(errors[name].dropna(), key=abs, default=float("nan")) for name in names}
    return pd.DataFrame(
        {"mean_absolute": errors.abs().mean(), "mean_signed": errors.mean(), "worst": worst, "count": errors.count()}
    )


def write_table(validation: Validation, path: Path) -> None:
    """Write the table that `raggedspec sim validate` prints, six significant digits; whole or not at all."""
    table = validation.table.join(validation.stages.add_suffix("_stage_error"))
    write_whole(path, [table.to_csv(float_format="%.6g", lineterminator="\n").rstrip("\n")])


def read_validation(name: str = "cpu/tiny") -> Validation:
    """Read the shipped table of a calibration, ``device/pair``, as `write_table` has written it.

    Raises:
        InputError: there is none, or it does not say how many replications its bands are of, or what lay outside.
    """
    path = VALIDATION / name / "validation.csv"
    require(path.is_file(), f"{path}: no such file; run validate --out")
    frame = read_table(path).set_index("run")
    for column in ("replications", "outside"):
        require(column in frame, f"{path}: missing column {column}; run validate --out")
    staged = [column for column in frame.columns if column.endswith("_stage_error")]
    stages = frame[staged].rename(columns=lambda column: column.removesuffix("_stage_error"))
    table = frame.drop(columns=staged)
    parity = float(table["same_rows"].sum() / table["rows"].sum())
    return Validation(table, stages, parity, _read_meta(path.with_name("meta.json")))
