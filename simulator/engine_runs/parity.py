"""Does the simulation decide as the engine did? Replays an engine trace, round by round and row by row."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from refimpl.core.errors import require
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload, from_data
from simulator.settings.traces import EngineTrace, read_engine_trace

COMPARED = ("sequence", "seq_len", "draft_lag", "k", "drafted", "accepted", "kept", "finished")
TINY_S = 2.0**-24
ANY_COST = Spec.of(  # one second a round, of which a move takes so little that no number of rounds adds up to a half
    "linear", host_base_s=1.0, verify_base_s=TINY_S, realign_base_s=TINY_S, concat_base_s=TINY_S, split_base_s=TINY_S
)


@dataclass(frozen=True, slots=True)
class Parity:
    """How far a replay agrees.

    Attributes:
        trace: path of the trace.
        scheduler, layout: of the engine's run.
        rounds: rounds of the engine.
        same_mode: rounds with the same mode and members in the same order.
        rows: row-rounds of the engine.
        same_rows: row-rounds that agree in every column of `COMPARED`.
        same_moves: rounds in which both move K/V, or neither does. Not a decision: the simulator follows the target's
            batch, while the draft's own may run out of columns, or be compacted, a round earlier or later.
        first_difference: where they part; empty when nowhere.
        same_blocks: rounds with as many blocks in use, of a paged pool; all of them for other layouts.
        chunks: chunks of prompts of the engine.
        same_chunks: those that the replay has in the same round, as long and at the same place in it.
    """

    trace: str
    scheduler: str
    layout: str
    rounds: int
    same_mode: int
    rows: int
    same_rows: int
    same_moves: int
    first_difference: str
    same_blocks: int
    chunks: int = 0
    same_chunks: int = 0

    @property
    def exact(self) -> bool:
        """Whether every decision and every length agrees."""
        same = (self.same_mode, self.same_rows, self.same_blocks) == (self.rounds, self.rows, self.rounds)
        return same and self.same_chunks == self.chunks and not self.first_difference


def replay_scenario(
    trace: EngineTrace,
    cost: Spec = ANY_COST,
    acceptance: Spec | None = None,
    *,
    clock: str = "rounds",
    speedup: float = 1.0,
) -> Scenario:
    """The scenario of an engine's run: its settings, its prompts, its outputs, and what its drafts were worth.

    Args:
        trace: the run.
        cost: where the seconds come from.
        acceptance: replaces the exact replay of what was accepted.
        clock: of requests that came while others ran: ``rounds`` of one second each, or ``seconds``.
        speedup: requests come that many times as fast as they did.

    Raises:
        InputError: the run's requests differ in their drafts a round, which a scenario's do not; lookups or a head
            drafted for positions that a rollback gave up, for which they may have proposed others before, or acceptance
            was forced there; rows shared prompts alone, windows freed blocks, or a request was cancelled.
    """
    header = trace.header
    again = header["layout"] == "rollback"
    others = again and header.get("drafter", "model") != "model"
    require(not others, f"{trace.path}:1: rollback drafts positions again, where a lookup or a head may propose others")
    forced = again and header.get("acceptance") == "forced"
    require(not forced, f"{trace.path}:1: rollback drafts positions again, which forced acceptance judges anew")
    _require_replayable(trace)
    lengths = Spec.of("trace", path=trace.path)
    common = lengths if "texts" in header else Spec.of("none")
    return from_data(
        {
            "name": Path(trace.path).name,
            "study": _study(trace, clock, speedup),
            "workload": Workload(prompt_tokens=lengths, output_tokens=lengths, common=common),
            "engine": _engine_settings(trace),
            "acceptance": acceptance or _accepted(trace),
            "confidence": Spec.of("trace", path=trace.path),
            "lookup": Spec.of("trace", path=trace.path),
            "cost": cost,
            "noise": False,
        }
    )


def _accepted(trace: EngineTrace) -> Spec:
    """What was accepted, position by position; without drafts there is nothing to know."""
    return Spec.of("replay", path=trace.path) if trace.rows["drafted"].any() else Spec.of("iid", probability=0.0)


def _require_replayable(trace: EngineTrace) -> None:
    """Raise InputError for what a scenario cannot say."""
    header, where = trace.header, f"{trace.path}:1"
    prompts_alone = header.get("shape_stable") and "texts" in header
    require(
        not prompts_alone, f"{where}: under shape_stable rows share prompts alone, in a scenario all of their texts"
    )
    freed = f"{where}: rows gave back what their windows no longer saw; in a scenario they keep all of their blocks"
    require(not header.get("frees_unseen"), freed)
    stepped = f"{where}: a draft with recurrent states runs a pass more a round, which is not simulated"
    require(not header.get("recurrent_draft"), stepped)
    ended = set(trace.rows.loc[trace.rows["finished"].astype(bool), "sequence"])
    left = min(set(range(header["num_sequences"])) - ended, default=None)
    require(left is None, f"{where}: sequence {left} was cancelled, which a scenario cannot replay")


def _engine_settings(trace: EngineTrace) -> dict[str, Any]:
    header = trace.header
    own = {"num_speculative_tokens": trace.num_speculative_tokens, "prefix_sharing": "texts" in header}
    return {item.name: header[item.name] for item in fields(Engine) if item.name in header} | own


def _study(trace: EngineTrace, clock: str, speedup: float) -> Study:
    """All requests at once, or each when it came."""
    count = trace.header["num_sequences"]
    if not any(trace.arrivals(clock)):
        return Study(num_requests=count)
    arrivals = Spec.of("replay", path=trace.path, clock=clock, speedup=speedup)
    return Study(kind="open", num_requests=count, arrivals=arrivals)


def check_parity(path: str | Path) -> Parity:
    """Replay a trace and compare every decision.

    Raises:
        InputError: the trace cannot be read, or no scenario can replay it.
    """
    trace = read_engine_trace(path)
    simulation = simulate_once(replay_scenario(trace), keep_rows=True)
    parity = compare_rows(trace, simulation.log.row_frame())
    replayed = simulation.log.round_frame()
    ours = [(index, request, count) for _, index, request, count in simulation.log.chunks or []]
    return replace(
        parity,
        same_moves=count_same_moves(trace, replayed),
        same_blocks=count_same_blocks(trace, replayed),
        chunks=len(trace.chunks),
        same_chunks=count_same_chunks(trace, ours),
    )


def count_same_moves(trace: EngineTrace, replayed: pd.DataFrame) -> int:
    """Rounds in which engine and replay agree on whether K/V move; all of them where the trace does not say."""
    real = trace.rounds["num_moves"].to_numpy()
    if pd.isna(real).any():
        return len(real)
    return int(((real > 0) == (replayed["realign_s"].to_numpy() > 0)).sum()) if len(real) == len(replayed) else 0


def count_same_blocks(trace: EngineTrace, replayed: pd.DataFrame) -> int:
    """Rounds in which engine and replay use as many blocks; all of them where there are no blocks."""
    real = trace.rounds["num_blocks"].to_numpy()
    if pd.isna(real).any():
        return len(real)
    ours = replayed["kv_tokens"].to_numpy() // trace.header["block_size"]
    return int((real == ours).sum()) if len(real) == len(ours) else 0


def count_same_chunks(trace: EngineTrace, replayed: list[tuple[int, int, int]]) -> int:
    """Chunks of prompts that engine and replay have in common; one less where the replay has more."""
    real = list(trace.chunks[["round", "sequence", "chunk"]].itertuples(index=False, name=None))
    same = sum(a == b for a, b in zip(real, replayed, strict=False))
    return same if len(replayed) == len(real) else min(same, len(real) - 1)


def compare_rows(trace: EngineTrace, replayed: pd.DataFrame) -> Parity:
    """Compare row by row; rows are matched by round and place."""
    real = trace.rows.set_index(["round", "row"])
    ours = replayed.set_index(["round", "row"])
    joined = real[[*COMPARED, "mode"]].join(ours[[*COMPARED, "mode"]].add_suffix("_ours"), how="outer")
    equal = pd.DataFrame({name: joined[name] == joined[f"{name}_ours"] for name in (*COMPARED, "mode")})
    members = equal[["sequence", "mode"]].all(axis=1).groupby(level="round").all()
    rows = equal[list(COMPARED)].all(axis=1)
    first = ""
    if not (rows.all() and members.all()):
        at = (rows & equal["mode"]).idxmin()
        parts = [name for name in equal if not equal.loc[at, name]]
        wrong = [f"{name}: engine {joined.loc[at, name]}, replay {joined.loc[at, f'{name}_ours']}" for name in parts]
        first = f"round {at[0]}, row {at[1]}: {'; '.join(wrong)}"
    scheduler, layout = trace.header["scheduler"], trace.header["layout"]
    rounds, quiet = len(trace.rounds), trace.rounds.index.difference(members.index)  # without rows, in both
    counts = (rounds, int(members.sum()) + len(quiet), len(real), int(rows.sum()), rounds)
    return Parity(str(trace.path), scheduler, layout, *counts, first, rounds)
