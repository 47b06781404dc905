"""One visit: the engine runs a few rounds at a place of the grid, and each stage's seconds go to a point."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from refimpl.bench.reference import Reference
from refimpl.calibrate import grid
from refimpl.calibrate.grid import IN_PLACE, Cell, Variant
from refimpl.calibrate.passes import PassBench, require_packed
from refimpl.core.config import forced, make_config, resolve_method
from refimpl.core.errors import require
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import require_room, usable_bytes
from refimpl.decoding.timing import StageTimer
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts.working import WorkingLayout
from refimpl.models.adapter import Pair
from refimpl.placement import PLACEMENTS, PoolSize
from refimpl.requests import prepare
from refimpl.scheduling import GroupedScheduler

TIMED_ROUNDS, TIMED_PASSES = 5, 5
COMPACTED_SHARE, COMPACTED_HOLES = 0.02, 6  # at which a masked batch compacts: of its columns, or of a long row
SLACK_TOKENS = 64  # columns in addition to a visit's own, as many as the layouts keep free


@dataclass(frozen=True, slots=True)
class Place:
    """What a point measures: the first columns of the table, except that the width is the prompt's.

    The growth during the timed rounds is added once it is known for all visits.
    """

    component: str
    layout: str
    batch_size: int
    tokens_per_row: int
    prompt_len: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one execution at a place, when the longest row had grown by so many tokens."""

    place: Place
    seconds: float
    growth_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A round, or only a prefill.

    Attributes:
        kind: variant, batch size, prompt length and k: rounds of a kind should take equally long.
        seconds: all of it.
        forward_s: its forward passes.
        timings: its stages.
    """

    kind: tuple[str, int, int, int]
    seconds: float
    forward_s: float
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """Results of one visit; `begun_s` and `ended_s` are on the clock of `time.perf_counter`."""

    pass_index: int
    begun_s: float
    ended_s: float
    rounds: tuple[TimedRound, ...]


class Visitor:
    """Visits cells.

    Args:
        pair: what is timed.
        stream: token ids that prompts are cut from.
        reference: timed before, within and after each visit.
        rng: cuts the prompts.
        checks: level of the engine's run-time checks.
        forced_lengths: probabilities of 0, 1, … accepted drafts, for pairs that would accept nothing.
    """

    def __init__(
        self,
        pair: Pair,
        stream: list[int],
        reference: Reference,
        rng: random.Random,
        checks: str,
        forced_lengths: tuple[float, ...],
    ):
        self.pair, self.stream, self.reference, self.rng, self.checks = pair, stream, reference, rng, checks
        self.forced_lengths = forced_lengths
        self.warm_rounds = 2 if pair.device.type == "cuda" else 1

    def require_fit(self, cell: Cell) -> None:
        """Raise InputError unless the models can run the cell and its rows fit their context, its K/V the device."""
        if cell.variant and cell.variant.passes:
            require_packed(self.pair)
        longest = cell.prompt_len + self._budget(cell) + SLACK_TOKENS
        context = min(model.max_positions for model in self.pair.models())
        require(longest <= context, f"rows of {longest} tokens do not fit the context of {context}")
        if self.pair.device.type != "cuda":
            return
        per_token = sum(model.kv_shape.bytes_per_token for model in self.pair.models())
        placement = PLACEMENTS[resolve_method((cell.variant or IN_PLACE).method).layout or ""]
        rows = cell.num_sequences
        size = PoolSize.of_run([longest] * rows, window_size=rows, batch_size=cell.batch_size, span=0)
        require_room(placement.num_slots(size), per_token, usable_bytes(None, self.pair.device))

    def visit(self, cell: Cell, pass_index: int) -> Visit:
        """Run the cell's rounds, each k in its turn; the order of k rotates from pass to pass.

        Raises:
            InputError: the cell does not fit the device or the context.
        """
        self.require_fit(cell)
        begun_s = time.perf_counter()
        self.reference.time()
        rounds = self._rounds_of(cell, pass_index)
        self.reference.time()
        return Visit(pass_index, begun_s, time.perf_counter(), tuple(rounds))

    def _rounds_of(self, cell: Cell, pass_index: int) -> list[TimedRound]:
        if cell.variant is None:
            return [self._time_prefill(cell)]
        visit = self._visit_passes if cell.variant.passes else self._visit_rounds
        return visit(cell, cell.variant, pass_index)

    def _visit_rounds(self, cell: Cell, variant: Variant, pass_index: int) -> list[TimedRound]:
        turn = pass_index % len(cell.drafts)
        engine, rounds = None, list[TimedRound]()
        with timed_write_backs(self.pair.device) as write_backs:
            for k in cell.drafts[turn:] + cell.drafts[:turn]:
                if engine is None or variant.recorded:  # what is recorded drafts its own k
                    engine = self._engine(cell, variant, k if variant.recorded else max(cell.drafts))
                for sequence in engine.sequences:
                    sequence.num_speculative_tokens = k
                timed = [
                    self._time_round(engine, write_backs, cell, variant, k)
                    for _ in range(self.warm_rounds + TIMED_ROUNDS)
                ]
                rounds += timed[self.warm_rounds :]
                self.reference.time_when_due()
        return rounds

    def _time_round(self, engine: Engine, write_backs: StageTimer, cell: Cell, variant: Variant, k: int) -> TimedRound:
        grown = max(row.seq_len for row in engine.sequences) - cell.prompt_len
        write_backs.take()
        record = engine.run_one_round()
        found = round_timings(cell, variant, k, record, write_backs.take()["realign_s"])
        timings = tuple(replace(timing, growth_tokens=grown) for timing in found)
        stage_s = record.stage_s
        kind = (f"{variant.method}, {variant.layout}", cell.batch_size, cell.prompt_len, k)
        return TimedRound(
            kind, stage_s["round_s"] - stage_s["record_s"], stage_s["draft_s"] + stage_s["verify_s"], timings
        )

    def _visit_passes(self, cell: Cell, variant: Variant, pass_index: int) -> list[TimedRound]:
        """Passes with every number of tokens in its turn; nothing is committed in between."""
        turn = pass_index % len(cell.drafts)
        make, run = (
            (self._mixed_passes, _run_mixed) if variant.passes == "mixed" else (self._packed_passes, _run_packed)
        )
        passes, rounds = make(cell, variant), list[TimedRound]()
        for tokens in cell.drafts[turn:] + cell.drafts[:turn]:
            at = variant.layout, cell.batch_size, tokens, cell.prompt_len
            kind = (f"{variant.method}, {variant.passes}", cell.batch_size, cell.prompt_len, tokens)
            for number in range(self.warm_rounds + TIMED_PASSES):
                found = run(passes, cell, tokens)
                if number >= self.warm_rounds:
                    timings = tuple(Timing(Place(component, *at), seconds) for component, seconds in found.items())
                    rounds.append(TimedRound(kind, sum(found.values()), sum(found.values()), timings))
            self.reference.time_when_due()
        return rounds

    def _mixed_passes(self, cell: Cell, variant: Variant) -> PassBench:
        rows = [self._prompt(grid.MIXED_ROW_TOKENS) for _ in range(cell.batch_size)]
        prompt = self._prompt(cell.prompt_len + max(cell.drafts) + 1)
        return PassBench(
            self.pair, variant.method, rows, prompt, cell.prompt_len,
            num_speculative_tokens=grid.MIXED_DRAFTS, checks=self.checks,
        )  # fmt: skip

    def _packed_passes(self, cell: Cell, variant: Variant) -> PassBench:
        rows = [self._prompt(cell.prompt_len) for _ in range(cell.batch_size)]
        return PassBench(
            self.pair, variant.method, rows, self._prompt(2), 0,
            num_speculative_tokens=max(cell.drafts), checks=self.checks,
        )  # fmt: skip

    def _time_prefill(self, cell: Cell) -> TimedRound:
        engine = self._engine(cell, IN_PLACE, 1)  # prefill writes straight into the pool, with any layout
        seconds = engine.run_one_round().stage_s["prefill_s"]
        place = Place("prefill", "any", cell.batch_size, cell.prompt_len - 1, -1)
        return TimedRound(("prefill", cell.batch_size, cell.prompt_len, 0), seconds, seconds, (Timing(place, seconds),))

    def _budget(self, cell: Cell) -> int:
        """Tokens beyond those that are cached before anything is timed."""
        if cell.variant and cell.variant.passes:
            return max(cell.drafts) + 1
        return sum((self.warm_rounds + TIMED_ROUNDS) * (k + 1) for k in cell.drafts) + max(cell.drafts) + 2

    def _engine(self, cell: Cell, variant: Variant, k: int) -> Engine:
        count = cell.batch_size * (2 if variant.rotating else 1)
        options: dict[str, Any] = {"window_size": count, "aging_bound": 0} if variant.rotating else {}
        if self.forced_lengths:
            options["acceptance"] = forced(self.forced_lengths)
        config = make_config(
            method=variant.method, batch_size=cell.batch_size, num_speculative_tokens=k,
            cuda_graphs=variant.recorded, max_new_tokens=self._budget(cell), stop_token_ids=[], checks=self.checks,
            compaction_threshold=min(COMPACTED_SHARE, COMPACTED_HOLES / cell.prompt_len), **options,
        )  # fmt: skip
        prompts = [self._prompt(cell.prompt_len) for _ in range(count)]
        engine = Engine(self.pair, prepare(self.pair, prompts, config), config)
        if variant.rotating:
            _take_turns(engine)
        return engine

    def _prompt(self, length: int) -> list[int]:
        start = self.rng.randrange(len(self.stream) - length)
        return self.stream[start : start + length]


@torch.inference_mode()
def _take_turns(engine: Engine) -> None:
    """Let all rows age from now on, those that have not begun included."""
    assert isinstance(engine.scheduler, GroupedScheduler)
    engine.admit()
    engine.scheduler.age(engine.scheduler.pool.window.values())


def _run_mixed(passes: PassBench, cell: Cell, tokens: int) -> dict[str, float]:
    """Seconds of the draft's pass over a chunk, and of the verify pass with the chunk beside the rows."""
    counts = [grid.MIXED_DRAFTS + 1] * cell.batch_size
    chunk_s, verify_s = passes.stages(partial(passes.of_round, counts, tokens))
    return {"draft_chunk": chunk_s, "mixed": verify_s}


