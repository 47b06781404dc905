"""A served run of the engine beside the simulator's prediction of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from refimpl.core.errors import require
from simulator.engine_runs.parity import replay_scenario
from simulator.intervals import MIDDLE, range_of_runs
from simulator.runner import simulate
from simulator.service.metrics import QUANTILES
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec
from simulator.settings.json_files import with_environment, write_json
from simulator.settings.traces import EngineTrace, read_engine_trace


@dataclass(frozen=True, eq=False)
class Prediction:
    """A run beside its simulation.

    Attributes:
        table: metric → ``measured``, ``simulated``, ``low`` and ``high`` (90 % of single runs lie between them; of
            fewer than 19, the least and the greatest), ``error`` (simulated over measured, less 1).
        speed: of the machine during the run: seconds of a reference pass over those during the calibration, which
            all simulated seconds are multiplied by. None where either does not say: they are not corrected then.
        extrapolated: what lay outside the calibrated range; empty means that nothing did.
    """

    table: pd.DataFrame
    speed: float | None
    extrapolated: tuple[str, ...]


def measured_waits(trace: EngineTrace, end_s: pd.Series | None = None) -> dict[str, float]:
    """Waits and speed of an engine's run, by the definitions of the simulator's metrics of the same names.

    Args:
        trace: the run.
        end_s: number of a round → seconds from the start of the run to its end; None for those that the trace has.

    Raises:
        InputError: none are given, and the trace does not say.
    """
    end_s = pd.Series(trace.round_end_s) if end_s is None else end_s
    rows = trace.rows.assign(end_s=trace.rows["round"].map(end_s))
    each = rows.groupby("sequence")["end_s"]
    arrival_s = pd.Series(trace.arrivals("seconds"))
    waits = {
        "first_token": each.min() - arrival_s,
        "inter_token": each.diff().dropna(),
        "latency": each.max() - arrival_s,
    }
    speed = {"tokens_per_s": float(rows["kept"].sum() / end_s.iloc[-1])}
    return speed | {
        f"{name}_{label}_s": float(values.quantile(q))
        for name, values in waits.items()
        for label, q in QUANTILES.items()
    }


def predict(trace: EngineTrace, calibration: str, replications: int) -> Prediction:
    """Measured and simulated waits and speed.

    The simulation gets the requests at the same times, and accepts what the engine accepted; its seconds are those of
    a calibration, with their noise, at the machine's speed during the run. It is simulated on the calibration's clock,
    on which requests come `speed` times as fast.

    Args:
        trace: a run with arrivals.
        calibration: of the pair and machine that made it, ``device/pair``.
        replications: runs of the simulator.

    Raises:
        InputError: the trace does not say when its requests came or its rounds ended, no scenario can replay it, its
            rounds were recorded, or it is of another pair than the calibration.
    """
    recorded = trace.header.get("cuda_graphs", False)
    require(not recorded, f"{trace.path}:1: requests waited while rounds were recorded, which is not simulated")
    measured = measured_waits(trace)
    require("arrival_s" in trace.header, f"{trace.path}:1: missing arrival_s")
    meta = load_calibration(calibration).meta
    same = trace.header["pair"] == meta["pair"]
    require(same, f"{trace.path}: pair is {trace.header['pair']!r}, the calibration's is {meta['pair']!r}")
    speed = trace.reference_s / meta["reference_s"] if trace.reference_s and "reference_s" in meta else None
    clock = speed or 1.0  # seconds of the run in one of the calibration's
    cost = Spec.of("table", calibration=calibration, outside="extrapolate")
    scenario = replay_scenario(trace, cost, clock="seconds", speedup=clock).but({"noise": True})
    results = simulate(scenario, replications, keep_frames=False)
    runs = results.metrics[list(measured)] * pd.Series(dict.fromkeys(measured, clock) | {"tokens_per_s": 1 / clock})
    low, high = (pd.Series(end, runs.columns) for end in range_of_runs(runs, MIDDLE))
    table = pd.DataFrame({"measured": measured, "simulated": runs.mean(), "low": low, "high": high})
    return Prediction(table.assign(error=table["simulated"] / table["measured"] - 1), speed, results.extrapolated)


def write_latency(path: Path, found: dict[str, Prediction], calibration: str) -> None:
    """Write the predictions of traces, what their runs were, and where all of it comes from; whole or not at all."""
    runs = []
    for name, prediction in found.items():
        header = read_engine_trace(name).header
        about = {key: header[key] for key in ("method", "batch_size", "num_sequences", "device")}
        runs.append(about | {"rate_per_s": _rate(header), "speed": prediction.speed})
        runs[-1]["extrapolated"] = prediction.extrapolated
        runs[-1]["metrics"] = prediction.table.to_dict(orient="index")
    write_json(with_environment({"calibration": calibration, "runs": runs}), path)


def _rate(header: dict[str, Any]) -> float:
    """Requests per second from the first arrival to the last."""
    times = header["arrival_s"]
    return (len(times) - 1) / max(times[-1] - times[0], 1e-9)
