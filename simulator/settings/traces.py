"""Traces: what the engine did round by round, and what services have seen arrive."""

import math
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import InputError, require
from refimpl.core.interrupts import tell
from refimpl.core.reading import is_file, is_folder, read_mappings
from simulator.settings.fields import MAX_TOKENS, POSITIVE
from simulator.settings.folders import find_data
from simulator.settings.tables import read_table
from simulator.settings.trace_checks import (
    CHUNK_COLUMNS,
    CHUNK_FIELDS,
    ROW_COLUMNS,
    ROW_FIELDS,
    STAGES,
    Lines,
    check_header,
    chunk_table,
    require_fields,
    row_table,
)

SERVICE_COLUMNS = {  # format -> (time column, prompt column, output column, seconds per unit of time)
    "plain": ("time_s", "prompt_tokens", "output_tokens", 1.0),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens", 1.0),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens", 1.0),
    "mooncake": ("timestamp", "input_length", "output_length", 1e-3),
}


@dataclass(frozen=True)
class EngineTrace:
    """A run of the engine.

    Attributes:
        path: where it was read from.
        header: settings of the run.
        rows: one line per row per round, columns `ROW_FIELDS`; ``num_moves`` and ``num_blocks``, NaN where the trace
            has none; ``looked_up``, 0 where it has none; ``survival``, None where it has none.
        chunks: one line per chunk of a prompt: sequence, tokens, and those fields of a row that belong to its round.
    """

    path: str
    header: dict[str, Any]
    rows: pd.DataFrame
    chunks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CHUNK_COLUMNS)))

    @property
    def rounds(self) -> pd.DataFrame:
        """One line per round: mode, rows, k and the stage seconds."""
        lines = pd.concat([self.rows, self.chunks.assign(k=0)]) if len(self.chunks) else self.rows
        first = lines.groupby("round", sort=True)
        frame = first[["mode", "k", *STAGES, "round_s", "num_moves", "num_blocks"]].first()
        return frame.assign(rows=first["kept"].count(), kept=first["kept"].sum(), accepted=first["accepted"].sum())

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts per row and round at most: the run's own, unless its requests agree on another number.

        Raises:
            InputError: the requests differ.
        """
        each = set(self.header["num_speculative_tokens_each"])
        shown = ", ".join(map(str, sorted(each)))
        require(len(each) == 1, f"{self.path}:1: requests draft {shown} tokens a round; a scenario has one k for all")
        return int(each.pop())

    def arrivals(self, clock: str) -> list[float]:
        """When every sequence came, ascending.

        Args:
            clock: ``seconds`` from the start of the run, or ``rounds``: just before the first round in which it could
                be admitted, if each takes one second.
        """
        size = self.header["num_sequences"]
        if clock == "seconds":
            times = self.header.get("arrival_s", [0.0] * size)
        else:
            times = [max(0.0, rounds - 0.5) for rounds in self.header.get("submitted_at", [0] * size)]
        return list(times)

    @property
    def round_end_s(self) -> list[float]:
        """Seconds from the start of the run to the end of every round.

        Raises:
            InputError: the trace does not say, as all its requests were there at the start.
        """
        times = self.header.get("round_end_s")
        require(times is not None, f"{self.path}:1: no round_end_s: all requests were there at the start of this run")
        return list(times or [])

    @property
    def reference_s(self) -> float | None:
        """Seconds of the reference pass around the run; None where it was not timed."""
        seconds = self.header.get("reference_s")
        return None if seconds is None else float(POSITIVE.check(seconds, f"{self.path}:1: reference_s"))

    @cached_property
    def documents(self) -> np.ndarray:
        """Number of the document of each prompt ``[sequences]``; each its own where the run does not say."""
        names = self.header.get("documents", range(self.header["num_sequences"]))
        return np.unique(np.array(names), return_inverse=True)[1]

    @cached_property
    def output_lens(self) -> list[int]:
        """Generated tokens of every sequence, in order of input."""
        kept = self.rows.groupby("sequence")["kept"].sum()
        return [int(kept.get(i, 0)) for i in range(self.header["num_sequences"])]

    def by_place(self, column: str) -> dict[tuple[int, int], Any]:
        """A column of the rows by sequence and its length before the round, of which it begins no other."""
        rows = self.rows
        return dict(zip(zip(rows["sequence"], rows["seq_len"], strict=True), rows[column], strict=True))

    def match_bits(self, sequence: int) -> np.ndarray:
        """What is known of the draft's proposals at each generated position: 1 right, 0 wrong, -1 never compared."""
        return self._bits[sequence]

    @cached_property
    def _bits(self) -> list[np.ndarray]:
        groups = dict(iter(self.rows.groupby("sequence")))
        none = self.rows.iloc[:0]
        return [self._bits_of(i, groups.get(i, none)) for i in range(self.header["num_sequences"])]

    def _bits_of(self, sequence: int, mine: pd.DataFrame) -> np.ndarray:
        start = mine["seq_len"].to_numpy() - self.header["prompt_lens"][sequence]
        accepted, drafted = mine["accepted"].to_numpy(), mine["drafted"].to_numpy()
        bits = np.full(int((start + accepted + 1).max(initial=0)) + 1, -1, dtype=np.int8)
        for at, good, tried in zip(start, accepted, drafted, strict=True):
            bits[at : at + good] = 1
            if good < tried:
                bits[at + good] = 0
        return bits


