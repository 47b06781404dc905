"""What a run leaves: generated sequences, statistics, and the settings that it ran with."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refimpl.core.config import CHECK_LEVELS, CheckLevel, DecodeConfig
from refimpl.core.records import RowOutcome, TokenLogprobs
from refimpl.core.sequence import Sequence, StopReason
from refimpl.core.shown import Shown, counted, shortened
from refimpl.core.stats import (
    AcceptanceStats,
    RunStats,
    acceptance_stats,
    drafter_stats,
    request_weighted_length,
    request_weighted_rate,
)
from refimpl.core.values import as_path
from refimpl.decoding.engine import Engine
from refimpl.decoding.timing import sum_stages
from refimpl.decoding.trace import RoundRecord, number_texts, trace_header, write_trace
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.placement import PLACEMENTS
from refimpl.requests import Prepared

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class GeneratedSequence:
    """What was generated after one prompt.

    Attributes:
        index: place in the results: that of the prompt in the caller's list, if each asks for one sample.
        token_ids: generated tokens, a stop token included.
        text: decoded, without special tokens, cut before a stop string; None for a pair without tokenizer.
        stop_reason: "stop", "length", or "cancelled".
        stats: acceptance over the sequence's own rounds.
        logprobs: one entry per token when asked for.
        num_prompt_tokens, num_prompt_tokens_cut: used, and cut from the front.
        prompt: text of the tokens that were used; None for a pair without tokenizer.
        sample: which of the prompt's samples this is, from 0.
    """

    index: int
    token_ids: list[int]
    text: str | None
    stop_reason: StopReason
    stats: AcceptanceStats
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_prompt_tokens: int = 0
    num_prompt_tokens_cut: int = 0
    prompt: str | None = None
    sample: int = 0

    def __repr__(self) -> str:
        output = self.token_ids if self.text is None else shortened(self.text)
        return f"GeneratedSequence({self.index}: {output}, {counted(len(self.token_ids), 'token')}, {self.stop_reason})"


@dataclass(frozen=True, slots=True, repr=False)
class Result(Shown):
    """A finished run.

    Attributes:
        sequences: in input order, the samples of a prompt one after the other.
        stats: over the whole run.
        rounds: one record per round; empty for `autoregressive`.
        config: what was asked for.
        environment: check level, device, dtype, pair, and what answers packed attention.
        header: settings of the run, as its trace holds them.
    """

    sequences: list[GeneratedSequence]
    stats: RunStats
    rounds: list[RoundRecord]
    config: DecodeConfig
    environment: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        stats = self.stats
        return (
            f"Result({self.config.method}: {counted(len(self.sequences), 'sequence')}, "
            f"{counted(stats.num_generated, 'token')} in {counted(stats.num_rounds, 'round')} and "
            f"{stats.wall_s:.2f} s, mean acceptance length {stats.acceptance.mean_acceptance_length:.2f})"
        )

    def to_frame(self) -> "pd.DataFrame":
        """One line per sequence: prompt, text, lengths in tokens, stop reason, acceptance."""
        import pandas as pd

        lines = [
            {
                "prompt": s.prompt,
                "text": s.text,
                "prompt_tokens": s.num_prompt_tokens,
                "tokens": len(s.token_ids),
                "stop_reason": s.stop_reason,
                "row_rounds": s.stats.row_rounds,
                "draft_acceptance_rate": s.stats.draft_acceptance_rate,
                "mean_acceptance_length": s.stats.mean_acceptance_length,
            }
            for s in self.sequences
        ]
        return pd.DataFrame(lines, index=pd.Index([s.index for s in self.sequences], name="index"))

    def write_trace(self, path: str | Path) -> None:
        """Write the rounds as NDJSON, the run's settings on the first line.

        Raises:
            InputError: the file cannot be written.
        """
        write_trace(as_path(path), self.header, self.rounds)


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """What is known of one sequence's run, beside its tokens."""

    stats: AcceptanceStats
    logprobs: tuple[TokenLogprobs, ...] = ()


def make_result(
    pair: Pair,
    prepared: Seq[Prepared],
    config: DecodeConfig,
    records: Seq[SequenceRecord],
    stats: RunStats,
    rounds: list[RoundRecord],
    further: dict[str, Any] | None = None,
) -> Result:
    """Put a finished run together; `stats` gets what follows from prompts and records, the header also `further`."""
    sequences = [each.sequence for each in prepared]
    accepted = [record.stats for record in records]
    environment = environment_of(pair, config)
    known = replace(
        stats,
        request_weighted_length=request_weighted_length(accepted),
        request_weighted_rate=request_weighted_rate(accepted),
        num_sequences=len(sequences),
        num_prompt_tokens=sum(s.prompt_len for s in sequences),
        num_prompt_tokens_cut=sum(each.num_cut for each in prepared),
    )
    generated = [_generated(pair, each, record) for each, record in zip(prepared, records, strict=True)]
    header = trace_header(config, sequences, environment | (further or {}))
    return Result(generated, known, rounds, config, environment, header)


