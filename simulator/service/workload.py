"""Requests: when they come, how long their prompts are and, unseen by any scheduler, their outputs will be."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import gamma as gamma_function
from scipy.special import gammaincinv, ndtri

from refimpl.core.errors import InputError, require
from refimpl.core.reading import is_file, read_mappings
from simulator.service.common_text import make_common
from simulator.service.streams import REQUEST_BLOCK, Purpose, Streams
from simulator.settings.fields import MAX_TOKENS, Spec
from simulator.settings.kinds import ARRIVALS, LENGTHS
from simulator.settings.parts import DEFAULT_BUDGET, MAX_BUDGET, RECORDED, RequestClass, Study
from simulator.settings.scenario import Scenario
from simulator.settings.tables import read_table
from simulator.settings.traces import ServiceTrace, read_engine_trace, read_service_trace


@dataclass(frozen=True, slots=True)
class Lengths:
    """A block of requests ``[n]``: tokens of prompt, output (hidden; may exceed the budget) and budget; priority."""

    prompt: list[int]
    output: list[int]
    budget: list[int]
    priority: list[int]


class RequestSource:
    """Lengths and priority of request 0, 1, 2, …, drawn in blocks; the same in whatever order they are asked for."""

    def __init__(self, scenario: Scenario, streams: Streams):
        self.scenario, self.streams = scenario, streams
        study = scenario.study
        of_trace = study.kind == "open" and study.arrivals.kind == "trace"
        self.arrivals = _service_trace(study.arrivals) if of_trace else None
        self.budgets = _budgets(scenario, self.arrivals)
        self.common = make_common(scenario.workload.common, scenario.engine)
        self._blocks: dict[int, Lengths] = {}
        self._known: dict[int, int] = {}  # request -> tokens of its conversation before it

    def lengths(self, index: int) -> tuple[int, int, int]:
        """Prompt, output and budget of one request, in tokens; a prompt contains the conversation before it.

        Raises:
            InputError: a prompt that is too short for what it has in common with others.
        """
        prompt, output, budget = self._own(index)
        self.common.check(prompt)
        return self._before(index) + prompt, output, budget

    def _before(self, index: int) -> int:
        """Tokens of the conversation before a request; those of each are added once."""
        later = []
        while index not in self._known and (previous := self.common.previous(index)) is not None:
            later.append((index, previous))
            index = previous
        tokens = self._known.get(index, 0)
        for index, previous in reversed(later):
            prompt, output, budget = self._own(previous)
            self._known[index] = tokens = tokens + prompt + min(output, budget)
        return tokens

    def classes(self, indices: np.ndarray) -> np.ndarray:
        """Place of the class of each of these requests ``[n]``."""
        indices = indices.astype(int)
        return draw_classes(self.scenario.workload.classes, self.streams, 0, indices.max(initial=-1) + 1)[indices]

    def block_tokens(self, index: int, start: int, stop: int) -> Hashable:
        """What the tokens of a request between two positions are: equal for equal tokens."""
        return self.common.block_tokens(index, start, stop)

    def _own(self, index: int) -> tuple[int, int, int]:
        drawn, place = self._block(index)
        return drawn.prompt[place], drawn.output[place], drawn.budget[place]

    def priority(self, index: int) -> int:
        """Of one request: that of its class, or as a run of the engine had it; less is more urgent."""
        drawn, place = self._block(index)
        return drawn.priority[place]

    def _block(self, index: int) -> tuple[Lengths, int]:
        """The block of a request, and its place in it."""
        block, place = divmod(index, REQUEST_BLOCK)
        if block not in self._blocks:
            self._blocks[block] = self._draw(block)
        return self._blocks[block], place

    def _draw(self, block: int) -> Lengths:
        start, stop = block * REQUEST_BLOCK, (block + 1) * REQUEST_BLOCK
        prompt = self._lengths("prompt_tokens", Purpose.PROMPT, start, stop)
        output = self._lengths("output_tokens", Purpose.OUTPUT, start, stop)
        if self.arrivals is not None:
            lengths = self.arrivals.prompt_tokens, self.arrivals.output_tokens
            prompt, output = (_cycle(values, start, stop) for values in lengths)
        budget = _cycle(self.budgets, start, stop)
        return Lengths(prompt.tolist(), output.tolist(), budget.tolist(), self._priorities(start, stop).tolist())

    def _priorities(self, start: int, stop: int) -> np.ndarray:
        """Of requests start … stop-1 ``[stop - start]``."""
        workload = self.scenario.workload
        if workload.output_tokens.kind == "trace":
            header = read_engine_trace(workload.output_tokens["path"]).header
            return _cycle(np.array(header.get("priority_each", [0])), start, stop)
        of_classes = np.array([each.priority for each in workload.classes] or [0])
        return of_classes[draw_classes(workload.classes, self.streams, start, stop)]

    def _lengths(self, name: str, purpose: Purpose, start: int, stop: int) -> np.ndarray:
        """Token counts, of each request by the law of its class ``[stop - start]``."""
        workload = self.scenario.workload
        drawn = draw_lengths(getattr(workload, name), self.streams, purpose, start, stop)
        classes = draw_classes(workload.classes, self.streams, start, stop)
        for place, each in enumerate(workload.classes):
            if own := getattr(each, name):
                drawn = np.where(classes == place, draw_lengths(own, self.streams, purpose, start, stop), drawn)
        return drawn


def draw_classes(classes: Sequence[RequestClass], streams: Streams, start: int, stop: int) -> np.ndarray:
    """Place of the class of requests start … stop-1; zeros without classes ``[stop - start]``."""
    if not classes:
        return np.zeros(stop - start, dtype=int)
    ends = np.cumsum([each.share for each in classes])
    return np.searchsorted(ends[:-1] / ends[-1], streams.per_request(Purpose.CLASS, start, stop), side="right")


def _budgets(scenario: Scenario, arrivals: ServiceTrace | None) -> np.ndarray:
    """Budgets of request 0, 1, …, over and over: the user's, or those of a trace."""
    outputs, given = scenario.workload.output_tokens, scenario.engine.max_new_tokens
    if arrivals is not None and given is None:
        budgets = arrivals.output_tokens
    elif arrivals is None and outputs.kind == "trace":
        budgets = np.array(read_engine_trace(outputs["path"]).header["max_new_tokens_each"])
    else:
        budgets = np.array([given or DEFAULT_BUDGET])
    longest = int(budgets.max())
    require(longest <= MAX_BUDGET, f"the trace has a budget of {longest} tokens; at most {MAX_BUDGET} can be simulated")
    return budgets