@lru_cache(maxsize=32)
def _read_engine_trace(path: str, modified_ns: int) -> EngineTrace:
    lines = read_mappings(path)
    number, header = next(lines, (0, {}))
    require(number > 0, f"{path}: contains no rounds")
    check_header(f"{path}:{number}", header)
    header |= {"aging_bound": math.inf} if header["aging_bound"] == "inf" else {}
    records, chunks = dict[int, list[Any]](), dict[int, list[Any]]()  # line -> values
    for number, record in lines:
        fields, columns, table = (
            (CHUNK_FIELDS, CHUNK_COLUMNS, chunks) if "chunk" in record else (ROW_FIELDS, ROW_COLUMNS, records)
        )
        require_fields(f"{path}:{number}", record, fields)
        table[number] = [record.get(name) for name in columns]
    require(bool(records), f"{path}: contains no rounds")
    rows = row_table(Lines(path, [*records]), header, [*records.values()])
    return EngineTrace(path, header, rows, chunk_table(Lines(path, [*chunks]), header, [*chunks.values()]))


def read_engine_trace(path: str | Path) -> EngineTrace:
    """Read a trace that ``raggedspec … --trace`` wrote; or the shipped one of that name.

    Raises:
        InputError: no such file, another schema, a missing field, an impossible number, or rounds that are missing at
            the end; names file, line and field.
    """
    found = find_data(path)
    if found is None:
        raise InputError(f"{path}: is a folder, give its traces" if is_folder(path) else f"{path}: no such trace")
    return _read_engine_trace(str(found), found.stat().st_mtime_ns)


@dataclass(frozen=True)
class ServiceTrace:
    """Arrivals that a service has seen.

    Attributes:
        time_s: arrival times from 0, never decreasing ``[n]``.
        prompt_tokens, output_tokens: lengths, at least 1 ``[n]``.
    """

    time_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray


def read_service_trace(path: str | Path, layout: str = "auto") -> ServiceTrace:
    """Read a CSV or JSONL trace in the plain, Azure, BurstGPT or Mooncake layout.

    Requests without output are left out, and counted on stderr. What Mooncake's ``hash_ids`` say about shared blocks is
    not read, which is said there, too.

    Raises:
        InputError: no such file, unknown columns, decreasing times, prompts below 1, or no request with an output.
    """
    path = Path(path)
    require(is_file(path), f"{path}: no such trace")
    frame = read_table(path)
    name = _detect(path, frame, layout)
    time_column, prompt_column, output_column, unit_s = SERVICE_COLUMNS[name]
    time_s = _times(path, frame[time_column]) * unit_s
    keep = pd.to_numeric(frame[output_column], errors="coerce").to_numpy() != 0  # empty where a request failed
    require(bool(keep.any()), f"{path}: contains no requests but failed ones")
    if not keep.all():
        tell_once(f"{path}: {len(keep) - keep.sum()} of {len(keep)} requests have no output, and are left out")
    if name == "mooncake" and "hash_ids" in frame:
        tell_once(f"{path}: hash_ids are not read: workload.common says what requests share")
    lengths = [_lengths(path, frame[column], keep) for column in (prompt_column, output_column)]
    return ServiceTrace(time_s[keep] - time_s[keep][0], *lengths)


@cache
def tell_once(line: str) -> None:
    """Print a line to stderr, however often it is asked for; not by worker processes, which read the same files."""
    if parent_process() is None:
        tell(line)


def _detect(path: Path, frame: pd.DataFrame, layout: str) -> str:
    fitting = [n for n, columns in SERVICE_COLUMNS.items() if set(columns[:3]) <= set(frame.columns)]
    if layout != "auto":
        fitting = [n for n in fitting if n == layout]
    known = "; ".join(f"{n}: {', '.join(map(str, c[:3]))}" for n, c in SERVICE_COLUMNS.items())
    require(bool(fitting), f"{path}: columns {', '.join(map(str, frame.columns))} fit no known format ({known})")
    require(len(frame) > 0, f"{path}: contains no requests")
    return fitting[0]


def _times(path: Path, column: pd.Series) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(column):
        other = np.flatnonzero([not isinstance(value, str) for value in column])
        place = other[0] + 1 if other.size else 0
        require(other.size == 0, f"{path}: {column.name}: missing, or numbers beside times, in record {place}")
        try:
            moments = pd.to_datetime(column, format="ISO8601", utc=True).dt.tz_localize(None)
            column = moments.astype("datetime64[ns]").astype("int64") * 1e-9
        except ValueError as error:
            raise InputError(f"{path}: {column.name}: {str(error).splitlines()[0]}") from None
    times = column.to_numpy(dtype=float)
    bad = np.flatnonzero(~np.isfinite(times))
    require(bad.size == 0, f"{path}: {column.name}: missing or infinite in record {bad[0] + 1 if bad.size else 0}")
    back = np.flatnonzero(np.diff(times) < 0)
    require(
        back.size == 0, f"{path}: {column.name} decreases at record {back[0] + 2 if back.size else 0}: sort by time"
    )
    return times


def _lengths(path: Path, column: pd.Series, keep: np.ndarray) -> np.ndarray:
    """The lengths of the records that are kept."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)
    right = (values >= 1) & (values <= MAX_TOKENS) & (values == np.floor(values))
    bad = np.flatnonzero(keep & ~right)
    expected = f"a whole number of tokens in [1, {MAX_TOKENS}]"
    require(bad.size == 0, f"{path}: {column.name} must be {expected} in record {bad[0] + 1 if bad.size else 0}")
    return values[keep].astype(int)
