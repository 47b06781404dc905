"""The loop: scheduler × layout × acceptance rule, from sequences to rounds."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from operator import attrgetter
from threading import Lock

import torch

from refimpl.core.config import DecodeConfig
from refimpl.core.errors import InputError, require
from refimpl.core.sequence import Sequence
from refimpl.decoding.assembly import Demand, assemble, room_of
from refimpl.decoding.devices import require_current
from refimpl.decoding.memory import MemoryUse
from refimpl.decoding.prefill import prefill
from refimpl.decoding.rounds import run_round
from refimpl.decoding.sampling import RandomSource
from refimpl.decoding.timing import StageTimer
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts import Layout
from refimpl.models.adapter import Pair
from refimpl.scheduling import Scheduler, SchedulingOptions, make_scheduler

GOES_ON = "a round, or a change between rounds, goes on: cancel, submit and iterate in one thread, in turn"


class Engine:
    """Runs sequences to their end, round by round.

    Args:
        pair: the models.
        sequences: host state, changed in place; more may come, see `submit`.
        config: method, batch size, acceptance rule, checks.
        source: replaces the keyed random numbers, for exhaustive enumeration.
        expected: sequences that will be submitted later; the run is built for them, too.

    Attributes:
        submitted_at: rounds that had run when each sequence was submitted.
        memory: K/V in use so far.
    """

    def __init__(
        self,
        pair: Pair,
        sequences: Seq[Sequence],
        config: DecodeConfig,
        source: RandomSource | None = None,
        *,
        expected: Seq[Sequence] = (),
    ):
        method = config.resolved_method
        if method.layout is None or method.scheduler is None:
            raise InputError(
                f"{method.name} has no layout and no scheduler: it is decoded by refimpl.oracle.autoregressive"
            )
        require_current(pair.device)
        self.pair, self.config, self.sequences = pair, config, list(sequences)
        self.scheduler: Scheduler[Sequence] = make_scheduler(
            method.scheduler,
            config.resolved_batch_size,
            config.resolved_window_size,
            config.aging_bound,
            token_budget=config.resolved_token_budget,
            execution=config.execution,
            options=SchedulingOptions(joint_prefill=config.joint_prefill),
        )
        self.demand = Demand.of([*self.sequences, *expected], config)
        self.context = assemble(pair, self.demand, config, self.scheduler.window_size, source)
        self.checker = self.context.checker
        self.scheduler.room = room_of(self.context.target.layout, self.demand, config)
        self.num_preemptions = self.num_found = 0
        self.memory = MemoryUse()
        self._free_slots = list(range(self.context.target.layout.num_rows))[::-1]
        self._interrupted = ""  # in the middle of what, while it goes on and ever after
        self._change = Lock()  # held during a round, or a change between rounds
        self.submitted_at = [0] * len(self.sequences)
        self.scheduler.submit(self.sequences)

    @property
    def timer(self) -> StageTimer:
        """Seconds of the current round, by stage."""
        return self.context.target.timer

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The target's, and the draft's if it runs."""
        return tuple(cached.layout for cached in self.context.models)

    @property
    def kv_bytes(self) -> int:
        """K/V pools of all models."""
        return sum(layout.pool.num_bytes for layout in self.layouts)

    def rounds(self) -> Iterator[RoundRecord]:
        """Run until every sequence has finished, yielding each round once it is committed."""
        while not self.scheduler.done:
            yield self.run_one_round()

    @torch.inference_mode()
    def run_one_round(self, keep: Callable[[RoundRecord], None] | None = None) -> RoundRecord:
        """Admit, prefill, choose members, preempt those without room, run the round, release who has finished.

        Args:
            keep: called with the record; a run that is interrupted in it was interrupted in the round.

        Raises:
            InputError: an earlier round, or a change between rounds, was interrupted, by an error or from the keyboard;
                or one still goes on, see `_undivided`.
        """
        self.require_whole()
        with self._undivided("in the middle of a round"):
            self.timer.begin()
            record = self._run_one_round()
            if keep:
                keep(record)
        return record

    def require_whole(self) -> None:
        """Raise InputError if a round, or a change between rounds, was interrupted: what it left may not agree then.

        Another error says that one still goes on, see `_undivided`.
        """
        require(not self._change.locked(), GOES_ON)
        if self._interrupted:
            raise InputError(f"the run was interrupted {self._interrupted} and cannot continue: start it again")

    @contextmanager
    def _undivided(self, what: str) -> Iterator[None]:
        """The body is done whole, or the run cannot go on.

        Raises:
            InputError: another body goes on: in another thread, or in this one, which a signal has stopped for a while.
        """
        alone = self._change.acquire(blocking=False)
        require(alone, GOES_ON)
        try:
            before, self._interrupted = self._interrupted, what
            yield
            self._interrupted = before
        finally:
            self._change.release()

    def _run_one_round(self) -> RoundRecord:
        moves = self._num_moves()
        self.admit()
        plan, preempted = self.scheduler.choose()
        for sequence in preempted:
            self._preempt(sequence)
        self.checker.before_round(plan, self.scheduler)
        self._note_memory()
        num_blocks = self.scheduler.room.num_blocks_used
        members, ahead = (sorted(rows, key=attrgetter("slot")) for rows in (plan.members, plan.ahead))  # pool order
        outcomes = run_round(self.context, members, plan.chunks, ahead)
        for sequence in self.scheduler.complete(plan):
            self._release(sequence)
        self.checker.after_round(self.scheduler)
        return RoundRecord(
            self.scheduler.round_index - 1,
            plan.mode,
            tuple(outcomes),
            self.timer.take(),
            self._num_moves() - moves,
            num_blocks,
            tuple((chunk.sequence.index, chunk.count) for chunk in plan.chunks),
        )

    def submit(self, sequences: Seq[Sequence], keep: Callable[[], None] | None = None) -> None:
        """Add sequences between rounds; they wait behind those that are there.

        Args:
            sequences: one after the other.
            keep: called when they are there; a run that is interrupted in it was interrupted here.

        Raises:
            InputError: they are more, or longer, than the run was built for, see `max_model_len`; none is added then.
        """
        self.demand.require(sequences, len(self.sequences))
        with self._undivided("while requests came"):
            self.sequences += sequences
            self.submitted_at += [self.scheduler.round_index] * len(sequences)
            self.scheduler.submit(sequences)
            if keep:
                keep()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence between rounds; what it has generated stays.

        Raises:
            InputError: a round goes on, in another thread for example; nothing has changed then.
        """
        if sequence.finished:
            return
        with self._undivided("while a sequence was cancelled"):
            sequence.stop_reason = "cancelled"
            for left in self.scheduler.cancel(sequence):
                self._release(left)

    def admit(self) -> None:
        """Let sequences into the window, and cache what is not left to rounds of their prompts, as every round does."""
        entered = self.scheduler.admit()
        for sequence in entered:
            sequence.slot = self._free_slots.pop()
            for cached in self.context.models:
                cached.note_cached(sequence, sequence.num_found)
            self.num_found += sequence.num_found
        batch_size, left = self.scheduler.batch_size, self.scheduler.left_to_rounds
        with self.timer.stage("prefill"):
            for start in range(0, len(entered), batch_size):
                for cached in self.context.models:
                    prefill(cached, entered[start : start + batch_size], left=left)

    def _note_memory(self) -> None:
        """Who is resident, which K/V are in use for them, and how much of it is of cached tokens."""
        layout, room, residents = self.context.target.layout, self.scheduler.room, self.scheduler.pool.window.values()
        blocks = room.num_blocks_used
        slots = len(residents) * layout.columns if blocks is None else blocks * layout.block_size
        per_token = sum(each.shape.bytes_per_token for each in self.layouts)
        self.memory.note(len(residents), slots * per_token, lambda: room.num_cached(residents) * per_token)

    def _preempt(self, sequence: Sequence) -> None:
        """Forget what is cached; the tokens stay, and are prefilled when the sequence enters again."""
        self._release(sequence)
        sequence.target_cached = 0
        sequence.draft_cached = None if sequence.draft_cached is None else 0
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            for layout in self.layouts:
                layout.release(sequence.slot)
            self.context.drafter.forget(sequence)
            self._free_slots.append(sequence.slot)
            sequence.slot = -1

    def _num_moves(self) -> int:
        return sum(layout.num_moves for layout in self.layouts)