def result_of(
    engine: Engine, prepared: Seq[Prepared], rounds: Seq[RoundRecord], round_end_s: Seq[float], wall_s: float
) -> Result:
    """The result of an engine's run, from its sequences and rounds.

    Args:
        engine: it has come to its end.
        prepared: its sequences, as they came.
        rounds: all of them.
        round_end_s: seconds from the start of the run to the end of each.
        wall_s: seconds spent in rounds.
    """
    rows = [row for record in rounds for row in record.rows]
    drafting, memory = engine.config.drafting, engine.memory
    stats = RunStats(
        acceptance=acceptance_stats(rows),
        num_rounds=len(rounds),
        num_grouped_rounds=sum(record.grouped for record in rounds),
        num_moves=sum(record.num_moves for record in rounds),
        num_preemptions=engine.num_preemptions,
        num_prefix_hits=engine.num_prefix_hits,
        num_blocks=engine.scheduler.allocator.num_blocks,
        kv_bytes=engine.kv_bytes,
        kv_peak_bytes=memory.peak_bytes,
        kv_live_bytes=memory.live_bytes,
        most_residents=memory.most_residents,
        mean_residents=memory.mean_residents,
        wall_s=wall_s,
        stage_s=sum_stages([record.stage_s for record in rounds]),
        drafters=drafter_stats(rows, drafting.lookup or "lookup", drafting.draws or "model"),
    )
    submitted_at, arrival_s = list(engine.submitted_at), [each.arrival_s for each in prepared]
    times = {"arrival_s": arrival_s, "submitted_at": submitted_at, "round_end_s": list(round_end_s)}
    arrivals = times if any(arrival_s) or any(submitted_at) else {}
    records = _records(rows, len(prepared))
    draft = engine.context.drafter.cached
    steps = {"recurrent_draft": True} if draft and draft.states else {}
    further = blocks_of(engine) | steps | arrivals
    return make_result(engine.pair, prepared, engine.config, records, stats, list(rounds), further)


def _records(rows: Seq[RowOutcome], num_sequences: int) -> list[SequenceRecord]:
    """What the rounds say of each sequence."""
    found: list[list[RowOutcome]] = [[] for _ in range(num_sequences)]
    for row in rows:
        found[row.sequence].append(row)
    return [SequenceRecord(acceptance_stats(mine), tuple(e for row in mine for e in row.logprobs)) for mine in found]


def blocks_of(engine: Engine) -> dict[str, Any]:
    """What a trace says of the blocks of a paged pool, the texts that they may share, and whether windows free any."""
    config, allocator = engine.config, engine.scheduler.allocator
    if allocator.num_blocks is None:
        return {}
    texts = {"texts": number_texts(engine.sequences, config.block_size)} if allocator.shares != "nothing" else {}
    frees = {"frees_unseen": True} if allocator.first_seen else {}
    return {"block_size": config.block_size, "num_blocks": allocator.num_blocks, **texts, **frees}


def environment_of(pair: Pair, config: DecodeConfig) -> dict[str, str]:
    """What a run with these settings runs on: pair, device, dtype, the level of the checks in force, the attention."""
    checks: CheckLevel = config.check_level(pair.device.type) if config.resolved_method.layout else "off"
    return {
        "pair": pair.name,
        "device": str(pair.device),
        "dtype": str(pair.dtype).removeprefix("torch."),
        "checks": checks,
        "layers": _layers(pair, config),
        "packed_attention": _packed_attention(pair, config, checks),
    }


def _layers(pair: Pair, config: DecodeConfig) -> str:
    """What runs the layers of the models that run, and why."""
    if config.resolved_method.layout is None:
        return "transformers"
    models = pair.models(config.drafting.uses_draft and config.num_speculative_tokens > 0)
    found = [model.layers.describe() if isinstance(model, HuggingFaceLM) else "its own" for model in models]
    return (
        found[0]
        if len(set(found)) == 1
        else "; ".join(f"{role} {each}" for role, each in zip(("target", "draft"), found, strict=False))
    )


def _packed_attention(pair: Pair, config: DecodeConfig, checks: CheckLevel) -> str:
    """How the target's packed passes are attended, and why not in one call."""
    layout, target = config.resolved_method.layout, pair.target
    if not isinstance(target, HuggingFaceLM) or target.forward_packed is None or config.shape_stable or not layout:
        return "no packed passes"
    if CHECK_LEVELS.index(checks) >= CHECK_LEVELS.index("device"):
        return f"loop: checks {checks} look at masks"
    found = target.kernel.describe(config.block_size if layout == "paged" else 0)
    prompts_alone = config.cuda_graphs or PLACEMENTS[layout].batch_columns(1) > 0
    return f"{found} (prompts alone)" if prompts_alone else found


def _generated(pair: Pair, prepared: Prepared, record: SequenceRecord) -> GeneratedSequence:
    sequence = prepared.sequence
    assert sequence.stop_reason is not None
    return GeneratedSequence(
        index=sequence.index,
        token_ids=sequence.generated,
        text=_text(pair, sequence),
        stop_reason=sequence.stop_reason,
        stats=record.stats,
        logprobs=record.logprobs,
        num_prompt_tokens=sequence.prompt_len,
        num_prompt_tokens_cut=prepared.num_cut,
        prompt=None if pair.tokenizer is None else pair.decode(sequence.token_ids[: sequence.prompt_len]),
        sample=prepared.sample,
    )


def _text(pair: Pair, sequence: Sequence) -> str | None:
    if pair.tokenizer is None:
        return None
    text = pair.decode(sequence.generated)
    return sequence.stop_strings.cut(text) if sequence.stop_strings else text
