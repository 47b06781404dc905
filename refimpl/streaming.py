"""A run in progress: requests in while it goes on, tokens out as rounds commit them."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from refimpl.arrivals import Arrivals, Made
from refimpl.core.config import DecodeConfig
from refimpl.core.errors import InputError, require, shown
from refimpl.core.records import RowOutcome, TokenLogprobs
from refimpl.core.request import Request
from refimpl.core.sequence import StopReason
from refimpl.core.stats import CollapseWatch, RunStats, acceptance_stats, drafter_stats
from refimpl.core.values import is_integer
from refimpl.decoding.engine import Engine
from refimpl.decoding.timing import sum_stages
from refimpl.decoding.trace import RoundRecord
from refimpl.incoming import END, NOT_YET, Incoming
from refimpl.models.adapter import Pair
from refimpl.requests import Prepared, Prompt, SequenceMaker, listed
from refimpl.results import Result, SequenceRecord, make_result

Prompts = Seq[Prompt] | Iterator[Prompt] | AsyncIterator[Prompt]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that a round has committed to one sequence.

    Attributes:
        index: place in the results, see `GeneratedSequence`.
        token_ids: the new tokens.
        stop_reason: set on a sequence's last event, unless it was cancelled.
        logprobs: one entry per token when asked for.
        time_s: seconds from the start of the run to the end of the round.
    """

    index: int
    token_ids: tuple[int, ...]
    stop_reason: StopReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    time_s: float = 0.0


