"""What a simulation writes down: one record per request, one line per round, optionally one line per row."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from refimpl.core.sequence import MOST_LAG
from simulator.service.streams import TILE_POSITIONS
from simulator.settings.trace_checks import STAGES as STAGES

Columns = dict[str, np.ndarray]

ROW_COLUMNS = (
    "replica", "round", "mode", "row", "sequence", "seq_len", "draft_lag", "k", "drafted", "accepted", "kept",
    "finished", "slot",
)  # fmt: skip
REQUEST_COLUMNS = (
    "request", "replica", "prompt_tokens", "output_tokens", "generated_tokens", "arrival_s", "admitted_s", "begun_s",
    "first_token_s", "finished_s", "rounds", "drafted", "accepted", "longest_wait_rounds", "longest_gap_s", "cut",
)  # fmt: skip


class RoundLine(NamedTuple):
    """One round of a replica; what has a default is known at its end.

    Attributes:
        replica, start_s: where and when.
        noise: factor on the stages' seconds.
        prefill_s, draft_s, verify_s, realign_s, host_s: seconds of each stage before noise.
        mode: how the scheduler chose the members.
        rows, live: rows in the batch, and those of them that have not finished.
        k: drafts of the batch.
        passes: of the draft, one token a row each.
        width: columns that the first query of the widest row could look back at.
        drafted, accepted, kept: tokens of all rows.
        kv_tokens: slots of the window's tokens, and of the working batch, at the end, before what is finished leaves.
        waiting, window: requests that have no K/V yet, and those that have, at the end likewise.
    """

    replica: int
    start_s: float
    noise: float
    prefill_s: float
    draft_s: float
    verify_s: float
    realign_s: float
    host_s: float
    mode: str
    rows: int
    live: int
    k: int
    passes: int
    width: int
    drafted: int = 0
    accepted: int = 0
    kept: int = 0
    kv_tokens: int = 0
    waiting: int = 0
    window: int = 0

    @property
    def stages(self) -> tuple[float, ...]:
        """Seconds of each stage, before noise."""
        return tuple(getattr(self, name) for name in STAGES)


BEGUN = len(RoundLine._fields) - len(RoundLine._field_defaults)  # first fields, known when a round begins
ROUND_TYPES = RoundLine.__annotations__ | {"mode": object}  # as columns have them
BLOCK_ROUNDS = 2**16  # kept as lines at most


class Stages(NamedTuple):
    """Seconds of each stage of a round, before noise."""

    prefill_s: float
    draft_s: float
    verify_s: float
    realign_s: float
    host_s: float


class Request:
    """A request on its way; what a scheduler may see is what `Schedulable` names.

    Attributes:
        sequence: place in the workload.
        prompt_len: tokens.
        output_len: tokens it will generate; hidden from the scheduler.
        cut: whether it would generate more, had it the budget.
        k: drafts a round, at most.
        priority: of its class; less is more urgent.
        left: tokens left in its budget.
        to_prefill: tokens that must be cached before it can decode, while its prompt is cached in chunks.
        generated: tokens so far.
        runs: right proposals from each generated position on, a byte each, as far as it has come, see
            `service.acceptance`; empty when it has finished.
        draw: its place, and the number of a tile of positions → their runs.
        text: its place, start and stop → what its tokens between them are, equal for equal tokens.
        num_evaluated, num_accepted: drafts that were decided on, and accepted, at positions that were committed, as far
            as a draft budget may ask.
        num_prefix_hits: leading tokens whose blocks others had filled when it was admitted.
        has_state: whether a round has run since it was admitted, so that a head can draft for it.
        has_kv: whether its K/V come with it to the replica that is to decode it.
        slot: row of the K/V pool while it is in the window.
        padded_len: tokens and pads after its last round; the published code groups by it.
        last_kept: tokens of its last round.
        begun_s: start of its first round, or of the one that fed the first chunk of its prompt.
        last_round: round in which it last ran, or the one before it was admitted.
        last_end_s: end of that round; NaN before the first.
        longest_gap_s: longest time between two rounds so far.
        on_finish: called once, when the request has finished.
    """

    __slots__ = (
        "accepted", "admitted_s", "arrival_s", "begun_s", "blocks", "cut", "draft_lag", "drafted", "draw", "finished",
        "finished_s", "first_token_s", "generated", "has_kv", "has_state", "k", "last_end_s", "last_kept",
        "last_round", "left", "longest_gap_s", "longest_wait", "num_accepted", "num_evaluated", "num_prefix_hits",
        "on_finish", "output_len", "padded_len", "priority", "prompt_len", "replica", "rounds", "runs", "seq_len",
        "sequence", "slot", "text", "ticket", "to_prefill",
    )  # fmt: skip

    def __init__(
        self,
        sequence: int,
        lengths: tuple[int, int, int],
        draw: Callable[[int, int], bytes],
        text: Callable[[int, int, int], Hashable],
        arrival_s: float,
        priority: int = 0,
    ):
        self.sequence, self.draw, self.text, self.arrival_s = sequence, draw, text, arrival_s
        self.priority = priority
        self.ticket, self.runs = -1, b""
        self.blocks: list[int] = []
        self.num_prefix_hits = self.num_evaluated = self.num_accepted = 0
        self.has_state = self.has_kv = False
        self.prompt_len, output_len, self.left = lengths
        self.output_len, self.cut = min(output_len, self.left), output_len > self.left
        self.seq_len, self.draft_lag, self.finished = self.prompt_len, 1, False
        self.generated = self.last_kept = self.last_round = self.rounds = 0
        self.drafted = self.accepted = self.longest_wait = self.k = self.to_prefill = 0
        self.replica = self.slot = -1
        self.padded_len = self.prompt_len
        self.admitted_s = self.begun_s = self.first_token_s = self.finished_s = self.last_end_s = float("nan")
        self.longest_gap_s = 0.0
        self.on_finish: Callable[[], Any] | None = None

    @property
    def cache_state(self) -> int:
        """What groups have in common beside the length: as `Sequence.cache_state`, on its `draft_lag`."""
        return self.draft_lag if self.k and self.draft_lag <= MOST_LAG else min(self.draft_lag, 1)

    @property
    def num_cached(self) -> int:
        """Tokens that the target has cached between rounds: all but the last."""
        return self.seq_len - 1

    @property
    def cached_by_all(self) -> int:
        """Tokens that both models have cached between rounds."""
        return self.seq_len - max(1, self.draft_lag) - self.to_prefill

    @property
    def cached_at_entry(self) -> int:
        """Tokens that both models cache where the whole text is cached as it enters."""
        return self.seq_len - 1

    @property
    def most_tokens(self) -> int:
        """Prompt and whole budget."""
        return self.prompt_len + self.generated + self.left

    @property
    def draft_limit(self) -> int:
        """Drafts that it can use in the coming round."""
        return min(self.k, self.left - 1)

    def block_tokens(self, start: int, stop: int) -> Hashable:
        """What its tokens from `start` to `stop` are."""
        return self.text(self.sequence, start, stop)

    def lose_kv(self) -> None:
        """As it was before it was admitted anywhere, but for the tokens that it has."""
        self.blocks, self.num_prefix_hits, self.to_prefill, self.slot = [], 0, 0, -1
        self.has_state = self.has_kv = False

    def begin(self, start_s: float) -> None:
        """A round of it, or of a chunk of its prompt, began then; the first is kept, whether it is preempted or not."""
        if self.begun_s != self.begun_s:  # NaN
            self.begun_s = start_s

    def next_run(self) -> int:
        """Right proposals from the next token on; draws them where nobody has asked so far."""
        while self.generated >= len(self.runs):
            self.runs += self.draw(self.sequence, len(self.runs) // TILE_POSITIONS)
        return self.runs[self.generated]

    def answer(self) -> None:
        """Call `on_finish`: the client has its answer."""
        if self.on_finish is not None:
            self.on_finish()
            self.on_finish = None

    def as_row(self) -> tuple[Any, ...]:
        """Values of `REQUEST_COLUMNS`."""
        return (
            self.sequence, self.replica, self.prompt_len, self.output_len, self.generated, self.arrival_s,
            self.admitted_s, self.begun_s, self.first_token_s, self.finished_s, self.rounds, self.drafted,
            self.accepted, self.longest_wait, self.longest_gap_s, self.cut,
        )  # fmt: skip


class EventLog:
    """Everything that happened in one replication; all but the latest rounds in columns, a fifth as large as lines.

    Attributes:
        lines: fields of `RoundLine` of the latest rounds, in order of their ends.
        cut_lines: the same of the rounds that ran when the clock was stopped, with no tokens.
        rows: tuples of `ROW_COLUMNS`, kept only when asked for.
        chunks: replica, round, request and tokens of each chunk of a prompt, kept with the rows.
        ends_before: of each live row of each of `lines`, the second at which its round before ended; NaN before its
            first.
        num_preemptions: times that a request was sent back because the blocks ran out.
        num_to_cache, num_prefix_hits: replica → tokens that requests needed in its cache when they were admitted, and
            those of them that were there.
        last_round_s: end of the last round.
        end_s: end of the observation: the end of the study, or of the last round where nothing could follow it.
    """

    def __init__(self, *, keep_rows: bool = False):
        self.lines: list[tuple[Any, ...]] = []
        self.cut_lines: list[tuple[Any, ...]] = []
        self.rows: list[tuple[Any, ...]] | None = [] if keep_rows else None
        self.chunks: list[tuple[int, int, int, int]] | None = [] if keep_rows else None
        self.ends_before: list[float] = []
        self.requests: list[Request] = []
        self.num_preemptions = self.num_rounds = 0
        self.num_to_cache, self.num_prefix_hits = Counter[int](), Counter[int]()
        self.last_round_s = self.end_s = 0.0
        self._blocks: list[Columns] = []
        self._gaps: list[Columns] = []

    def note(self, line: tuple[Any, ...]) -> None:
        """Write down a round whose rows are in `ends_before`."""
        self.lines.append(line)
        if len(self.lines) == BLOCK_ROUNDS:
            self._pack()

    def _pack(self) -> None:
        """Turn `lines` into columns, and `ends_before` into counts of equal ones in each round."""
        columns, ended_s = _columns(self.lines, ROUND_TYPES), np.array(self.ends_before, dtype=float)
        place = np.repeat(np.arange(self.num_rounds, self.num_rounds + len(self.lines)), columns["live"])
        first = np.flatnonzero((np.diff(place, prepend=-1) != 0) | (np.diff(ended_s, prepend=np.nan) != 0))
        gaps = {"round": place[first], "ended_s": ended_s[first], "rows": np.diff(first, append=len(place))}
        self._gaps.append({name: values[~np.isnan(gaps["ended_s"])] for name, values in gaps.items()})
        self._blocks.append(columns)
        self.num_rounds += len(self.lines)
        self.lines, self.ends_before = [], []

    def end_rows(self, live: Sequence[Request]) -> None:
        """Note which rows of the latest round have finished after it was written down."""
        place = ROW_COLUMNS.index("finished")
        for at, request in enumerate(live, -len(live)):
            if self.rows is not None:
                self.rows[at] = (*self.rows[at][:place], request.finished, *self.rows[at][place + 1 :])

    @property
    def rounds(self) -> list[RoundLine]:
        """Every round, by itself; the noise is not in the stage seconds. As all that follows, for after the run."""
        fields = [self._fields[name][: self.num_rounds].tolist() for name in RoundLine._fields]
        return [RoundLine._make(line) for line in zip(*fields, strict=True)]

    @cached_property
    def request_columns(self) -> Columns:
        """`REQUEST_COLUMNS` of every request that has arrived; NaN times where it has not come so far (censored)."""
        return _columns([request.as_row() for request in self.requests], dict.fromkeys(REQUEST_COLUMNS))

    @property
    def gaps(self) -> Columns:
        """``round``, ``ended_s``, ``rows``: so many rows of that round had their last one before, which ended then."""
        return self._packed[1]

    @property
    def _fields(self) -> Columns:
        """Fields of `RoundLine` of every round, and behind them of those that ran when the clock stopped."""
        return self._packed[0]

    @cached_property
    def _packed(self) -> tuple[Columns, Columns]:
        self._pack()
        return _joined([*self._blocks, _columns(self.cut_lines, ROUND_TYPES)]), _joined(self._gaps)

    @cached_property
    def columns_with_cut(self) -> Columns:
        """As `round_columns`, and behind them the rounds that ran when the clock stopped, as long as they would be."""
        stages = {name: self._fields[name] * self._fields["noise"] for name in STAGES}
        return self._fields | stages | {"round_s": np.sum(list(stages.values()), axis=0)}

    @property
    def round_columns(self) -> Columns:
        """Fields of `RoundLine` and ``round_s`` of every round; the noise is multiplied into the stage seconds."""
        return {name: values[: self.num_rounds] for name, values in self.columns_with_cut.items()}

    def request_frame(self) -> pd.DataFrame:
        """One line per request."""
        return pd.DataFrame(self.request_columns)

    def round_frame(self) -> pd.DataFrame:
        """One line per round."""
        return pd.DataFrame(self.round_columns)

    def row_frame(self) -> pd.DataFrame:
        """One line per row per round."""
        return pd.DataFrame.from_records(self.rows or [], columns=list(ROW_COLUMNS))


def _columns(lines: Sequence[tuple[Any, ...]], types: Mapping[str, type | None]) -> Columns:
    values = zip(*lines, strict=True) if lines else ([] for _ in types)
    return {name: np.array(column, dtype=types[name]) for name, column in zip(types, values, strict=True)}


def _joined(blocks: Sequence[Columns]) -> Columns:
    """Blocks of columns, one behind the other; they are emptied, so that nothing large is there twice."""
    return {name: np.concatenate([block.pop(name) for block in blocks]) for name in list(blocks[0])}
