"""`generate` and `stream`: prompts in, results out."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refimpl import autoregressive
from refimpl.config import DecodeConfig, make_config
from refimpl.engine import STABLE_PREFILL_TOKENS, Engine, check_level, longest_row, verify_window
from refimpl.errors import InputError
from refimpl.kvstore import pool_columns
from refimpl.model import FeedRow, Pair
from refimpl.records import RowOutcome, TokenLogprobs
from refimpl.requests import Prepared, Prompt, prepare
from refimpl.sequence import Sequence, StopReason
from refimpl.stats import (
    AcceptanceStats,
    CollapseWatch,
    RunStats,
    acceptance_stats,
    request_weighted_length,
    request_weighted_rate,
)
from refimpl.timing import StageTimer
from refimpl.trace import RoundRecord, trace_header, write_trace

ProgressCallback = Callable[[int, int], None]  # finished sequences, all sequences


@dataclass(frozen=True, slots=True)
class GeneratedSequence:
    """What was generated after one prompt.

    Attributes:
        index: place of the prompt in the caller's list.
        token_ids: generated tokens, a stop token included.
        text: decoded, without special tokens, cut before a stop string; None for a pair without tokenizer.
        stop_reason: "stop", "length", or "cancelled".
        stats: acceptance over the sequence's own rounds.
        logprobs: one entry per token when asked for.
        num_prompt_tokens, num_prompt_tokens_cut: used, and cut from the front.
    """

    index: int
    token_ids: list[int]
    text: str | None
    stop_reason: StopReason
    stats: AcceptanceStats
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_prompt_tokens: int = 0
    num_prompt_tokens_cut: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    Attributes:
        sequences: in input order.
        stats: over the whole run.
        rounds: one record per round; empty for `autoregressive`.
        config: what was asked for.
        environment: check level, device, dtype and pair.
        header: settings of the run, as its trace holds them.
    """

    sequences: list[GeneratedSequence]
    stats: RunStats
    rounds: list[RoundRecord]
    config: DecodeConfig
    environment: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)

    def write_trace(self, path: str | Path) -> None:
        """Write the rounds as NDJSON, the run's settings on the first line.

        Raises:
            InputError: the file cannot be written.
        """
        write_trace(Path(path), self.header, self.rounds)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that a round has committed to one sequence.

    Attributes:
        index: place of the prompt in the caller's list.
        token_ids: the new tokens.
        stop_reason: set on a sequence's last event.
        logprobs: one entry per token when asked for.
    """

    index: int
    token_ids: tuple[int, ...]
    stop_reason: StopReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


def generate(
    pair: Pair,
    prompts: Seq[Prompt],
    *,
    max_prompt_tokens: int | None = None,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> Result:
    """Decode prompts to their end.

    Args:
        pair: from `load_pair`.
        prompts: texts, lists of token ids, or Requests, mixed as you like.
        max_prompt_tokens: keep only the last so many tokens of each prompt; None keeps all.
        progress: told (finished, all) after every round.
        **settings: fields of DecodeConfig and SamplingConfig, for example ``method="exspec", batch_size=8``.

    Returns:
        Results in input order.

    Raises:
        InputError: impossible settings or prompts.
        InvariantViolation: the engine's state broke an invariant that `checks` covers.
    """
    config = make_config(**settings)
    prepared = prepare(pair, prompts, config, max_prompt_tokens)
    if config.resolved_method.layout is None:
        return _decode_one_by_one(pair, prepared, config, progress)
    run = Stream(pair, prepared, config)
    while not run.done:
        run.run_one_round()
        if progress:
            progress(run.num_finished, len(prepared.sequences))
    return run.result()


class Stream:
    """A run in progress: iterate over its token events, cancel sequences between them, take the result at its end.

    Events come round by round, so a sequence may be cancelled as soon as its tokens are seen; unless the scheduler is
    static, its place is filled from the waiting line in the next round.
    """

    def __init__(self, pair: Pair, prepared: Prepared, config: DecodeConfig):
        self._pair, self._prepared, self._config = pair, prepared, config
        self._engine, self._watch = Engine(pair, prepared.sequences, config), CollapseWatch()
        self._events: deque[TokenEvent] = deque()
        self._rounds: list[RoundRecord] = []
        self._wall_s = 0.0

    def __iter__(self) -> Iterator[TokenEvent]:
        """Yield events until every sequence has finished or was cancelled."""
        while self._events or not self.done:
            if not self._events:
                self._events.extend(self._events_of(self.run_one_round()))
            if self._events:
                yield self._events.popleft()

    @property
    def done(self) -> bool:
        """Whether every sequence has finished or was cancelled."""
        return self._engine.scheduler.done

    @property
    def num_finished(self) -> int:
        """Sequences that have."""
        return self._engine.scheduler.pool.num_finished

    def cancel(self, index: int) -> None:
        """End a sequence; what it has generated stays, its pending events are dropped, and no more will come.

        Raises:
            InputError: no prompt has that index.
        """
        if not 0 <= index < len(self._engine.sequences):
            raise InputError(f"there is no sequence {index!r}: indices are 0 … {len(self._engine.sequences) - 1}")
        self._engine.cancel(self._engine.sequences[index])
        self._events = deque(event for event in self._events if event.index != index)

    def run_one_round(self) -> RoundRecord:
        """Advance by one round; its events are not yielded."""
        begun = time.perf_counter()
        record = self._engine.run_one_round()
        self._wall_s += time.perf_counter() - begun
        self._rounds.append(record)
        self._watch.observe(record.rows)
        return record

    def result(self) -> Result:
        """Everything about the run, as `generate` returns it.

        Raises:
            InputError: the run has not come to its end.
        """
        if not self.done:
            raise InputError("the stream has not come to its end: iterate over it, or cancel what is left")
        return _result(self._pair, self._prepared, self._config, self._rounds, self._wall_s, self._engine.kv_bytes)

    def _events_of(self, record: RoundRecord) -> Iterator[TokenEvent]:
        for row in record.rows:
            sequence = self._engine.sequences[row.sequence]
            yield TokenEvent(row.sequence, row.tokens, sequence.stop_reason, row.logprobs)


def stream(pair: Pair, prompts: Seq[Prompt], *, max_prompt_tokens: int | None = None, **settings: Any) -> Stream:
    """Decode prompts, handing out tokens as rounds commit them; see `generate` for the arguments.

    Raises:
        InputError: impossible settings or prompts; `autoregressive` has no rounds to stream.
    """
    config = make_config(**settings)
    if config.resolved_method.layout is None:
        raise InputError(f"{config.method} has no rounds to stream: choose another method, or call generate")
    return Stream(pair, prepare(pair, prompts, config, max_prompt_tokens), config)


def _decode_one_by_one(
    pair: Pair, prepared: Prepared, config: DecodeConfig, progress: ProgressCallback | None
) -> Result:
    """Run the oracle over the prompts and present its output as a Result."""
    timer, begun = StageTimer(pair.device), time.perf_counter()
    feed = _windowed_rows(pair, prepared, config) if config.shape_stable else pair.target.fresh_row
    logprobs: list[tuple[TokenLogprobs, ...]] = []
    for done, sequence in enumerate(prepared.sequences, start=1):
        tokens, entries = [], []
        with timer.stage("verify"):
            for token, logits in autoregressive.decode(feed(), sequence, pair.vocab_size, config.sampling):
                tokens.append(token)
                if config.logprobs is not None:
                    entries.append(_logprobs_of(token, logits, config.logprobs))
        sequence.extend(tokens)
        logprobs.append(tuple(entries))
        if progress:
            progress(done, len(prepared.sequences))
    wall_s = time.perf_counter() - begun
    result = _result(pair, prepared, config, [_oracle_record(prepared, timer)], wall_s, 0, logprobs)
    stats = replace(result.stats, num_rounds=result.stats.num_generated)
    return replace(result, stats=stats, rounds=[])


def _windowed_rows(pair: Pair, prepared: Prepared, config: DecodeConfig) -> Callable[[], FeedRow]:
    """Starts rows in the very shapes that the engine's shape-stable passes have."""
    window = verify_window(prepared.sequences)
    return partial(
        autoregressive.WindowedRow,
        pair.target,
        rows=config.batch_size,
        window=window,
        prompt_window=STABLE_PREFILL_TOKENS,
        columns=pool_columns(longest_row(prepared.sequences), window),
    )


