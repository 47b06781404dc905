"""The interleaved benchmark: repeats outermost, then batch sizes, then engines, in every other repeat backwards."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import transformers

from refimpl.bench.engines import WARM_TOKENS, Bench, Sample, busy_s_per_round, hf_generate, run_method
from refimpl.bench.probe import measure_rates
from refimpl.bench.rows import BenchRow, make_row
from refimpl.bench.settings import EAGER, PLAIN_DECODING, BenchSettings, takes_graphs
from refimpl.bench.work import ModelWork, Rates
from refimpl.core.config import resolve_method
from refimpl.core.errors import InputError
from refimpl.judging.method_runs import expand_methods
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.placement import PLACEMENTS
from refimpl.requests import prepare

PLAIN, ASSISTED = "hf_generate", "hf_assisted"
BATCHED = "autoregressive_batched"
Run = Callable[[list[list[int]]], Sample]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Rows so far.

    Attributes:
        rows: of the batch sizes that have run at least once.
        rates: medians of what the device did before each repeat.
        repeats: interleaved runs that every row has at least.
        complete: whether all batch sizes and repeats have run, or time was up after the first repeat.
    """

    rows: list[BenchRow]
    rates: Rates
    repeats: int
    complete: bool


def run_bench(
    pair: Pair,
    prompts: list[list[int]],
    settings: BenchSettings,
    progress: Callable[[str, int, int], None] | None = None,
    save: Callable[[BenchReport], object] | None = None,
) -> BenchReport:
    """Measure every engine at every batch size, once all of them are known to take the settings and prompts.

    Args:
        pair: two transformers models.
        prompts: token ids; `settings` says which of them are decoded at which batch size.
        settings: shared by all engines.
        progress: called with (batch size, finished, all).
        save: given the report so far whenever every engine of a batch size has run.

    Raises:
        InputError: the pair's models are not transformers models, a setting is impossible, or a prompt does not fit.
    """
    bench = make_bench(pair, settings)
    for size in settings.batch_sizes:
        for method in expand_methods(list(settings.methods)):
            for _, changes in settings.variants:
                prepare(pair, settings.prompts_at(size, prompts), settings.config(method, size, **changes))
    transformers.utils.logging.set_verbosity_error()
    return Interleaved(bench, prompts, progress, save).run()


def make_bench(pair: Pair, settings: BenchSettings) -> Bench:
    """Prepare a pair for measurement.

    Raises:
        InputError: the pair's models are not transformers models.
    """
    if not isinstance(pair.target, HuggingFaceLM) or not isinstance(pair.draft, HuggingFaceLM):
        raise InputError("the benchmark compares with transformers' own generation: it needs two transformers models")
    works = ModelWork.of(pair.target), ModelWork.of(pair.draft)
    return Bench(pair, pair.target, pair.draft, settings, works)


