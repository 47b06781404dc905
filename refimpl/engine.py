"""The loop: scheduler × layout × acceptance rule, from prompts to results."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from operator import attrgetter

import torch

from refimpl.acceptance import AcceptanceRule, make_rule
from refimpl.cached import CachedModel
from refimpl.config import CheckLevel, DecodeConfig
from refimpl.errors import InputError
from refimpl.invariants import Checker
from refimpl.kvstore import RowState
from refimpl.layouts import Layout, make_layout
from refimpl.memory import require_room
from refimpl.model import CausalLM, Pair
from refimpl.placement import PLACEMENTS, PoolSize
from refimpl.recorded import RecordedRounds
from refimpl.rounds import RoundContext, run_round
from refimpl.sampling import RandomSource
from refimpl.scheduling import Scheduler, make_scheduler
from refimpl.sequence import Sequence
from refimpl.timing import StageTimer
from refimpl.trace import RoundRecord

PREFILL_CHUNK_TOKENS = 512  # queries a row in one prefill pass, which bounds the mask
STABLE_PREFILL_TOKENS = 64  # queries a row in every prefill pass under shape-stable execution


def check_level(config: DecodeConfig, device: torch.device) -> CheckLevel:
    """The level in force: unless chosen, `device` on a CPU, but `host` elsewhere and for recorded rounds."""
    return config.checks or ("device" if device.type == "cpu" and not config.cuda_graphs else "host")


class Engine:
    """Runs sequences to their end, round by round.

    Args:
        pair: the models.
        sequences: host state, changed in place.
        config: method, batch size, acceptance rule, checks.
        source: replaces the keyed random numbers, for exhaustive enumeration.
    """

    def __init__(self, pair: Pair, sequences: Seq[Sequence], config: DecodeConfig, source: RandomSource | None = None):
        method = config.resolved_method
        if method.layout is None or method.scheduler is None:
            raise ValueError(f"{method.name} has no layout and no scheduler: it is decoded by refimpl.autoregressive")
        require_current(pair.device)
        self.pair, self.config, self.sequences = pair, config, list(sequences)
        self.checker = Checker(check_level(config, pair.device))
        self.scheduler: Scheduler[Sequence] = make_scheduler(
            method.scheduler, config.resolved_batch_size, config.resolved_window_size, config.aging_bound
        )
        self.window = verify_window(self.sequences)
        size = self._pool_size()
        self._free_slots = list(range(size.rows))[::-1]
        self._require_room(size)
        target = CachedModel(pair.target, self._make_layout(pair.target, size), "target")
        draft = CachedModel(pair.draft, self._make_layout(pair.draft, size), "draft")
        rule = make_rule(config, source)
        self.timer = StageTimer(pair.device)  # the first round begins when everything is allocated
        self.context = RoundContext(
            target=target,
            draft=draft,
            rule=rule,
            checker=self.checker,
            timer=self.timer,
            vocab_size=pair.vocab_size,
            logprobs=config.logprobs,
            window=self.window if config.shape_stable else None,
            recorded=self._make_recorded(target, draft, rule) if config.cuda_graphs else None,
        )
        self.scheduler.submit(self.sequences)
        self._in_round = False

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """Target's and draft's."""
        return self.context.target.layout, self.context.draft.layout

    @property
    def kv_bytes(self) -> int:
        """K/V pools of both models."""
        return sum(layout.pool.num_bytes for layout in self.layouts)

    def rounds(self) -> Iterator[RoundRecord]:
        """Run until every sequence has finished, yielding each round once it is committed."""
        while not self.scheduler.done:
            yield self.run_one_round()

    @torch.inference_mode()
    def run_one_round(self) -> RoundRecord:
        """Admit, prefill, choose members, run the round, let finished sequences go.

        Raises:
            InputError: an earlier round was interrupted, by an error or from the keyboard.
        """
        self.require_whole()
        self._in_round = True
        record = self._run_one_round()
        self._in_round = False
        return record

    def require_whole(self) -> None:
        """Raise InputError if a round was interrupted: sequences and K/V may be out of step then."""
        if self._in_round:
            raise InputError("the run was interrupted in the middle of a round and cannot go on: start it anew")

    def _run_one_round(self) -> RoundRecord:
        moves = self._num_moves()
        self._admit()
        plan = self.scheduler.select()
        self.checker.before_round(plan, self.scheduler)
        outcomes = run_round(self.context, sorted(plan.members, key=attrgetter("slot")))  # full batches: pool order
        for sequence in self.scheduler.complete(plan):
            self._release(sequence)
        index = self.scheduler.round_index - 1
        return RoundRecord(index, plan.mode, tuple(outcomes), self.timer.take(), self._num_moves() - moves)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence between rounds; what it has generated stays."""
        if not sequence.finished:
            sequence.stop_reason = "cancelled"
            for left in self.scheduler.cancel(sequence):
                self._release(left)

    def _pool_size(self) -> PoolSize:
        config = self.config
        return PoolSize.of_run(
            [s.prompt_len + s.max_new_tokens for s in self.sequences],
            window_size=self.scheduler.window_size,
            batch_size=config.resolved_batch_size,
            span=self.window,
            least_rows=config.resolved_batch_size if config.shape_stable else 0,
        )

    def _require_room(self, size: PoolSize) -> None:
        """Refuse the run while nothing is allocated, if pools of that size cannot fit."""
        config, pair = self.config, self.pair
        num_slots = PLACEMENTS[config.resolved_method.layout or ""].num_slots(size)
        bytes_per_token = pair.target.kv_shape.bytes_per_token + pair.draft.kv_shape.bytes_per_token
        require_room(num_slots, bytes_per_token, config.kv_memory_gib, pair.device)

    def _make_layout(self, model: CausalLM, size: PoolSize) -> Layout:
        config = self.config
        name = config.resolved_method.layout
        assert name is not None
        return make_layout(
            name,
            model.kv_shape,
            size.rows,
            size.columns,
            compaction_threshold=config.compaction_threshold,
            max_positions=model.max_positions,
            tagged=self.checker.covers("device"),
            block_rows=config.resolved_batch_size if config.shape_stable and model is self.pair.target else None,
        )

    def _make_recorded(self, target: CachedModel, draft: CachedModel, rule: AcceptanceRule) -> RecordedRounds:
        if self.checker.covers("device"):
            raise InputError(f"recorded rounds cannot be checked at level {self.checker.level}: choose host or off")
        if not (target.model.recordable and draft.model.recordable):
            raise InputError(f"{self.pair.name} cannot be recorded: its RoPE waits for the longest row in every pass")
        return RecordedRounds(
            target, draft, rule, vocab_size=self.pair.vocab_size, k=self.window - 1, stable=self.config.shape_stable
        )

    def _admit(self) -> None:
        entered = self.scheduler.admit()
        for sequence in entered:
            sequence.slot = self._free_slots.pop()
        batch_size = self.scheduler.batch_size
        with self.timer.stage("prefill"):
            for start in range(0, len(entered), batch_size):
                for cached in (self.context.target, self.context.draft):
                    prefill(cached, entered[start : start + batch_size])

    def _release(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            for layout in self.layouts:
                layout.release(sequence.slot)
            self._free_slots.append(sequence.slot)
            sequence.slot = -1

    def _num_moves(self) -> int:
        return sum(layout.num_moves for layout in self.layouts)


def require_current(device: torch.device) -> None:
    """Raise InputError for a CUDA device other than the current one, on which events and recordings would be made."""
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        raise InputError(f"the pair lies on {device}, not on the current device: call torch.cuda.set_device first")


def longest_row(sequences: Seq[Sequence]) -> int:
    """Tokens of the longest row that a run can come to."""
    return max(s.prompt_len + s.max_new_tokens for s in sequences)


def verify_window(sequences: Seq[Sequence]) -> int:
    """Tokens a row of the largest verify pass."""
    return max(s.num_speculative_tokens for s in sequences) + 1


def prefill(cached: CachedModel, sequences: Seq[Sequence]) -> None:
    """Cache all prompt tokens but the last, so that every sequence starts with lag 1 (INV-5)."""
    lengths = [s.seq_len - 1 for s in sequences]
    stable = cached.layout.block_rows is not None
    step = STABLE_PREFILL_TOKENS if stable else PREFILL_CHUNK_TOKENS
    rows = [RowState(s.slot, s.index, n, 0) for s, n in zip(sequences, lengths, strict=True)]
    device = cached.layout.shape.device
    for start in range(0, max(lengths, default=0), step):
        stop = start + step if stable else min(start + step, max(lengths))
        chunk = [s.token_ids[start:stop] + [0] * (stop - max(start, s.seq_len)) for s in sequences]
        tokens = torch.tensor([row[: stop - start] for row in chunk], device=device)
        cached.forward(cached.layout.prefill_block(rows, tokens, start), 1)
    cached.layout.end_prefill(rows)
    for sequence, length in zip(sequences, lengths, strict=True):
        if cached.role == "target":
            sequence.target_cached = length
        else:
            sequence.draft_cached = length