def _logprobs_of(token: int, logits: Tensor, top: int) -> TokenLogprobs:
    table = torch.log_softmax(logits.to(torch.float64), dim=-1)
    best = torch.topk(table, top)
    return TokenLogprobs(
        token, float(table[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )


def _oracle_record(prepared: Prepared, timer: StageTimer) -> RoundRecord:
    """Count each token of the oracle as a row-round without drafts."""
    rows = tuple(
        RowOutcome(s.index, s.prompt_len + n, 0, 0, 0, 0, 1, "bonus", n + 1 == s.num_generated)
        for s in prepared.sequences
        for n in range(s.num_generated)
    )
    return RoundRecord(0, "static", rows, timer.take(), 0)


def _result(
    pair: Pair,
    prepared: Prepared,
    config: DecodeConfig,
    rounds: list[RoundRecord],
    wall_s: float,
    kv_bytes: int,
    logprobs: list[tuple[TokenLogprobs, ...]] | None = None,
) -> Result:
    by_sequence: dict[int, list[RowOutcome]] = {s.index: [] for s in prepared.sequences}
    for record in rounds:
        for row in record.rows:
            by_sequence[row.sequence].append(row)
    sequences = []
    for sequence, cut in zip(prepared.sequences, prepared.num_cut, strict=True):
        rows = by_sequence[sequence.index]
        entries = logprobs[sequence.index] if logprobs else tuple(e for row in rows for e in row.logprobs)
        sequences.append(_generated(pair, sequence, rows, entries, cut))
    environment = environment_of(pair, config)
    return Result(
        sequences,
        _run_stats(prepared, rounds, [s.stats for s in sequences], wall_s, kv_bytes),
        rounds,
        config,
        environment,
        trace_header(config, prepared.sequences, environment),
    )


def environment_of(pair: Pair, config: DecodeConfig) -> dict[str, str]:
    """What a run with these settings runs on: pair, device, dtype and the level of the checks in force."""
    return {
        "pair": pair.name,
        "device": str(pair.device),
        "dtype": str(pair.dtype).removeprefix("torch."),
        "checks": check_level(config, pair.device),
    }


def _generated(
    pair: Pair, sequence: Sequence, rows: list[RowOutcome], logprobs: tuple[TokenLogprobs, ...], cut: int
) -> GeneratedSequence:
    assert sequence.stop_reason is not None
    return GeneratedSequence(
        index=sequence.index,
        token_ids=sequence.generated,
        text=_text(pair, sequence),
        stop_reason=sequence.stop_reason,
        stats=acceptance_stats(rows),
        logprobs=logprobs,
        num_prompt_tokens=sequence.prompt_len,
        num_prompt_tokens_cut=cut,
    )


def _text(pair: Pair, sequence: Sequence) -> str | None:
    if pair.tokenizer is None:
        return None
    text = pair.decode(sequence.generated)
    return sequence.stop_strings.cut(text) if sequence.stop_strings else text


def _run_stats(
    prepared: Prepared,
    rounds: list[RoundRecord],
    per_request: list[AcceptanceStats],
    wall_s: float,
    kv_bytes: int,
) -> RunStats:
    rows = [row for record in rounds for row in record.rows]
    stages = {name.removesuffix("_s") for record in rounds for name in record.stage_s} - {"round"}
    return RunStats(
        acceptance=acceptance_stats(rows),
        request_weighted_length=request_weighted_length(per_request),
        request_weighted_rate=request_weighted_rate(per_request),
        num_sequences=len(prepared.sequences),
        num_prompt_tokens=sum(s.prompt_len for s in prepared.sequences),
        num_prompt_tokens_cut=sum(prepared.num_cut),
        num_rounds=len(rounds),
        num_grouped_rounds=sum(record.mode == "grouped" for record in rounds),
        num_moves=sum(record.num_moves for record in rounds),
        kv_bytes=kv_bytes,
        wall_s=wall_s,
        stage_s={stage: sum(record.stage_s[f"{stage}_s"] for record in rounds) for stage in stages},
    )