def _cycle(values: np.ndarray, start: int, stop: int) -> np.ndarray:
    return values[np.arange(start, stop) % len(values)]


def draw_lengths(spec: Spec, streams: Streams, purpose: Purpose, start: int, stop: int) -> np.ndarray:
    """Token counts of requests start … stop-1 ``[stop - start]``, by inversion of one uniform number per request."""
    values = spec.resolved(LENGTHS)
    if spec.kind == "fixed":
        return np.full(stop - start, values["tokens"])
    if spec.kind == "values":
        return _cycle(np.array(values["tokens"], dtype=int), start, stop)
    if spec.kind == "trace":
        return _cycle(_trace_lengths(values["path"], purpose), start, stop)
    uniform = streams.per_request(purpose, start, stop)
    if spec.kind in ("file", "spec_bench"):
        path = Path(values["path"])
        require(is_file(path), f"{path}: no such file")
        pool = np.sort(_pool(spec.kind, tuple(sorted(values.items())), path.stat().st_mtime_ns))
        return pool[(uniform * len(pool)).astype(int)]
    return np.maximum(1, _quantile(spec.kind, values, uniform)).astype(int)


def _quantile(kind: str, values: dict[str, Any], uniform: np.ndarray) -> np.ndarray:
    if kind == "uniform":
        low, high = values["low_tokens"], values["high_tokens"]
        return low + np.floor(uniform * (high - low + 1))
    if kind == "geometric":
        return np.ceil(np.log1p(-uniform) / np.log1p(-1 / values["mean_tokens"]))
    drawn = np.round(np.exp(np.log(values["median_tokens"]) + values["sigma"] * ndtri(uniform)))
    return np.minimum(drawn, values["max_tokens"] or MAX_TOKENS)


