"""Runs a batch and keeps what each verify pass was fed: tokens, positions, mask, and what every K/V slot holds."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from jaxtyping import Float
from torch import Tensor

from refimpl.core.config import make_config
from refimpl.core.errors import InputError, require
from refimpl.core.keywords import Settings
from refimpl.core.records import RowOutcome
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts.store import Block
from refimpl.models.adapter import CausalLM, Pair
from refimpl.requests import Prompt, listed, prepare

KINDS = ("pad", "free", "hole", "prompt", "committed", "accepted", "dropped", "rejected")


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """One row of a verify pass: q tokens are fed, `width` slots of K/V can be looked at.

    Attributes:
        sequence: index of the sequence.
        prompt_len: tokens of its prompt.
        seq_len: real tokens before the round.
        outcome: what the round did to it; None for a finished row that a static batch still carries.
        tokens: ids that are fed ``[q]``: the last committed token, then the drafts.
        position_ids: of the tokens ``[q]``.
        slot_positions: position in the row that each slot was written for ``[width]``, -1 where nothing was.
        slot_tokens: id that each slot was written for ``[width]``, -1 where nothing was.
        visible: whether each token sees each slot ``[q, width]``.
    """

    sequence: int
    prompt_len: int
    seq_len: int
    outcome: RowOutcome | None
    tokens: np.ndarray
    position_ids: np.ndarray
    slot_positions: np.ndarray
    slot_tokens: np.ndarray
    visible: np.ndarray

    @property
    def kinds(self) -> list[str]:
        """What each slot is, one of `KINDS` ``[width]``.

        No token sees a ``pad``, in front of the row, a ``hole`` within it, or a ``free`` slot behind it. The others are
        seen: ``prompt`` and ``committed`` before the round, ``accepted`` and ``rejected`` drafts of it, and ``dropped``
        ones, which were accepted but not kept.
        """
        seen = self.visible.any(axis=0) & (self.slot_positions >= 0)
        begun, left = np.logical_or.accumulate(seen), np.logical_or.accumulate(seen[::-1])[::-1]
        unseen = np.where(begun & left, "hole", np.where(begun, "free", "pad")).tolist()
        slots = zip(self.slot_positions.tolist(), seen, unseen, strict=True)
        return [self._kind(position) if live else other for position, live, other in slots]

    def _kind(self, position: int) -> str:
        if position < self.seq_len:
            return "prompt" if position < self.prompt_len else "committed"
        accepted, kept = (self.outcome.accepted, self.outcome.kept) if self.outcome else (0, 0)
        draft = position - self.seq_len
        return "rejected" if draft >= accepted else "accepted" if draft < kept else "dropped"


@dataclass(frozen=True, slots=True)
class WatchedRound:
    """A round and what its verify pass was fed.

    Attributes:
        record: what the engine reports.
        rows: in the order of the batch, finished ones included; none where `continuous` has cached prompts alone.
    """

    record: RoundRecord
    rows: tuple[WatchedRow, ...]

    @property
    def width(self) -> int:
        """Slots that the rows can look at; 0 for a round without rows, which has cached prompts alone."""
        return len(self.rows[0].slot_positions) if self.rows else 0


def watch(
    pair: Pair, prompts: Seq[Prompt], *, max_prompt_tokens: int | None = None, **settings: Unpack[Settings]
) -> Iterator[WatchedRound]:
    """Decode prompts round by round; see `refimpl.generate` for the arguments, with no `arrival_s` in a Request.

    Example::

        first = next(watch(load_pair("tiny"), ["def main(", "import os"], method="eqspec", batch_size=2))

    Raises:
        InputError: impossible settings or prompts, a method without rounds, recorded rounds, or checks below
            ``device``, without which slots do not know what they hold.
        InvariantViolation: the engine's state broke an invariant; the rounds before have been yielded.
    """
    config = make_config(**{**settings, "checks": settings.get("checks") or "device"})
    if config.resolved_method.layout is None or config.cuda_graphs or config.checks in ("off", "host"):
        raise InputError("only a method with rounds can be watched, not recorded, with checks of device or oracle")
    prompts = listed(prompts)
    in_time = any(isinstance(prompt, Request) and prompt.arrival_s for prompt in prompts)
    require(not in_time, "watched prompts are all there at the start: leave out their arrival_s")
    sequences = prepare(pair, prompts, config, max_prompt_tokens)
    model = _WatchedModel(pair.target)
    engine = Engine(replace(pair, target=model), sequences, config)
    layout = engine.context.target.layout
    return (
        _watched(record, model.block, [sequences[row.sequence] for row in layout.rows])
        if record.rows
        else WatchedRound(record, ())
        for record in engine.rounds()
    )


class _WatchedModel:
    """A model that remembers the last block it was fed, and is fed nothing but whole blocks."""

    def __init__(self, model: CausalLM):
        self._model = model
        self.vocab_size, self.max_positions = model.vocab_size, model.max_positions
        self.recordable, self.mixes_rows, self.maskless_queries = model.recordable, model.mixes_rows, 0
        self.forward_packed, self.kv_shape = None, model.kv_shape
        self.fresh_row, self.fresh_kv = model.fresh_row, model.fresh_kv

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """As the model."""
        self.block = block.of_members()
        return self._model.forward(block, num_logits)


def _watched(record: RoundRecord, block: Block, members: Seq[Sequence]) -> WatchedRound:
    """The last block of a round is its verify pass, with a row for each member."""
    assert block.tags is not None
    outcomes = {row.sequence: row for row in record.rows}
    fed = record.rows[0].k + 1  # what fills up a fixed window is no draft
    queries = (block.tokens[:, :fed], block.position_ids[:, :fed], block.mask[:, 0, :fed], block.tags)
    tokens, positions, visible, tags = (values.numpy(force=True) for values in queries)
    rows = []
    for i, member in enumerate(members):
        outcome = outcomes.get(member.index)
        seq_len = outcome.seq_len if outcome else member.seq_len
        slots = tags[i, :, 1].copy(), tags[i, :, 2].copy()
        row = (member.index, member.prompt_len, seq_len, outcome, tokens[i], positions[i], *slots, visible[i])
        rows.append(WatchedRow(*row))
    return WatchedRound(record, tuple(rows))