class Interleaved:
    """State of a benchmark in progress; see `run_bench` for the arguments."""

    def __init__(
        self,
        bench: Bench,
        prompts: list[list[int]],
        progress: Callable[[str, int, int], None] | None,
        save: Callable[[BenchReport], object] | None,
    ):
        self.bench, self.progress, self.save = bench, progress, save
        self.settings = bench.settings
        self.prompts = {size: self.settings.prompts_at(size, prompts) for size in self.settings.batch_sizes}
        self.runs = {size: self._runs(size) for size in self.settings.batch_sizes}
        self.samples: dict[tuple[int, str], list[Sample]] = defaultdict(list)
        self.busy_s: dict[tuple[int, str], float | None] = {}
        self.rates: list[Rates] = []
        self.begun = time.perf_counter()

    def run(self) -> BenchReport:
        """Repeat until done or out of time; profile when nothing more is timed, since it may slow down what follows."""
        self._repeat()
        if self.bench.device.type == "cuda":
            if self.save:
                self.save(self.report(complete=True))
            self._profile()
        return self.report(complete=True)

    def _repeat(self) -> None:
        for repeat in range(self.settings.repeats):
            self.rates.append(measure_rates(self.bench.device, self.bench.pair.dtype))
            for size in self.settings.batch_sizes:
                if repeat and time.perf_counter() - self.begun > 60 * self.settings.max_minutes:
                    return
                if repeat == 0:
                    self._warm_up(size)
                self._visit(size, repeat)
                if self.save:
                    self.save(self.report(complete=False))

    def report(self, *, complete: bool) -> BenchReport:
        """Rows of what has run."""
        rates = Rates(
            statistics.median(r.bytes_per_s for r in self.rates), statistics.median(r.flops_per_s for r in self.rates)
        )
        rows = []
        for (size, name), samples in self.samples.items():
            plain, first = self.samples[size, PLAIN], self.samples[size, self._first_method(size)]
            undrafted = self.samples[size, BATCHED] if self._keeps(size, name) else []
            rows.append(make_row(name, size, samples, plain, first, rates, self.busy_s.get((size, name)), undrafted))
        return BenchReport(rows, rates, min(map(len, self.samples.values())), complete)

    def _visit(self, size: int, repeat: int) -> None:
        """Run every engine once; backwards in every other repeat, so that a device that slows down favours none."""
        runs = list(self.runs[size].items())
        for done, (name, run) in enumerate(reversed(runs) if repeat % 2 else runs, start=1):
            self.samples[size, name].append(run(self.prompts[size]))
            if self.progress:
                total = len(self.runs[size]) * self.settings.repeats
                self.progress(f"batch {size}", repeat * len(self.runs[size]) + done, total)

    def _warm_up(self, size: int) -> None:
        """Run transformers' engines for a few tokens of one batch; ours warm up by themselves."""
        few = replace(self.settings, max_new_tokens=min(WARM_TOKENS, self.settings.max_new_tokens))
        for run in self._theirs(replace(self.bench, settings=few), size).values():
            run(self.prompts[size][:size])

    def _profile(self) -> None:
        """See how busy each of our engines keeps a CUDA device."""
        for size in self.settings.batch_sizes:
            for name, (method, changes) in self._ours(size).items():
                self.busy_s[size, name] = busy_s_per_round(self.bench, self.prompts[size], method, size, **changes)

    def _runs(self, size: int) -> dict[str, Run]:
        ours = self._ours(size).items()
        return self._theirs(self.bench, size) | {
            name: partial(run_method, self.bench, method=method, batch_size=size, **changes)
            for name, (method, changes) in ours
        }

    def _theirs(self, bench: Bench, size: int) -> dict[str, Run]:
        """Engines of transformers."""
        runs: dict[str, Run] = {PLAIN: lambda prompts: hf_generate(bench, prompts, size)}
        if size == 1 and self.settings.assisted:
            runs[ASSISTED] = lambda prompts: hf_generate(bench, prompts, 1, assisted=True)
        return runs

    def _first_method(self, size: int) -> str:
        """Row of the first of the settings' methods; that of plain decoding where no method runs."""
        plain, *methods = self._ours(size)
        return methods[0] if methods else plain

    def _keeps(self, size: int, name: str) -> bool:
        """Whether a row is of our engine, in a layout whose rows keep what they accept."""
        method, _ = self._ours(size).get(name, ("", {}))
        layout = resolve_method(method).layout if method else None
        return layout is not None and not PLACEMENTS[layout].commits_minimum

    def _ours(self, size: int) -> dict[str, tuple[str, dict[str, Any]]]:
        """Rows that our engine runs: name -> method, and what differs from the settings."""
        graphs = self.settings.cuda_graphs  # recorded rounds have the pair's draft
        plain = PLAIN_DECODING | ({"drafter": "model"} if graphs else {})
        ours: dict[str, tuple[str, dict[str, Any]]] = {BATCHED: ("inplace", plain)}
        for method in expand_methods(list(self.settings.methods)):
            if method != "speculative" or size == 1:
                ours |= self._rows_of(method)
        return ours

    def _rows_of(self, method: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """Its variants, recorded where that is possible; then also not recorded, if the settings ask for that."""
        twice = self.settings.cuda_graphs and self.settings.eager and takes_graphs(method)
        runs: dict[str, dict[str, Any]] = {method: {}} | ({method + EAGER: {"cuda_graphs": False}} if twice else {})
        return {
            f"{name} {label}".strip(): (method, own | changes)
            for label, changes in self.settings.variants
            for name, own in runs.items()
        }
