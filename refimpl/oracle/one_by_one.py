"""Decode prompts one by one with the oracle, and return them like any other run."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import partial

import torch
from torch import Tensor

from refimpl.core.config import DecodeConfig
from refimpl.core.errors import require
from refimpl.core.records import Stage, TokenLogprobs
from refimpl.core.sequence import Sequence
from refimpl.core.stats import RunStats, plain_stats
from refimpl.decoding.assembly import RunLimits
from refimpl.decoding.memory import GIB, usable_bytes
from refimpl.decoding.prefill import STABLE_PREFILL_TOKENS
from refimpl.decoding.timing import StageTimer, sum_stages
from refimpl.models.adapter import FeedRow, Pair
from refimpl.oracle import autoregressive
from refimpl.placement import pool_columns
from refimpl.requests import Prepared
from refimpl.results import Result, SequenceRecord, make_result

ProgressCallback = Callable[[int, int], None]  # finished sequences, all sequences


def decode_one_by_one(
    pair: Pair, prepared: Seq[Prepared], config: DecodeConfig, progress: ProgressCallback | None = None
) -> Result:
    """Run the oracle over the prompts; every token counts as a row-round without drafts."""
    timer, begun = StageTimer(pair.device), time.perf_counter()
    sequences = [each.sequence for each in prepared]
    feed = _windowed_rows(pair, sequences, config) if config.shape_stable else pair.target.fresh_row
    records = []
    for done, sequence in enumerate(sequences, start=1):
        entries = _decode(feed(), sequence, pair.vocab_size, config, timer)
        records.append(SequenceRecord(plain_stats(sequence.num_generated), entries))
        if progress:
            progress(done, len(sequences))
    total = sum(sequence.num_generated for sequence in sequences)
    stats = RunStats(
        acceptance=plain_stats(total),
        num_rounds=total,
        wall_s=time.perf_counter() - begun,
        stage_s=sum_stages([timer.take()]),
    )
    return make_result(pair, prepared, config, records, stats, rounds=[])


def _decode(
    feed: FeedRow, sequence: Sequence, vocab_size: int, config: DecodeConfig, timer: StageTimer
) -> tuple[TokenLogprobs, ...]:
    """Decode one sequence to its end, with log-probabilities if they are requested."""
    tokens, entries = [], []
    top = config.logprobs if sequence.logprobs is None else sequence.logprobs
    for token, logits in _timed(autoregressive.decode(feed, sequence, vocab_size, config.sampling), timer):
        tokens.append(token)
        if top is not None:
            entries.append(_logprobs_of(token, logits, top))
    sequence.stop_reason = "stop" if autoregressive.stops(sequence, tokens) else "length"
    sequence.token_ids += tokens
    return tuple(entries)


def _timed(steps: Iterator[tuple[int, Tensor]], timer: StageTimer) -> Iterator[tuple[int, Tensor]]:
    """The same steps; the first one, which takes the whole prompt, is charged to prefill, the others to verify."""
    stage: Stage = "prefill"
    while True:
        with timer.stage(stage):
            step = next(steps, None)
        if step is None:
            return
        yield step
        stage = "verify"


def _windowed_rows(pair: Pair, sequences: Seq[Sequence], config: DecodeConfig) -> Callable[[], FeedRow]:
    """Starts rows in the same shapes as the engine's shape-stable passes.

    Raises:
        InputError: the K/V of such a shape do not fit into what is free, or the target cannot run in one shape.
    """
    pair.require_steady(with_draft=False)
    run_limits, shape = RunLimits.of(sequences, config), pair.target.kv_shape
    columns = pool_columns(run_limits.longest, run_limits.span)
    need, room = config.batch_size * columns * shape.bytes_per_token, usable_bytes(None, pair.device)
    told = f"K/V of {config.batch_size} rows and {columns} columns need {need / GIB:.3g} GiB, {room / GIB:.3g} are free"
    require(need <= room, f"shape_stable: {told}: lower batch_size, max_new_tokens or max_prompt_tokens")
    return partial(
        autoregressive.WindowedRow,
        pair.target,
        rows=config.batch_size,
        window=run_limits.span,
        prompt_window=STABLE_PREFILL_TOKENS,
        columns=columns,
    )


def _logprobs_of(token: int, logits: Tensor, top: int) -> TokenLogprobs:
    table = torch.log_softmax(logits.to(torch.float64), dim=-1)
    best = torch.topk(table, top)
    return TokenLogprobs(
        token, float(table[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )
