"""The loop: scheduler × layout × acceptance rule, from sequences to rounds."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from operator import attrgetter

import torch

from refimpl.core.config import DecodeConfig
from refimpl.core.errors import InputError
from refimpl.core.sequence import Sequence
from refimpl.decoding.assembly import RunLimits, allocator_of, assemble
from refimpl.decoding.devices import require_current
from refimpl.decoding.memory import MemoryUse
from refimpl.decoding.prefill import prefill
from refimpl.decoding.rounds import run_round
from refimpl.decoding.sampling import RandomSource
from refimpl.decoding.timing import StageTimer
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts import Layout
from refimpl.models.adapter import Pair
from refimpl.scheduling import Scheduler, make_scheduler


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
        self.scheduler: Scheduler[Sequence] = make_scheduler(config)
        self.run_limits = RunLimits.of([*self.sequences, *expected], config)
        self.context = assemble(pair, self.run_limits, config, self.scheduler.window_size, source)
        self.checker = self.context.checker
        self.scheduler.allocator = allocator_of(self.layouts, self.run_limits, config)
        self.num_preemptions = self.num_prefix_hits = 0
        self.memory = MemoryUse()
        self._free_slots = list(range(self.context.target.layout.num_rows))[::-1]
        self.submitted_at = [0] * len(self.sequences)
        self._submit(self.sequences)

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

    @property
    def state_bytes(self) -> int:
        """Recurrent states of all rows, of all models."""
        return sum(cached.states.num_bytes for cached in self.context.models if cached.states)

    def rounds(self) -> Iterator[RoundRecord]:
        """Run until every sequence has finished, yielding each round once it is committed."""
        while not self.scheduler.done:
            yield self.run_one_round()

    @torch.inference_mode()
    def run_one_round(self) -> RoundRecord:
        """Admit, prefill, choose members, preempt those without room, run the round, release who has finished."""
        self.timer.begin()
        moves = self._num_moves()
        self.admit()
        plan, preempted = self.scheduler.choose()
        for sequence in preempted:
            self._preempt(sequence)
        self.checker.before_round(plan, self.scheduler)
        self._note_memory()
        num_blocks = self.scheduler.allocator.num_blocks_used
        members, ahead = (sorted(rows, key=attrgetter("slot")) for rows in (plan.members, plan.ahead))  # pool order
        outcomes = run_round(self.context, members, plan.chunks, ahead)
        for sequence in self.scheduler.complete(plan):
            self._release(sequence)
        self.checker.after_round(self.scheduler, self.layouts)
        return RoundRecord(
            self.scheduler.round_index - 1,
            plan.mode,
            tuple(outcomes),
            self.timer.take(),
            self._num_moves() - moves,
            num_blocks,
            tuple((chunk.sequence.index, chunk.count) for chunk in plan.chunks),
        )

    def submit(self, sequences: Seq[Sequence]) -> None:
        """Add sequences between rounds; they wait behind those that are there and as urgent.

        Raises:
            InputError: they are more, or longer, than the run was built for, see `max_model_len`; none is added then.
        """
        self.run_limits.require(sequences, len(self.sequences))
        self.sequences += sequences
        self.submitted_at += [self.scheduler.round_index] * len(sequences)
        self._submit(sequences)

    def _submit(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            sequence.draft_cached = 0 if self.run_limits.uses_draft else None
            if self.run_limits.uses_draft:
                sequence.draft_context = self.pair.require_draft().max_positions
        self.scheduler.submit(sequences)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence between rounds; what it has generated stays."""
        if sequence.finished:
            return
        sequence.stop_reason = "cancelled"
        for left in self.scheduler.cancel(sequence):
            self._release(left)

    def admit(self) -> None:
        """Let sequences into the window, and cache what is not left to rounds of their prompts, as every round does."""
        entered = self.scheduler.admit()
        for sequence in entered:
            sequence.slot = self._free_slots.pop()
            for cached in self.context.models:
                cached.note_cached(sequence, sequence.num_prefix_hits)
            self.num_prefix_hits += sequence.num_prefix_hits
        batch_size, left = self.scheduler.batch_size, self.scheduler.left_to_rounds
        with self.timer.stage("prefill"):
            for start in range(0, len(entered), batch_size):
                for cached in self.context.models:
                    rows = entered[start : start + batch_size]
                    prefill(cached, [row for row in rows if cached.feeds(row)], left=left)

    def _note_memory(self) -> None:
        """Who is resident, which K/V are in use for them, and how much of it is of cached tokens."""
        layout, allocator = self.context.target.layout, self.scheduler.allocator
        residents, blocks = self.scheduler.pool.window.values(), allocator.num_blocks_used
        slots = len(residents) * layout.columns if blocks is None else blocks * layout.block_size
        per_token = sum(each.shape.bytes_per_token for each in self.layouts)
        self.memory.note(len(residents), slots * per_token, lambda: allocator.num_cached(residents) * per_token)

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
            self.context.processors.forget(sequence)
            self._free_slots.append(sequence.slot)
            sequence.slot = -1

    def _num_moves(self) -> int:
        return sum(layout.num_moves for layout in self.layouts)
