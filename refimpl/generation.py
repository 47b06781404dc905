"""`generate` and `stream`: prompts in, results out."""

import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from numbers import Integral
from typing import Unpack

from refimpl.core.config import DecodeConfig, make_config
from refimpl.core.errors import InputError, shown
from refimpl.core.keywords import Settings
from refimpl.core.records import RowOutcome, TokenLogprobs
from refimpl.core.sequence import StopReason
from refimpl.core.stats import CollapseWatch, RunStats, acceptance_stats, drafter_stats
from refimpl.decoding.engine import Engine
from refimpl.decoding.timing import sum_stages
from refimpl.decoding.trace import RoundRecord
from refimpl.models.adapter import Pair
from refimpl.oracle.one_by_one import ProgressCallback, decode_one_by_one
from refimpl.requests import Prepared, Prompt, prepare
from refimpl.results import Result, SequenceRecord, make_result


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that a round has committed to one sequence.

    Attributes:
        index: place in the results, see `GeneratedSequence`.
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
    **settings: Unpack[Settings],
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
        return decode_one_by_one(pair, prepared, config, progress)
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
        if not isinstance(index, Integral) or not 0 <= index < len(self._engine.sequences):
            raise InputError(f"there is no sequence {shown(index)}: indices are 0 … {len(self._engine.sequences) - 1}")
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
            InputError: the run has not come to its end, or was interrupted in the middle of a round.
        """
        self._engine.require_whole()
        if not self.done:
            raise InputError("the stream has not come to its end: iterate over it, or cancel what is left")
        stats = RunStats(
            acceptance=acceptance_stats(row for record in self._rounds for row in record.rows),
            num_rounds=len(self._rounds),
            num_grouped_rounds=sum(record.mode == "grouped" for record in self._rounds),
            num_moves=sum(record.num_moves for record in self._rounds),
            num_preemptions=self._engine.num_preemptions,
            num_found=self._engine.num_found,
            num_blocks=self._engine.scheduler.room.num_blocks,
            kv_bytes=self._engine.kv_bytes,
            kv_peak_bytes=self._engine.kv_peak_bytes,
            kv_live_bytes=self._engine.kv_live_bytes,
            wall_s=self._wall_s,
            stage_s=sum_stages([record.stage_s for record in self._rounds]),
            drafters=drafter_stats(
                (row for record in self._rounds for row in record.rows), self._config.drafting.lookup
            ),
        )
        return make_result(self._pair, self._prepared, self._config, self._records(), stats, self._rounds)

    def _records(self) -> list[SequenceRecord]:
        """What the rounds say of each sequence."""
        rows: list[list[RowOutcome]] = [[] for _ in self._prepared.sequences]
        for record in self._rounds:
            for row in record.rows:
                rows[row.sequence].append(row)
        return [SequenceRecord(acceptance_stats(mine), tuple(e for row in mine for e in row.logprobs)) for mine in rows]

    def _events_of(self, record: RoundRecord) -> Iterator[TokenEvent]:
        for row in record.rows:
            sequence = self._engine.sequences[row.sequence]
            yield TokenEvent(row.sequence, row.tokens, sequence.stop_reason, row.logprobs)


def stream(
    pair: Pair, prompts: Seq[Prompt], *, max_prompt_tokens: int | None = None, **settings: Unpack[Settings]
) -> Stream:
    """Decode prompts, handing out tokens as rounds commit them; see `generate` for the arguments.

    Raises:
        InputError: impossible settings or prompts; `autoregressive` has no rounds to stream.
    """
    config = make_config(**settings)
    if config.resolved_method.layout is None:
        raise InputError(f"{config.method} has no rounds to stream: choose another method, or call generate")
    return Stream(pair, prepare(pair, prompts, config, max_prompt_tokens), config)