def _run_packed(passes: PassBench, cell: Cell, tokens: int) -> dict[str, float]:
    """Seconds of an even pass, and of a packed one.

    In the packed one every other row feeds a token less than the mean, and the rest one more.
    """
    even, uneven = [tokens] * cell.batch_size, [tokens - 1, tokens + 1] * (cell.batch_size // 2)
    _, even_s = passes.stages(partial(passes.rectangle, even))
    _, packed_s = passes.stages(partial(passes.packed, uneven))
    return {"even": even_s, "packed": packed_s}


@contextmanager
def timed_write_backs(device: torch.device) -> Iterator[StageTimer]:
    """Time how long layouts write the old members' K/V back; the seconds come as ``realign_s``."""
    timer, flush = StageTimer(device), WorkingLayout.flush

    def timed(layout: WorkingLayout) -> None:
        with timer.stage("realign"):
            flush(layout)

    with patch.object(WorkingLayout, "flush", timed):
        yield timer


def round_timings(cell: Cell, variant: Variant, k: int, record: RoundRecord, split_s: float) -> Iterator[Timing]:
    """Assign the stages of a round to their places."""
    layout, rows, stage_s, at = variant.layout, cell.batch_size, record.stage_s, cell.prompt_len
    if k and not variant.only_moves:
        yield Timing(Place("draft", layout, rows, k, at), stage_s["draft_s"])
    if not variant.only_moves:
        yield Timing(Place("verify", layout, rows, k + 1, at), stage_s["verify_s"])
    alone = rows == 1 and variant.moved == "realign"  # a single row is sometimes gathered again, never shifted
    if record.num_moves and variant.moved and k and not alone:
        yield Timing(Place(variant.moved, layout, rows, 0, at), stage_s["realign_s"] - split_s)
    if split_s and k:
        yield Timing(Place("split", layout, rows, 0, -1), split_s)
    if not record.num_moves:
        yield Timing(
            Place("host", layout if variant.recorded else "any", rows, k + 1, -1),
            stage_s["host_s"] + stage_s["realign_s"],
        )
    elif variant.moved:
        yield Timing(Place("host", "any", rows, k + 1, -1), stage_s["host_s"])
