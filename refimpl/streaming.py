"""A run in progress: requests in while it goes on, tokens out as rounds commit them."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from refimpl.core.config import DecodeConfig
from refimpl.core.errors import require, shown
from refimpl.core.records import RowOutcome, TokenLogprobs
from refimpl.core.request import Request
from refimpl.core.sequence import StopReason
from refimpl.core.stats import CollapseWatch
from refimpl.core.values import is_integer
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord
from refimpl.models.adapter import Pair
from refimpl.requests import Prepared, Prompt, SequenceMaker, listed
from refimpl.results import Result, result_of

BROKEN = (
    "the stream is in the middle of a round, or was interrupted in one: use one thread, after an interrupt a new run"
)
Prompts = Seq[Prompt] | Iterator[Prompt]


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
    static, its place is filled from the waiting line in the next round. A run that has nothing to do until the next
    arrival waits for it. After its end more may be submitted: iterate again. What has been decoded is kept for
    `result`, so a stream grows with every request: begin another one from time to time.

    Use it in one thread. An error or interrupt in the middle of a change (a round, a submission, a cancellation, a step
    of the prompts' iterator) breaks it: from then on every use raises InputError.
    """

    def __init__(self, pair: Pair, prompts: Prompts, config: DecodeConfig, max_prompt_tokens: int | None = None):
        self._maker = SequenceMaker(pair, config, max_prompt_tokens)
        known, self._iterator = list[Prepared](), iter(list[Prompt]())
        if isinstance(prompts, Iterator):
            no_length = "prompts that come one by one need max_model_len: the longest prompt and its budget"
            require(config.max_model_len is not None, no_length)
            self._iterator = prompts
        else:
            known = self._maker.make(prompts)
        self._ahead = deque[Seq[Prepared]]([each] for each in known)  # requests that are made and have not come
        self._come = list[Prepared]()
        self._num_known = len(known)
        self._engine = Engine(pair, [], config, expected=[each.sequence for each in known])
        self._most_waiting = math.inf if known else self._engine.scheduler.window_size
        self._broken = False  # during a change, and after one that did not end
        self._watch = CollapseWatch()
        self._events = deque[TokenEvent]()
        self._rounds, self._round_end_s = list[RoundRecord](), list[float]()
        self._wall_s = 0.0
        self._began: float | None = None
        if known:
            self._let_in()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """The body ends, or the stream is broken."""
        self._require_whole()
        self._broken = True
        yield
        self._broken = False

    def _require_whole(self) -> None:
        require(not self._broken, BROKEN)

    def __iter__(self) -> Iterator[TokenEvent]:
        """Yield events until every sequence has finished or was cancelled, and no other is known to come.

        Raises:
            InputError: the next request is invalid: iterate again to go on without it. Or the stream is broken.
        """
        for step in self._steps():
            if isinstance(step, TokenEvent):
                yield step
            else:
                time.sleep(step)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """As `__iter__`; other tasks run between rounds, and while the run waits. They may submit and cancel."""
        for step in self._steps():
            if isinstance(step, TokenEvent):
                yield step
            else:
                await asyncio.sleep(step)

    def _steps(self) -> Iterator[TokenEvent | float]:
        """Events, and before each round the seconds until it may begin."""
        self._require_whole()
        while self._events or not self.done:
            if self._events:
                yield self._events.popleft()
            else:
                yield self._wait_s()
                if not self._engine.scheduler.done:  # nobody has come, or all were cancelled in the meantime
                    self._run_round()

    def submit(self, prompts: Seq[Prompt]) -> list[int]:
        """Add requests that come now; return the indices of their sequences.

        Raises:
            InputError: they do not fit the run, see `max_model_len`, have an `arrival_s`, others are still to come, or
                the stream is broken; none is added then.
        """
        self._require_whole()
        require(self._next_s() == math.inf, "requests of a list or an iterator are still to come: submit others later")
        requests = [each if isinstance(each, Request) else Request(each) for each in listed(prompts)]
        no_time = not any(request.arrival_s for request in requests)
        require(no_time, "a request that is submitted comes now: leave out its arrival_s")
        now_s = self._elapsed_s
        come = self._maker.make([replace(request, arrival_s=now_s) for request in requests])
        self._add(come)
        return [each.sequence.index for each in come]

    def _add(self, come: Seq[Prepared]) -> None:
        sequences = [each.sequence for each in come]
        self._engine.run_limits.require(sequences, len(self._come))
        with self._change():
            self._engine.submit(sequences)
            self._come.extend(come)
            self._maker.note(come)

    def _let_in(self) -> None:
        """Submit what has come by now; prompts of an iterator while less than a window waits."""
        waiting = self._engine.scheduler.pool.waiting
        while len(waiting) < self._most_waiting and self._next_s() <= self._elapsed_s:
            self._add(self._ahead.popleft())

    def _next_s(self) -> float:
        """When the next request comes, in seconds after the start of the run; infinite where none does.

        A request for which this raises InputError is left out.
        """
        if not self._ahead:
            with self._change():
                prompts = list(islice(self._iterator, 1))
            self._ahead.extend(self._maker.make([prompt]) for prompt in prompts)
        return self._ahead[0][0].arrival_s if self._ahead else math.inf

    def _wait_s(self) -> float:
        """Let in what has come; seconds until the next arrival where nothing else is left to do, else 0."""
        self._began = self._began or time.perf_counter()
        self._let_in()
        return max(0.0, self._next_s() - self._elapsed_s) if self._engine.scheduler.done else 0.0

    @property
    def _elapsed_s(self) -> float:
        """Seconds since the first round was asked for."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    @property
    def done(self) -> bool:
        """Whether every sequence that has come has finished or was cancelled, and no other comes but by `submit`.

        Where nothing else is left to do, this asks an iterator for its next prompt, and raises what that raises.
        """
        return self._engine.scheduler.done and self._next_s() == math.inf

    @property
    def num_finished(self) -> int:
        """Sequences that have, those among them whose static batch still runs."""
        pool = self._engine.scheduler.pool
        return pool.num_finished + sum(sequence.finished for sequence in pool.window.values())

    @property
    def num_sequences(self) -> int:
        """Sequences that have come, and those that are known to come."""
        return max(self._num_known, len(self._come))

    def cancel(self, index: int) -> None:
        """End a sequence that has come; what it has generated stays, its pending events are dropped.

        Nothing changes where it has ended by itself.

        Raises:
            InputError: no sequence of that index has come, or the stream is broken.
        """
        self._require_whole()
        come = len(self._come)
        known = is_integer(index) and 0 <= index < come
        require(known, f"there is no sequence {shown(index)}: {come} have come, numbered from 0")
        if not self._come[index].sequence.finished:
            with self._change():
                self._engine.cancel(self._come[index].sequence)
                self._events = deque(event for event in self._events if event.index != index)

    def run_one_round(self) -> RoundRecord:
        """Advance by one round, after the next arrival where nothing else is left to do; iterate to read its events.

        Raises:
            InputError: the run has ended, the next request is invalid, or the stream is broken.
        """
        self._require_whole()
        require(not self.done, "the run has ended")
        while (wait_s := self._wait_s()) or self._engine.scheduler.done:
            time.sleep(wait_s)
        return self._run_round()

    def _run_round(self) -> RoundRecord:
        begun = time.perf_counter()
        with self._change():
            record = self._engine.run_one_round()
            self._wall_s += time.perf_counter() - begun
            self._round_end_s.append(self._elapsed_s)
            self._rounds.append(record)
            self._events += map(self._event_of, record.rows)
        self._watch.observe(record.rows)  # may warn, and a warning may be an error
        return record

    def _event_of(self, row: RowOutcome) -> TokenEvent:
        stop_reason = self._come[row.sequence].sequence.stop_reason
        return TokenEvent(row.sequence, row.tokens, stop_reason, row.logprobs, self._round_end_s[-1])

    def result(self) -> Result:
        """Everything about the run, as `generate` returns it.

        Raises:
            InputError: the run has not come to its end, or the stream is broken.
        """
        self._require_whole()
        require(self.done, "the stream has not come to its end: iterate over it, or cancel what is left")
        return result_of(self._engine, self._come, self._rounds, self._round_end_s, self._wall_s)