class Stream:
    """A run in progress: iterate over its token events, submit and cancel between them, take the result at its end.

    Events come round by round, so a sequence may be cancelled as soon as its tokens are seen; unless the scheduler is
    static, its place is filled from the waiting line in the next round. Requests that come later are let in between
    rounds; a run that has nothing else to do waits for them. What has been decoded is kept for `result`, so a stream
    grows with every request: begin another one from time to time.

    A stream belongs to one thread at a time: what is called while a round goes on, from another thread or a handler of
    signals, is refused.
    """

    def __init__(self, pair: Pair, prompts: Prompts, config: DecodeConfig, max_prompt_tokens: int | None = None):
        self._pair, self._config, self._maker = pair, config, SequenceMaker(pair, config, max_prompt_tokens)
        self._incoming = Incoming(prompts if isinstance(prompts, AsyncIterator) else None)
        known = self._known(prompts)
        self._prepared, self._is_iterated = list[Prepared](), isinstance(prompts, Iterator)
        coming = Made(prompts, self._maker) if isinstance(prompts, Iterator) else ([each] for each in known)
        self._arrivals = Arrivals(coming)
        self._engine = Engine(pair, [], config, expected=[each.sequence for each in known])
        self._watch = CollapseWatch()
        self._events: deque[TokenEvent] = deque()
        self._rounds: list[RoundRecord] = []
        self._round_end_s: list[float] = []
        self._wall_s = 0.0
        self._began: float | None = None
        self._most_waiting = math.inf if known else self._engine.scheduler.window_size
        if known:
            self._let_in()

    def _known(self, prompts: Prompts) -> list[Prepared]:
        """Sequences of all prompts, where they are known at the start."""
        known = list[Prepared]()
        if not isinstance(prompts, Iterator | AsyncIterator):
            known = self._maker.make(prompts)
            self._maker.note(known)
        elif self._config.max_model_len is None:
            raise InputError(
                "prompts that come one by one need max_model_len: the tokens of the longest, and its budget"
            )
        return known

    def __iter__(self) -> Iterator[TokenEvent]:
        """Yield events until every sequence has finished or was cancelled, and no more can come.

        Raises:
            InputError: the next request is no good one, or comes before the last; iterate again to go on without it. Or
                the prompts' iterator has ended by an error: iterate again to go on without what it had left. Or a round
                was interrupted, also where all that was left has been cancelled since.
        """
        if not self._incoming.ended:
            raise InputError("the prompts come asynchronously: use `async for`")
        while self._events or not self.done:
            if not self._events:
                self._wait()
                if not self._engine.scheduler.done:  # the prompts' iterator may have cancelled what there was
                    self._queue_one_round()
            if self._events:
                yield self._events.popleft()
        self._engine.require_whole()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """As `__iter__`, with requests from an asynchronous iterator, too. Other tasks run between rounds and in waits.

        It may be left, by a timeout for example: whoever iterates again, in the same event loop, misses no event and no
        request.
        """
        while self._events or not self.done:
            await asyncio.sleep(0)
            if self._events:
                yield self._events.popleft()
            elif not await self._submit_next():
                await self._wait_for_work()
                if not self._engine.scheduler.done:  # another task may have cancelled what there was
                    self._queue_one_round()
        self._engine.require_whole()

    async def _submit_next(self) -> bool:
        """Submit the next prompt of an asynchronous iterator; False if it has not come, or a window of others waits."""
        if self._incoming.ended or len(self._engine.scheduler.pool.waiting) >= self._most_waiting:
            return False
        prompt = await self._incoming.take()
        if prompt is NOT_YET:
            return False
        if prompt is not END:
            self.submit([prompt])
        return True

    async def _wait_for_work(self) -> None:
        """Let other tasks run until there is something to decode, or a prompt of an asynchronous iterator to submit."""
        while (wait_s := self._wait_s()) is not None:
            await asyncio.sleep(wait_s)
        if self._idle:
            await self._incoming.wait()

    def submit(self, prompts: Seq[Prompt]) -> list[int]:
        """Add requests that come now; return the indices of their sequences.

        Raises:
            InputError: they are not fit for the run, see `max_model_len`, have an `arrival_s`, others are still to
                come, or a round was interrupted; none is added then.
        """
        self._engine.require_whole()
        if not self._arrivals.ended:
            raise InputError("requests of a list or an iterator are still to come: submit others after them")
        now_s = self.elapsed_s
        requests = [each if isinstance(each, Request) else Request(each) for each in listed(prompts)]
        come = self._maker.make([replace(request, arrival_s=now_s) for request in requests])
        no_time = not any(request.arrival_s for request in requests)
        require(no_time, "a request that is submitted, or given asynchronously, comes now: leave out its arrival_s")
        self._add(come)
        self._incoming.wake()
        return [each.sequence.index for each in come]

    def _let_in(self) -> None:
        """Submit what has come by now; prompts of an iterator while less than a window waits."""
        due, waiting = self._arrivals.due(self.elapsed_s), self._engine.scheduler.pool.waiting
        while len(waiting) < self._most_waiting and (come := next(due, None)):
            self._add(come, noted=not self._is_iterated)

    def _wait_s(self) -> float | None:
        """Let in what has come; seconds until the next arrival where nothing else is left to do."""
        self._began = self._began or time.perf_counter()
        self._let_in()
        waits = self._engine.scheduler.done and not self._arrivals.ended
        return max(0.0, self._arrivals.next_s - self.elapsed_s) if waits else None

    def _add(self, come: Seq[Prepared], *, noted: bool = False) -> None:
        """Submit sequences, and note them unless they were known from the start."""

        def keep() -> None:
            self._prepared.extend(come)
            if not noted:
                self._maker.note(come)

        self._engine.submit([each.sequence for each in come], keep)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first round was asked for."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    @property
    def done(self) -> bool:
        """Whether every sequence that has come has finished or was cancelled, and no other comes but by `submit`.

        Where nothing else is left to do, this asks an iterator for its next prompt, and raises what that raises.
        """
        return self._incoming.ended and self._idle

    @property
    def _idle(self) -> bool:
        """Whether there is nothing to do until a prompt is submitted."""
        return self._engine.scheduler.done and self._arrivals.ended

    @property
    def num_finished(self) -> int:
        """Sequences that have, those among them whose static batch still runs."""
        pool = self._engine.scheduler.pool
        return pool.num_finished + sum(sequence.finished for sequence in pool.window.values())

    @property
    def num_sequences(self) -> int:
        """Sequences that are known of: those that have come, and those that will."""
        return self._maker.num_sequences

    def cancel(self, index: int) -> None:
        """End a sequence that has come; what it has generated stays, its pending events are dropped.

        Nothing changes where it has ended by itself.

        Raises:
            InputError: there is no sequence of that index, it has not come yet, or a round goes on, in another thread
                for example.
        """
        come = len(self._engine.sequences)
        known = is_integer(index) and 0 <= index < self.num_sequences
        require(known, f"there is no sequence {shown(index)}: {come} have come, numbered from 0")
        require(index < come, f"sequence {index} is still to come: cancel it when it has")
        sequence = self._engine.sequences[index]
        if sequence.finished:
            return
        self._engine.cancel(sequence)
        self._events = deque(event for event in self._events if event.index != index)

    def run_one_round(self) -> RoundRecord:
        """Advance by one round, after the next arrival where nothing else is left to do; its events are not yielded.

        Raises:
            InputError: the run has ended, the next request is no good one, or an earlier round was interrupted.
        """
        self._engine.require_whole()
        require(not self.done, "the run has ended")
        require(not self._idle, "the next prompt comes asynchronously: use `async for`")
        self._wait()
        require(not self._engine.scheduler.done, "the run has ended")
        record = self._decode(yields=False)
        self._watch.observe(record.rows)
        return record

    def _wait(self) -> None:
        """Sleep until there is something to do."""
        while (wait_s := self._wait_s()) is not None:
            time.sleep(wait_s)

    def _queue_one_round(self) -> None:
        """Advance by one round; its events are kept, even if its warning is an error."""
        record = self._decode(yields=True)
        self._watch.observe(record.rows)

    def _decode(self, *, yields: bool) -> RoundRecord:
        """Advance by one round and keep its record, and its events where they are yielded."""
        begun = time.perf_counter()

        def keep(record: RoundRecord) -> None:
            self._wall_s += time.perf_counter() - begun
            self._round_end_s.append(self.elapsed_s)
            self._rounds.append(record)
            if yields:
                self._events.extend(self._events_of(record))

        return self._engine.run_one_round(keep)

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
            num_grouped_rounds=sum(record.grouped for record in self._rounds),
            num_moves=sum(record.num_moves for record in self._rounds),
            num_preemptions=self._engine.num_preemptions,
            num_found=self._engine.num_found,
            num_blocks=self._engine.scheduler.room.num_blocks,
            kv_bytes=self._engine.kv_bytes,
            kv_peak_bytes=self._engine.memory.peak_bytes,
            kv_live_bytes=self._engine.memory.live_bytes,
            most_residents=self._engine.memory.most_residents,
            mean_residents=self._engine.memory.mean_residents,
            wall_s=self._wall_s,
            stage_s=sum_stages([record.stage_s for record in self._rounds]),
            drafters=drafter_stats(
                (row for record in self._rounds for row in record.rows),
                self._config.drafting.lookup,
                self._config.drafting.drawn_by,
            ),
        )
        return make_result(
            self._pair, self._prepared, self._config, self._records(), stats, list(self._rounds), self._arrived()
        )

    def _arrived(self) -> dict[str, Any]:
        """When requests came and rounds ended, where not all were there at the start; fields of a trace's header."""
        submitted_at, arrival_s = list(self._engine.submitted_at), [each.arrival_s for each in self._prepared]
        times = {"arrival_s": arrival_s, "submitted_at": submitted_at, "round_end_s": list(self._round_end_s)}
        return times if any(arrival_s) or any(submitted_at) else {}

    def _records(self) -> list[SequenceRecord]:
        """What the rounds say of each sequence."""
        rows: list[list[RowOutcome]] = [[] for _ in self._prepared]
        for record in self._rounds:
            for row in record.rows:
                rows[row.sequence].append(row)
        return [SequenceRecord(acceptance_stats(mine), tuple(e for row in mine for e in row.logprobs)) for mine in rows]

    def _events_of(self, record: RoundRecord) -> Iterator[TokenEvent]:
        for row in record.rows:
            sequence = self._engine.sequences[row.sequence]
            yield TokenEvent(row.sequence, row.tokens, sequence.stop_reason, row.logprobs, self._round_end_s[-1])