def _trace_lengths(path: str, purpose: Purpose) -> np.ndarray:
    trace = read_engine_trace(path)
    return np.array(trace.header["prompt_lens"] if purpose == Purpose.PROMPT else trace.output_lens)


@lru_cache(maxsize=32)
def _pool(kind: str, values: tuple[tuple[str, Any], ...], stamp: int) -> np.ndarray:
    settings = dict(values)
    path = Path(settings["path"])
    if kind == "spec_bench":
        tokens = np.round(np.array([len(turn) for turn in first_turns(path)]) / settings["characters_per_token"])
        most = f"{path}: a prompt has {tokens.max():.3g} tokens at characters_per_token; at most {MAX_TOKENS}"
        require(bool(tokens.max() <= MAX_TOKENS), most)
        return np.maximum(1, tokens).astype(int)
    frame = read_table(path)
    column = settings["column"]
    require(column in frame, f"{path}: no column {column!r}; it has {', '.join(frame.columns)}")
    require(len(frame) > 0, f"{path}: holds no lengths")
    lengths = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)
    right = bool(np.all((lengths >= 1) & (lengths <= MAX_TOKENS) & (lengths == np.floor(lengths))))
    require(right, f"{path}: {column} must be whole numbers of tokens throughout, from 1 to {MAX_TOKENS}")
    return lengths.astype(int)


def first_turns(path: Path) -> list[str]:
    """The first turn of each prompt in a file of JSON lines with ``turns``, as Spec-Bench has them.

    Raises:
        InputError: a line without turns, or no line at all.
    """
    turns = []
    for number, entry in read_mappings(path):
        texts = entry.get("turns")
        first = texts[0] if isinstance(texts, list) and texts else None
        if not isinstance(first, str):
            raise InputError(f"{path}:{number}: turns must be a list of texts")
        turns.append(first)
    require(bool(turns), f"{path}: holds no prompts")
    return turns


def _service_trace(spec: Spec) -> ServiceTrace:
    values = spec.resolved(ARRIVALS)
    return read_service_trace(values["path"], values["format"])


def _recorded(kind: str, values: dict[str, Any]) -> list[float]:
    """Arrival times of a service's trace, or of a run of the engine."""
    if kind == "replay":
        times = read_engine_trace(values["path"]).arrivals(values["clock"])
    else:
        times = read_service_trace(values["path"], values["format"]).time_s.tolist()
    return [time / values["speedup"] for time in times]


def most_requests(study: Study) -> int | None:
    """Requests that come at most, as given or as recorded arrivals have them; None where neither says."""
    if study.kind == "open" and study.num_requests is None and study.arrivals.kind in RECORDED:
        return len(_recorded(study.arrivals.kind, study.arrivals.resolved(ARRIVALS)))
    return study.num_requests


def arrival_times(spec: Spec, streams: Streams, limit: int | None) -> Iterator[float]:
    """Arrival times in seconds, never decreasing; without end, except for traces and beyond `limit` requests.

    Raises:
        InputError: a trace has fewer requests than `limit`.
    """
    values = spec.resolved(ARRIVALS)
    if spec.kind in RECORDED:
        times = _recorded(spec.kind, values)
        enough = limit is None or limit <= len(times)
        few = f"study.num_requests is {limit}, but {values['path']} holds {len(times)} requests"
        require(enough, f"{few}: set it to that or less, or to null")
        yield from times[:limit]
        return
    blocks = _sinusoidal if spec.kind == "sinusoidal" else _on_off if spec.kind == "on_off" else _renewal
    count = 0
    for block in blocks(spec.kind, values, streams):
        for time in block:
            if limit is not None and count >= limit:
                return
            yield time
            count += 1


