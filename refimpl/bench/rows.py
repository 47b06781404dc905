"""From the runs of an engine to its row of the table."""

import statistics
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from refimpl.bench.engines import STAGES, Sample
from refimpl.bench.forced import iid_of_length
from refimpl.bench.work import Rates, total


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Medians over repeats. Engines without rounds (transformers' own) have 0 in the columns of a round.

    Attributes:
        engine: hf_generate, hf_assisted, autoregressive_batched, or a method, with its drafter,
            number of drafts or acceptance where several run; with the suffix _eager without the recorded rounds (CUDA
            graphs) that the other row of the method has.
        tokens_per_s, tokens_per_s_min, tokens_per_s_max: over the whole run, prefill included; `record_s` and the
            allocation of our K/V pools left out.
        ratio_to_hf_generate: median over repeats of the ratio within a repeat.
        ratio_to_first_method: the same to the first of our methods, in its first variant.
        num_speculative_tokens: drafts of a row and round, at most; 0 for engines without rounds.
        mean_acceptance_length, draft_acceptance_rate: of all repeats; None without rounds, or without drafts.
        acceptance_probability: of a draft behind accepted ones, the same for all, that gives this length.
        break_even_acceptance: the least at which rounds with drafts are as fast as those of autoregressive_batched,
            where rows keep what they accept (see `forced.iid_of_length`): k draft steps, the verify pass and what is
            around them, over a plain step. None without drafts, and where no acceptance is enough.
        rounds, rows_per_round: of a run; rows that were not finished yet.
        ms_per_round: wall-clock of a round, prefill left out: the sum of draft, verify, realign and host, or less
            where drafting runs at the same time as a verify pass (overlapped execution on CUDA).
        ms_draft, ms_verify, ms_realign, ms_host: host is what a round takes beyond the other three.
        ms_idle: of a round, in which a CUDA device ran nothing, inside the stages or between them; None on a CPU.
        share_draft, share_verify, share_realign, share_host, share_idle: of `ms_per_round`.
        share_outside_forward: on a CPU, share of a round not spent in either model's forward pass; on CUDA, where
            graphs cannot be looked into, and in overlapped rounds, which draft for the next one, the share of realign
            and host.
        bytes_per_round, flops_per_round: that the round's forward passes cannot avoid (see `refimpl.bench.work`); per
            run for engines without rounds.
        floor_ms_per_round: the least time for them at the device's rates; per run for engines without rounds.
        fraction_of_floor: floor over measured time, 1 at best.
        peak_memory_bytes: most memory allocated at a time, weights included; None on a CPU.
        kv_bytes: K/V pools; None for transformers' own engines.
        record_s: seconds that a run spent on recording rounds, left out of all other columns.
    """

    engine: str
    batch_size: int
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
    ratio_to_hf_generate: float
    ratio_to_first_method: float
    num_speculative_tokens: int
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_probability: float | None
    break_even_acceptance: float | None
    rounds: int
    rows_per_round: float
    ms_per_round: float
    ms_draft: float
    ms_verify: float
    ms_realign: float
    ms_host: float
    ms_idle: float | None
    share_draft: float
    share_verify: float
    share_realign: float
    share_host: float
    share_idle: float | None
    share_outside_forward: float
    bytes_per_round: float
    flops_per_round: float
    floor_ms_per_round: float
    fraction_of_floor: float
    peak_memory_bytes: int | None
    kv_bytes: int | None
    record_s: float


def make_row(
    engine: str,
    batch_size: int,
    samples: Seq[Sample],
    plain: Seq[Sample],
    first: Seq[Sample],
    rates: Rates,
    busy_s: float | None = None,
    undrafted: Seq[Sample] = (),
) -> BenchRow:
    """Summarise an engine's samples.

    Args:
        engine: name of the row.
        batch_size: rows of a round.
        samples: one per repeat.
        plain: those of plain generation in the same repeats.
        first: those of the first of our methods in the same repeats.
        rates: of the device.
        busy_s: seconds of a round in which the device works, None where that was not measured.
        undrafted: those of our engine without drafts in the same repeats; none where that is not compared.
    """
    speeds = [s.tokens / s.seconds for s in samples]
    return BenchRow(
        engine=engine,
        batch_size=batch_size,
        tokens_per_s=statistics.median(speeds),
        tokens_per_s_min=min(speeds),
        tokens_per_s_max=max(speeds),
        ratio_to_hf_generate=_median(zip(samples, plain, strict=True), _ratio),
        ratio_to_first_method=_median(zip(samples, first, strict=True), _ratio),
        **_acceptance(samples),
        break_even_acceptance=_break_even(samples, undrafted),
        **_stages(samples, busy_s),
        **_floor(samples, rates),
        peak_memory_bytes=max((s.peak_bytes for s in samples if s.peak_bytes is not None), default=None),
        kv_bytes=samples[0].kv_bytes,
        record_s=_median(samples, lambda s: s.record_s),
    )


def _median(items: Iterable[Any], value: Callable[[Any], float]) -> float:
    return statistics.median(map(value, items))


def _ratio(both: tuple[Sample, Sample]) -> float:
    one, other = both
    return (one.tokens / one.seconds) / (other.tokens / other.seconds)


def _acceptance(samples: Seq[Sample]) -> dict[str, Any]:
    found = [s.acceptance for s in samples if s.acceptance is not None]
    row_rounds, accepted, drafted = (sum(getattr(a, n) for a in found) for n in ("row_rounds", "accepted", "drafted"))
    rounds, drafts = sum(s.rounds for s in samples), samples[0].drafts
    length = 1 + accepted / row_rounds if row_rounds else None
    return {
        "num_speculative_tokens": drafts,
        "mean_acceptance_length": length,
        "acceptance_probability": iid_of_length(length, drafts) if length and drafts else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "rounds": round(rounds / len(samples)),
        "rows_per_round": row_rounds / rounds if rounds else 0.0,
    }


def _break_even(samples: Seq[Sample], undrafted: Seq[Sample]) -> float | None:
    drafts = samples[0].drafts
    if not drafts or not undrafted:
        return None
    slower = _median(zip(samples, undrafted, strict=True), lambda both: _round_s(both[0]) / _round_s(both[1]))
    return iid_of_length(slower, drafts)


def _round_s(sample: Sample) -> float:
    return sample.passes_s / sample.rounds


def _stages(samples: Seq[Sample], busy_s: float | None) -> dict[str, Any]:
    names = [f"{unit}_{stage}" for unit in ("ms", "share") for stage in STAGES]
    if samples[0].stage_s is None:
        empty = dict.fromkeys((*names, "ms_per_round", "share_outside_forward"), 0.0)
        return empty | {"ms_idle": None, "share_idle": None}
    ms = 1e3 * _median(samples, _round_s)
    idle = None if busy_s is None else max(0.0, ms - 1e3 * busy_s)
    totals = {stage: [(s.stage_s or {})[stage] for s in samples] for stage in STAGES}
    table: dict[str, Any] = {"ms_per_round": ms, "ms_idle": idle, "share_idle": None if idle is None else idle / ms}
    for stage in STAGES:
        both = list(zip(samples, totals[stage], strict=True))
        table[f"ms_{stage}"] = _median(both, lambda x: 1e3 * x[1] / x[0].rounds)
        table[f"share_{stage}"] = _median(both, lambda x: x[1] / x[0].passes_s)
    return table | {"share_outside_forward": _median(samples, _outside_forward)}


def _outside_forward(sample: Sample) -> float:
    assert sample.stage_s is not None
    if sample.forward_s is None:
        return (sample.stage_s["realign"] + sample.stage_s["host"]) / sample.passes_s
    return 1 - sample.forward_s / sample.passes_s


def _floor(samples: Seq[Sample], rates: Rates) -> dict[str, Any]:
    def per_round(s: Sample, quantity: float) -> float:
        return quantity / max(1, s.rounds)

    return {
        "bytes_per_round": _median(samples, lambda s: per_round(s, total(s.passes).num_bytes)),
        "flops_per_round": _median(samples, lambda s: per_round(s, total(s.passes).flops)),
        "floor_ms_per_round": _median(samples, lambda s: per_round(s, 1e3 * rates.floor_s(s.passes))),
        "fraction_of_floor": _median(samples, lambda s: rates.floor_s(s.passes) / s.passes_s),
    }
