"""Chrome-trace/Perfetto files (open at ui.perfetto.dev): phases and slots as tracks, pool and K/V as counters."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.files import check_writable, write_whole
from simulator.runner import Results
from simulator.service.metrics import frames_of
from simulator.service.records import STAGES
from simulator.service.simulation import Simulation, simulate_once
from simulator.settings.fields import Range
from simulator.settings.scenario import ScenarioLike, as_scenario
from simulator.settings.traces import EngineTrace

MICRO = 1e6
INDEX = Range(0, integer=True, most=10**6)
PHASES_TRACK = 0


def _event(kind: str, name: str, pid: int, tid: int, start_s: float, **rest: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "pid": pid, "tid": tid, "ts": start_s * MICRO, **rest}


def _names(pid: int, process: str, slots: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}
    for tid, name in enumerate(["phases", *(f"slot {slot}" for slot in range(slots))]):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _phases(line: Any, pid: int) -> Iterator[dict[str, Any]]:
    at = line.start_s
    for stage in STAGES:
        seconds = getattr(line, stage)
        if seconds > 0:
            arguments = {"mode": line.mode, "rows": int(line.rows), "k": int(line.k)}
            yield _event("X", stage.removesuffix("_s"), pid, PHASES_TRACK, at, dur=seconds * MICRO, args=arguments)
        at += seconds


def simulation_events(simulation: Simulation) -> Iterator[dict[str, Any]]:
    """Events of a replication that ran with ``keep_rows=True``; one process per replica."""
    frames = frames_of(simulation)
    bytes_per_token = simulation.cost.kv_bytes_per_token
    for replica, rounds in frames.rounds.groupby("replica"):
        pid = int(replica)  # type: ignore[call-overload]
        rows = frames.rows[frames.rows["replica"] == pid]
        yield from _names(pid, f"replica {pid}", int(rows["slot"].max()) + 1 if len(rows) else 0)
        for line in rounds.itertuples():
            yield from _phases(line, pid)
            pool, end_s = {"waiting": int(line.waiting), "window": int(line.window)}, line.start_s + line.round_s
            yield _event("C", "pool", pid, 0, end_s, args=pool)
            yield _event("C", "K/V MiB", pid, 0, end_s, args={"used": line.kv_tokens * bytes_per_token / 2**20})
        yield from _slots(rounds.reset_index(drop=True), rows, pid, "slot")


def _slots(rounds: pd.DataFrame, rows: pd.DataFrame, pid: int, place: str) -> Iterator[dict[str, Any]]:
    starts, seconds = rounds["start_s"].to_numpy(), rounds["round_s"].to_numpy()
    for row in rows.itertuples():
        arguments = {"seq_len": int(row.seq_len), "accepted": int(row.accepted), "kept": int(row.kept)}
        at, name = int(row.round), f"request {row.sequence}"
        yield _event("X", name, pid, 1 + int(getattr(row, place)), starts[at], dur=seconds[at] * MICRO, args=arguments)


def engine_events(trace: EngineTrace) -> Iterator[dict[str, Any]]:
    """Events of an engine's run; rounds follow each other without a gap."""
    rounds = trace.rounds
    ends = rounds["round_s"].cumsum().to_numpy()
    rows = trace.rows.assign(round=rounds.index.get_indexer(trace.rows["round"]))  # from 0 on, whatever their numbers
    rounds = rounds.assign(start_s=np.concatenate([[0.0], ends[:-1]])).reset_index(names="round")
    yield from _names(0, f"engine: {trace.header['method']}", int(rounds["rows"].max()))
    for line in rounds.itertuples():
        yield from _phases(line, 0)
    yield from _slots(rounds, rows, 0, "row")


def export_trace(
    source: Results | ScenarioLike | Simulation | EngineTrace, path: str | Path, *, replication: int = 0
) -> int:
    """Write a Chrome-trace JSON file, whole or not at all; return the number of events.

    Args:
        source: results or a scenario, of which one replication is run once more with every row; a simulation that has
            run with ``keep_rows=True``; or an engine trace.
        path: file to write.
        replication: which one, of results or a scenario.

    Raises:
        InputError: the file cannot be written, or `replication` is no replication.
    """
    check_writable(Path(path))
    if not isinstance(source, Simulation | EngineTrace):
        index = INDEX.check(replication, "replication")
        scenario = source.scenario if isinstance(source, Results) else as_scenario(source)
        source = simulate_once(scenario, index, keep_rows=True)
    events = list(engine_events(source) if isinstance(source, EngineTrace) else simulation_events(source))
    data = {"displayTimeUnit": "ms", "traceEvents": events}
    write_whole(Path(path), [json.dumps(data, default=float)])
    return len(events)
