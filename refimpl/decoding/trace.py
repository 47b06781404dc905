"""What happened, round by round: records in memory, NDJSON on disk."""

import json
import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from refimpl.core.config import DecodeConfig
from refimpl.core.engine_settings import EngineSettings
from refimpl.core.files import write_whole
from refimpl.core.formats import TRACE_SCHEMA
from refimpl.core.records import RowOutcome
from refimpl.core.sequence import Sequence

OF_ROW = (
    "sequence", "seq_len", "draft_lag", "k", "drafted", "accepted", "kept", "next_token", "finished", "looked_up",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round.

    Attributes:
        round: index, from 0.
        mode: why the members were chosen (static, fifo, grouped, fallback, aged, continuous, overlapped).
        rows: one outcome per unfinished member, in row order.
        stage_s: seconds of the round by stage, with ``host_s`` and ``round_s``.
        num_moves: fused gathers and write-backs of both layouts in this round.
        num_blocks: blocks in use during the round, where the layout is paged.
        chunks: sequence and number of tokens, for each prompt of which a part was cached in the round.
    """

    round: int
    mode: str
    rows: tuple[RowOutcome, ...]
    stage_s: dict[str, float]
    num_moves: int
    num_blocks: int | None = None
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def grouped(self) -> bool:
        """Whether at least two rows of equal length ran together; a row alone is no group."""
        return self.mode == "grouped" and len(self.rows) > 1

    def as_rows(self) -> Iterator[dict[str, Any]]:
        """One flat row per member, then one per chunk; what belongs to the round is repeated."""
        blocks = {} if self.num_blocks is None else {"num_blocks": self.num_blocks}
        for i, row in enumerate(self.rows):
            yield {
                "round": self.round,
                "mode": self.mode,
                "row": i,
                **{name: getattr(row, name) for name in OF_ROW},
                **({"survival": row.survival} if row.survival else {}),
                "num_moves": self.num_moves,
                **blocks,
                **self.stage_s,
            }
        of_round = {"round": self.round, "mode": self.mode, "num_moves": self.num_moves, **blocks, **self.stage_s}
        yield from ({"sequence": sequence, "chunk": count, **of_round} for sequence, count in self.chunks)


def trace_header(config: DecodeConfig, sequences: Seq[Sequence], environment: dict[str, Any]) -> dict[str, Any]:
    """Settings of a finished run, as the first line of its trace holds them.

    Args:
        config: the run's settings, those of the sampling included.
        sequences: in input order; lengths, budgets and drafts a round are theirs, since a request may have its own.
        environment: further fields: what the run ran on.
    """
    method = config.resolved_method
    shared = [(field, getattr(config, field.name)) for field in fields(EngineSettings)]
    return {
        **{field.name: value for field, value in shared if value != field.default},
        "method": config.method,
        "layout": method.layout,
        "scheduler": method.scheduler,
        "acceptance": config.resolved_acceptance,
        "batch_size": config.resolved_batch_size,
        "window_size": config.resolved_window_size,
        "aging_bound": "inf" if config.aging_bound == math.inf else config.aging_bound,  # JSON knows no infinite number
        "compaction_threshold": config.compaction_threshold,
        **({} if config.resolved_token_budget is None else {"token_budget": config.resolved_token_budget}),
        **({"shape_stable": True} if config.shape_stable else {}),
        "num_speculative_tokens": config.num_speculative_tokens,
        "num_speculative_tokens_each": [s.num_speculative_tokens for s in sequences],
        "max_new_tokens": config.max_new_tokens,
        "max_new_tokens_each": [s.max_new_tokens for s in sequences],
        **({"priority_each": [s.priority for s in sequences]} if any(s.priority for s in sequences) else {}),
        **asdict(config.sampling),
        **asdict(config.drafting),
        "num_sequences": len(sequences),
        "prompt_lens": [s.prompt_len for s in sequences],
        "output_lens": [s.num_generated for s in sequences],
        **environment,
    }


def number_texts(sequences: Seq[Sequence], block_size: int) -> list[list[int]]:
    """For each sequence, a number for each of its full blocks: equal for equal texts up to the end of the block."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    numbers: list[list[int]] = []
    for sequence in sequences:
        mine = [0]
        for start in range(0, sequence.seq_len - block_size + 1, block_size):
            text = mine[-1], sequence.block_tokens(start, start + block_size)
            mine.append(known.setdefault(text, len(known) + 1))
        numbers.append(mine[1:])
    return numbers


def write_trace(path: Path, header: dict[str, Any], rounds: Iterable[RoundRecord]) -> None:
    """Write a trace: the header on the first line, then one line per row per round.

    Raises:
        InputError: the file cannot be written.
    """
    lines = [json.dumps({"schema": TRACE_SCHEMA, **header})]
    lines += [json.dumps(row) for record in rounds for row in record.as_rows()]
    write_whole(path, lines)
