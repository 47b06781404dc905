"""Runs of the engine with a study's settings: their speed, and their traces on disk."""

import gzip
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from refimpl.bench.engines import round_s
from refimpl.bench.forced import iid_lengths
from refimpl.bench.reference import Reference, uninterrupted
from refimpl.calibrate.prompts import Piece
from refimpl.calibrate.studies import StudySettings
from refimpl.core.config import DecodeConfig, forced, make_config
from refimpl.core.interrupts import tell
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord, trace_header, write_trace
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, prepare
from refimpl.results import blocks_of, environment_of

ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run's trace.

    Attributes:
        header: its settings; ``documents``, which one each prompt comes from; and ``reference_s``, the reference pass's
            mean seconds meanwhile.
        records: its rounds.
        attempts: how often it ran until this was kept.
    """

    header: dict[str, Any]
    records: list[RoundRecord]
    attempts: int = 1

    @property
    def interrupted_rounds(self) -> int:
        """Rounds during which the machine did other work."""
        seconds = [round_s(record) for record in self.records]
        return len(seconds) - len(uninterrupted(seconds))

    @property
    def seconds(self) -> float:
        """Seconds of all rounds but those of recording, in units of the reference pass."""
        stages = [record.stage_s for record in self.records]
        return sum(stage_s["round_s"] - stage_s["record_s"] for stage_s in stages) / self.header["reference_s"]


class Runner:
    """Runs studies.

    Args:
        pair: what runs.
        reference: timed in between.
        checks: level of the engine's run-time checks.
        forced_probability: of a draft to be accepted, for pairs that would accept nothing; None leaves it natural.
    """

    def __init__(self, pair: Pair, reference: Reference, checks: str, forced_probability: float | None):
        self.pair, self.reference, self.checks = pair, reference, checks
        self.forced_probability = forced_probability

    def run(self, study: StudySettings, prompts: list[Piece], seed: int) -> Run:
        """Run a study; again when a round was interrupted, and the least interrupted attempt counts."""
        best, attempts = self._run(study, prompts, seed), 1
        while best.interrupted_rounds and attempts < ATTEMPTS:
            tell(f"{study.name}: {best.interrupted_rounds} rounds interrupted, runs again")
            best = min(best, self._run(study, prompts, seed), key=lambda run: run.interrupted_rounds)
            attempts += 1
        return replace(best, attempts=attempts)

    def _run(self, study: StudySettings, prompts: list[Piece], seed: int) -> Run:
        config = self._config(study, seed)
        ids: list[Prompt] = [piece.ids for piece in prompts]
        engine = Engine(self.pair, prepare(self.pair, ids, config, study.max_prompt_tokens), config)
        records, speed = [], [self.reference.time()]
        while not engine.scheduler.done:
            speed += self.reference.time_when_due()
            records.append(engine.run_one_round())
        speed.append(self.reference.time())
        environment = environment_of(self.pair, config) | {"reference_s": statistics.mean(uninterrupted(speed))}
        documents = {"documents": [piece.document for piece in prompts]}
        further = environment | blocks_of(engine) | documents
        return Run(trace_header(config, engine.sequences, further), records)

    def _config(self, study: StudySettings, seed: int) -> DecodeConfig:
        options: dict[str, Any] = {"seed": seed}
        if self.forced_probability is not None:
            lengths = iid_lengths(self.forced_probability, study.num_speculative_tokens)
            options |= {"acceptance": forced(lengths), "stop_token_ids": []}
        return make_config(
            method=study.method, batch_size=study.batch_size, window_size=study.window_size,
            aging_bound=study.aging_bound, num_speculative_tokens=study.num_speculative_tokens,
            max_new_tokens=study.max_new_tokens, token_budget=study.token_budget,
            cuda_graphs=study.recorded, checks=self.checks, **options,
        )  # fmt: skip


def write_run(path: Path, run: Run) -> None:
    """Write a run's trace, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix("")
    marks = {"interrupted_rounds": run.interrupted_rounds, "attempts": run.attempts}
    write_trace(plain, run.header | marks, run.records)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(plain.read_bytes())
    plain.unlink()
