"""Measures what the engine's stages cost, and runs held-out studies in between, for the simulator to be judged by.

The costs are taken from rounds of the engine itself, so that caches, allocations and copies are as in use. A *cell* is
(variant, batch size, k, prompt length): the engine runs a few rounds there, and each stage's seconds go to the points
of that cell. A *pass* visits all cells in random order; held-out runs of other batch sizes, windows, k and prompts
stand between the passes, because machines drift. A fixed reference pass is timed before every round, of cells and of
held-out runs alike: points are given at the reference's mean speed, and each held-out run says at which speed it ran.
Column names and fields are those of `simulator/data/README.md`.
"""

import csv
import gzip
import json
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from refimpl.config import Request, make_config
from refimpl.engine import Engine
from refimpl.errors import InputError
from refimpl.model import Pair
from refimpl.provenance import commit, device_name
from refimpl.requests import Prompt, encode, prepare
from refimpl.trace import RoundRecord, write_trace

BATCH_SIZES, DRAFTS, PROMPT_LENS = (1, 2, 4, 8), (0, 1, 3, 6), (2, 176)
PREFILL_LENS = (2, 24, 64, 176)
ROUNDS, WARM_ROUNDS = 6, 1
MEAN_GROWTH = 8  # tokens that a row has grown by, on average, over the timed rounds
CHECKS = "host"
INTERRUPTION = 10  # times the median of its point
ATTEMPTS = 3
POINT_COLUMNS = (
    "component", "layout", "batch_size", "tokens_per_row", "width_tokens", "repeats",
    "mean_s", "median_s", "p10_s", "p90_s",
)  # fmt: skip
Key = tuple[str, str, int, int, int]  # the first five columns


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of running rounds that isolates what a layout does.

    Attributes:
        method: layout+scheduler.
        rotating: the members change every round (twice as many sequences as rows, all of them always due).
        layout: what the points are filed under.
        moved: component that a round's K/V movement is filed under; empty where nothing moves.
    """

    method: str
    rotating: bool
    layout: str
    moved: str


VARIANTS = (
    Variant("realigned+fifo", False, "realigned", "realign"),
    Variant("realigned+grouped", True, "realigned", "regroup"),
    Variant("masked+fifo", False, "masked", "compact"),
    Variant("masked+grouped", True, "masked", "regroup"),
    Variant("inplace+fifo", False, "inplace", ""),
    Variant("inplace+grouped", True, "inplace_scattered", ""),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the grid. Without a variant only the prefill is timed."""

    variant: Variant | None
    batch_size: int
    k: int
    prompt_len: int

    @property
    def width(self) -> int:
        """Mean width of the timed rounds."""
        return self.prompt_len + MEAN_GROWTH


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Settings of a run that no cost is taken from."""

    name: str
    method: str
    batch_size: int
    num_speculative_tokens: int
    num_prompts: int
    max_new_tokens: int
    max_prompt_tokens: int
    window_size: int | None = None
    aging_bound: float | None = None


HELD_OUT = (
    HeldOut("eqspec-b3-k4", "eqspec", 3, 4, 24, 48, 120),
    HeldOut("eqspec-b6-k5", "eqspec", 6, 5, 24, 40, 60),
    HeldOut("exspec-b3-k5-w9", "exspec", 3, 5, 24, 48, 120, window_size=9),
    HeldOut("exspec-b5-k2-w16", "exspec", 5, 2, 24, 40, 40, window_size=16),
    HeldOut("exspec-b2-k4-w24", "exspec", 2, 4, 24, 32, 80, window_size=24, aging_bound=20),
    HeldOut("realigned-fifo-b6-k4", "realigned+fifo", 6, 4, 30, 40, 100),
    HeldOut("masked-b3-k5", "masked", 3, 5, 24, 48, 100),
    HeldOut("masked-fifo-b5-k4", "masked+fifo", 5, 4, 24, 48, 120),
    HeldOut("rollback-b3-k2", "rollback", 3, 2, 18, 40, 100),
    HeldOut("rollback-b6-k4", "rollback", 6, 4, 24, 32, 60),
    HeldOut("inplace-b3-k5", "inplace", 3, 5, 24, 48, 120),
    HeldOut("inplace-b6-k2", "inplace", 6, 2, 30, 48, 60),
    HeldOut("inplace-grouped-b4-k4-w10", "inplace+grouped", 4, 4, 24, 48, 100, window_size=10),
    HeldOut("speculative-k5", "speculative", 1, 5, 10, 48, 100),
)
FIT = HeldOut("inplace-b8-k6", "inplace", 8, 6, 48, 48, 120)


class Reference:
    """A fixed pass of the target, whose seconds tell how fast the machine is at the moment.

    Attributes:
        seconds: every timing so far.
    """

    def __init__(self, pair: Pair, tokens: list[int]):
        config = make_config(method="inplace+fifo", batch_size=2, num_speculative_tokens=3, checks=CHECKS)
        engine = Engine(pair, prepare(pair, [tokens, tokens[::-1]], config).sequences, config)
        engine.run_one_round()
        target = engine.context.target
        target.layout.begin(target.rows(engine.sequences), span=4)
        self.block = target.layout.block(torch.zeros(2, 4, dtype=torch.long, device=pair.device), -1)
        self.model, self.seconds = target.model, list[float]()

    @property
    def mean_s(self) -> float:
        """Mean seconds of the pass, interruptions left out."""
        return statistics.mean(uninterrupted(self.seconds))

    @torch.inference_mode()
    def time(self) -> float:
        """Run the pass once; return its seconds."""
        begun = time.perf_counter()
        self.model.forward(self.block, 4)[0, 0, 0].item()
        self.seconds.append(time.perf_counter() - begun)
        return self.seconds[-1]


class Calibrator:
    """Collects the seconds of every point.

    Args:
        pair: what is timed.
        texts: prompts; cells use the first half, held-out runs the second.
        seed: of the order of the cells.
    """

    def __init__(self, pair: Pair, texts: list[Prompt], seed: int):
        self.pair, self.random = pair, random.Random(seed)
        half = len(texts) // 2
        self.fit_texts, self.held_out_texts = texts[:half], texts[half:]
        plain = [text.prompt if isinstance(text, Request) else text for text in self.fit_texts]
        self.stream = [token for text in plain for token in encode(pair, text, 0)]
        self.reference = Reference(pair, self.stream[:64])
        self.seconds: dict[Key, list[float]] = defaultdict(list)  # over the reference's at the time
        self.pass_s: list[dict[str, float]] = []
        self.kv_bytes: dict[str, int] = {}
        self.num_layers: dict[str, int] = {}

    def run_pass(self, cells: list[Cell]) -> None:
        """Visit every cell once, in random order."""
        cells = self.random.sample(cells, len(cells))
        totals: dict[str, float] = defaultdict(float)
        for cell in cells:
            for key, seconds in self._visit(cell):
                self.seconds[key].append(seconds)
                totals[key[0]] += seconds
        self.pass_s.append(dict(totals))

    def _visit(self, cell: Cell) -> Iterator[tuple[Key, float]]:
        engine, speed, points = self._engine(cell, cell.variant or VARIANTS[0]), [self.reference.time()], []
        for index in range(ROUNDS if cell.variant else 1):
            engine.timer.take()
            record = engine.run_one_round()
            speed.append(self.reference.time())
            if cell.variant is None:
                key = ("prefill", "any", cell.batch_size, cell.prompt_len - 1, 0)
                points.append((key, record.stage_s["prefill_s"]))
            elif index >= WARM_ROUNDS:
                points += round_points(cell, cell.variant, record)
        reference_s = statistics.mean(uninterrupted(speed))
        for key, seconds in points:
            yield key, seconds / reference_s

    def _engine(self, cell: Cell, variant: Variant) -> Engine:
        rotating = variant.rotating
        count = cell.batch_size * (2 if rotating else 1)
        options: dict[str, Any] = {"window_size": count, "aging_bound": 0} if rotating else {}
        config = make_config(
            method=variant.method, batch_size=cell.batch_size, num_speculative_tokens=cell.k,
            max_new_tokens=(ROUNDS + 2) * (cell.k + 1), stop_token_ids=[], checks=CHECKS,
            compaction_threshold=0.02, **options,
        )  # fmt: skip
        prompts = [self._prompt(cell.prompt_len) for _ in range(count)]
        engine = Engine(self.pair, prepare(self.pair, prompts, config).sequences, config)
        for role, layout in zip(("target", "draft"), engine.layouts, strict=True):
            self.kv_bytes[role] = layout.shape.bytes_per_token
            self.num_layers[role] = layout.shape.num_layers
        return engine

    def _prompt(self, length: int) -> list[int]:
        start = self.random.randrange(len(self.stream) - length)
        return self.stream[start : start + length]

    def lines(self) -> list[dict[str, Any]]:
        """One line per point, as points.csv holds it."""
        reference_s = self.reference.mean_s
        kept = {key: uninterrupted(values) for key, values in sorted(self.seconds.items())}
        return [_line(key, [x * reference_s for x in values]) for key, values in kept.items()]

    @property
    def num_interrupted(self) -> int:
        """Executions that are left out."""
        return sum(len(values) - len(uninterrupted(values)) for values in self.seconds.values())

    def drift(self) -> tuple[float, dict[str, float]]:
        """Relative standard deviation of a pass at reference speed, and standard error of each component's share."""
        totals = [sum(components.values()) for components in self.pass_s]
        mean = statistics.mean(totals)
        cv = {}
        for name in self.pass_s[0]:
            shares = [components.get(name, 0.0) / total for components, total in zip(self.pass_s, totals, strict=True)]
            cv[name] = statistics.stdev(shares) / statistics.mean(shares) / len(shares) ** 0.5
        return statistics.stdev(totals) / mean, cv