def _renewal(kind: str, values: dict[str, Any], streams: Streams) -> Iterator[list[float]]:
    now, block = 0.0, 0
    while True:
        uniform = streams.per_request(Purpose.ARRIVAL, block * REQUEST_BLOCK, (block + 1) * REQUEST_BLOCK)
        times = now + np.cumsum(_gaps(kind, values, uniform))
        now, block = float(times[-1]), block + 1
        yield times.tolist()


def _gaps(kind: str, values: dict[str, Any], uniform: np.ndarray) -> np.ndarray:
    """Times between arrivals by inversion; Gamma and Weibull keep the mean 1 / rate whatever their burstiness."""
    if kind == "fixed":
        return np.full(len(uniform), values["interval_s"])
    mean_s = 1 / values["rate_per_s"]
    if kind == "gamma":
        shape = values["cv"] ** -2
        return gammaincinv(shape, uniform) * mean_s / shape
    if kind == "weibull":
        shape = values["shape"]
        return mean_s / gamma_function(1 + 1 / shape) * (-np.log1p(-uniform)) ** (1 / shape)
    return -mean_s * np.log1p(-uniform)


def _sinusoidal(kind: str, values: dict[str, Any], streams: Streams) -> Iterator[list[float]]:
    """Rate λ(t) = rate · (1 + amplitude · sin(2π t / period)), by inverting its integral at unit-rate arrivals."""
    rate, amplitude, period_s = values["rate_per_s"], values["amplitude"], values["period_s"]
    for units in _renewal("poisson", {"rate_per_s": 1.0}, streams):
        target = np.array(units)
        low = target / rate - amplitude * period_s / np.pi
        high = target / rate + amplitude * period_s / np.pi
        for _ in range(60):
            middle = (low + high) / 2
            integral = rate * (
                middle + amplitude * period_s / (2 * np.pi) * (1 - np.cos(2 * np.pi * middle / period_s))
            )
            low, high = np.where(integral < target, middle, low), np.where(integral < target, high, middle)
        yield np.maximum.accumulate(high).tolist()


def _on_off(kind: str, values: dict[str, Any], streams: Streams) -> Iterator[list[float]]:
    """Poisson arrivals at `rate_per_s` while on, none while off; exponential times, in their steady state."""
    phases = _phases(values, streams)
    start_s, length_s, used_s = 0.0, 0.0, 0.0
    for busy in _renewal("poisson", values, streams):  # arrivals on the clock that only runs while on
        times = []
        for time in busy:
            while time - used_s > length_s:
                used_s += length_s
                start_s, length_s = next(phases)
            times.append(start_s + time - used_s)
        yield times


def _phases(values: dict[str, Any], streams: Streams) -> Iterator[tuple[float, float]]:
    """Start and length of the on phases, in seconds.

    Time 0 lies in one as often as any other time does. What is left of a phase then is as long as a
    whole one.
    """
    on_s, off_s = values["mean_on_s"], values["mean_off_s"]
    first = streams.generator(Purpose.PHASE, 0, 1)  # whatever the phases behind it are
    now = 0.0 if first.random() * (on_s + off_s) < on_s else float(first.exponential(off_s))
    block = 0
    while True:
        uniform = streams.per_request(Purpose.PHASE, block * REQUEST_BLOCK, (block + 1) * REQUEST_BLOCK)
        for on, off in -np.log1p(-uniform.reshape(-1, 2)):
            yield now, on * on_s
            now += on * on_s + off * off_s
        block += 1