def uninterrupted(values: list[float]) -> list[float]:
    """Leave out executions during which the process was stopped or the machine was elsewhere."""
    limit = INTERRUPTION * statistics.median(values)
    return [value for value in values if value <= limit]


def round_points(cell: Cell, variant: Variant, record: RoundRecord) -> Iterator[tuple[Key, float]]:
    """File the stages of a round under their points."""
    layout, rows, stage_s = variant.layout, cell.batch_size, record.stage_s
    if cell.k:
        yield ("draft", layout, rows, cell.k, cell.width), stage_s["draft_s"]
    yield ("verify", layout, rows, cell.k + 1, cell.width), stage_s["verify_s"]
    moved = record.num_moves > 0 and variant.moved
    if moved and cell.k:
        yield (variant.moved, layout, rows, 0, cell.width), stage_s["realign_s"]
    host_s = stage_s["host_s"] + (0.0 if record.num_moves else stage_s["realign_s"])
    if moved or not record.num_moves:
        yield ("host", "any", rows, cell.k + 1, 0), host_s


def _line(key: Key, values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    deciles = statistics.quantiles(ordered, n=10, method="inclusive") if len(ordered) > 1 else ordered * 9
    numbers = (statistics.mean(ordered), statistics.median(ordered), deciles[0], deciles[8])
    return dict(zip(POINT_COLUMNS, (*key, len(ordered), *(f"{x:.9f}" for x in numbers)), strict=True))


def all_cells() -> list[Cell]:
    """Every place of the grid."""
    rounds = [Cell(*values) for values in product(VARIANTS, BATCH_SIZES, DRAFTS, PROMPT_LENS)]
    return rounds + [Cell(None, rows, 1, length) for rows, length in product(BATCH_SIZES, PREFILL_LENS)]


def run_study(
    pair: Pair, texts: list[Prompt], study: HeldOut, seed: int, reference: Reference
) -> tuple[dict[str, Any], list[RoundRecord]]:
    """Run the engine on a study's settings, on prompts drawn with a seed; the trace's header and its rounds."""
    chosen = random.Random(seed).sample(texts, min(study.num_prompts, len(texts)))
    config = make_config(
        method=study.method, batch_size=study.batch_size, window_size=study.window_size,
        aging_bound=study.aging_bound, num_speculative_tokens=study.num_speculative_tokens,
        max_new_tokens=study.max_new_tokens, checks=CHECKS,
    )  # fmt: skip
    engine = Engine(pair, prepare(pair, chosen, config, study.max_prompt_tokens).sequences, config)
    records, speed = [], []
    while not engine.scheduler.done:
        speed.append(reference.time())
        engine.timer.take()
        records.append(engine.run_one_round())
    method = config.resolved_method
    header = {
        "method": config.method, "layout": method.layout, "scheduler": method.scheduler,
        "batch_size": config.resolved_batch_size, "window_size": config.resolved_window_size,
        "aging_bound": config.aging_bound, "num_speculative_tokens": config.num_speculative_tokens,
        "max_new_tokens": config.max_new_tokens, "num_sequences": len(engine.sequences),
        "prompt_lens": [s.prompt_len for s in engine.sequences], "device": str(pair.device), "pair": pair.name,
        "dtype": str(pair.dtype).removeprefix("torch."), "checks": CHECKS, "seed": seed,
        "compaction_threshold": config.compaction_threshold, "reference_s": statistics.mean(uninterrupted(speed)),
    }  # fmt: skip
    return header, records


def run_whole(
    pair: Pair, texts: list[Prompt], study: HeldOut, seed: int, reference: Reference
) -> tuple[dict[str, Any], list[RoundRecord]]:
    """Run a study until no round of it was interrupted.

    Raises:
        InputError: the machine interrupts every attempt.
    """
    for _ in range(ATTEMPTS):
        header, records = run_study(pair, texts, study, seed, reference)
        seconds = [r.stage_s["round_s"] - r.stage_s["prefill_s"] for r in records]
        if len(uninterrupted(seconds)) == len(seconds):
            return header, records
    raise InputError(f"held-out run {study.name} was interrupted {ATTEMPTS} times: calibrate on a quieter machine")


def write_study(path: Path, header: dict[str, Any], records: list[RoundRecord]) -> None:
    """Write a run's trace, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix("")
    write_trace(plain, header, records)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(plain.read_bytes())
    plain.unlink()


def calibrate(
    pair: Pair,
    texts: list[Prompt],
    out: Path,
    *,
    pair_name: str,
    passes: int = 4,
    threads: int | None = None,
    seed: int = 0,
    command: str = "",
    repeats: int = 2,
) -> None:
    """Measure, and write ``calibration/<device>/<pair>`` and ``validation/<device>/<pair>`` under `out`.

    Args:
        pair: what is timed.
        texts: prompts, at least 32.
        out: the simulator's data folder.
        pair_name: name of the folder.
        passes: passes over all cells, at least two, so that drift can be told.
        threads: of the tensor library; None leaves it.
        seed: of every random choice.
        command: what the user typed, for the record.
        repeats: how often each held-out study runs, each time on other prompts.
    """
    if passes < 2 or len(texts) < 32:
        raise InputError(f"calibrate needs at least 2 passes and 32 prompts, not {passes} and {len(texts)}")
    if threads:
        torch.set_num_threads(threads)
    calibrator, cells, device = Calibrator(pair, texts, seed), all_cells(), str(pair.device)
    studies = [(replace(s, name=f"{s.name}-{r}"), seed + r) for r in range(repeats) for s in HELD_OUT]
    calibrator.random.shuffle(studies)
    runs = out / "validation" / device / pair_name
    _warm_up(calibrator, cells)
    reference = calibrator.reference
    write_study(runs / "fit" / f"{FIT.name}.ndjson.gz", *run_study(pair, calibrator.fit_texts, FIT, seed, reference))
    for index in range(passes):
        calibrator.run_pass(cells)
        print(f"pass {index + 1}/{passes}: reference {1e3 * reference.mean_s:.2f} ms so far", file=sys.stderr)
        for order in range(index, len(studies), passes):
            study, study_seed = studies[order]
            header, records = run_whole(pair, calibrator.held_out_texts, study, study_seed, reference)
            write_study(runs / f"{study.name}.ndjson.gz", header | {"order": index}, records)
    meta = _meta(calibrator, pair_name, passes, seed, command)
    _write(out / "calibration" / device / pair_name, calibrator.lines(), meta)
    _write_json(runs / "meta.json", meta | {"schema": "raggedspec.validation/1"})


def _warm_up(calibrator: Calibrator, cells: list[Cell]) -> None:
    for cell in cells[:: max(1, len(cells) // 12)]:
        for _ in calibrator._visit(cell):
            pass
    calibrator.reference.seconds.clear()


def _write(folder: Path, lines: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "points.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, POINT_COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    _write_json(folder / "meta.json", meta)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _meta(calibrator: Calibrator, pair_name: str, passes: int, seed: int, command: str) -> dict[str, Any]:
    drift_cv, component_cv = calibrator.drift()
    speeds = uninterrupted(calibrator.reference.seconds)
    pair = calibrator.pair
    return {
        "schema": "raggedspec.calibration/1",
        "origin": "measured",
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command,
        "device": device_name(pair.device),
        "driver": torch.version.cuda or platform.platform(terse=True),
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("torch", "transformers", "numpy")},
        "pair": pair_name,
        "dtype": str(pair.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "seeds": [seed],
        "check_level": CHECKS,
        "repeats": passes,
        "drift_cv": drift_cv,
        "component_cv": component_cv,
        "kv_bytes_per_token": calibrator.kv_bytes,
        "num_layers": calibrator.num_layers,
        "reference_s": calibrator.reference.mean_s,
        "reference_cv": statistics.stdev(speeds) / statistics.mean(speeds),
        "interrupted": calibrator.num_interrupted,
    }
