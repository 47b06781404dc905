"""Whether the header, the rows and the chunks of an engine trace can be those of a run."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from refimpl.core.errors import require, shown
from refimpl.core.formats import TRACE_SCHEMA
from refimpl.core.request import PRIORITY
from refimpl.core.values import MAX_SPECULATIVE_TOKENS
from simulator.settings.fields import COUNT, MAX_TOKENS, NON_NEGATIVE, WHOLE, Range

HEADER_FIELDS = (
    "method", "layout", "scheduler", "batch_size", "window_size", "aging_bound", "num_speculative_tokens",
    "max_new_tokens", "num_sequences", "prompt_lens", "num_speculative_tokens_each", "max_new_tokens_each", "device",
    "pair",
)  # fmt: skip
DRAFTS = Range(0, MAX_SPECULATIVE_TOKENS, integer=True)
EACH_FIELDS = {  # a number per sequence
    "prompt_lens": COUNT, "output_lens": WHOLE, "max_new_tokens_each": COUNT, "num_speculative_tokens_each": DRAFTS,
    "arrival_s": NON_NEGATIVE, "submitted_at": WHOLE, "priority_each": PRIORITY,
}  # fmt: skip
NUMBER_FIELDS = {"batch_size": COUNT, "num_sequences": COUNT, "max_new_tokens": COUNT, "num_speculative_tokens": DRAFTS}
ROW_FIELDS = (
    "round", "mode", "row", "sequence", "seq_len", "draft_lag", "k", "drafted", "accepted", "kept", "next_token",
    "finished", "draft_s", "verify_s", "realign_s", "prefill_s", "host_s", "round_s",
)  # fmt: skip
STAGES = ("prefill_s", "draft_s", "verify_s", "realign_s", "host_s")
CHUNK_FIELDS = ("round", "mode", "sequence", "chunk", *STAGES, "round_s")
OF_ROUNDS = ("num_moves", "num_blocks")
ROW_COLUMNS = (*ROW_FIELDS, *OF_ROUNDS, "record_s", "looked_up", "survival")
CHUNK_COLUMNS = (*CHUNK_FIELDS, *OF_ROUNDS, "record_s")
COUNTS = ("round", "row", "sequence", "seq_len", "draft_lag", "k", "drafted", "accepted", "kept", "looked_up")
CHUNK_COUNTS = ("round", "sequence", "chunk")


def check_header(where: str, header: dict[str, Any]) -> None:
    """Raise InputError for another schema, missing fields, and numbers that no run has."""
    schema = header.get("schema")
    require(schema == TRACE_SCHEMA, f"{where}: schema must be {TRACE_SCHEMA}, not {shown(schema)}")
    require_fields(where, header, HEADER_FIELDS)
    for name, limits in NUMBER_FIELDS.items():
        limits.check(header[name], f"{where}: {name}")
    size = header["num_sequences"]
    for name in EACH_FIELDS.keys() & header.keys():
        each = header[name]
        complete = isinstance(each, list) and len(each) == size
        require(complete, f"{where}: {name} must contain {size} numbers, one per sequence")
        for i, value in enumerate(each):
            EACH_FIELDS[name].check(value, f"{where}: {name}[{i}]")


def require_fields(where: str, record: dict[str, Any], names: Iterable[str]) -> None:
    """Raise InputError unless a line has these fields."""
    missing = [name for name in names if name not in record]
    require(not missing, f"{where}: missing {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Lines:
    """Numbers of the lines of a file that make the rows of a table."""

    path: str
    numbers: Seq[int]

    def require(self, right: Any, message: str) -> None:
        """Raise InputError that names the line of the first row that is not right ``[rows]``."""
        bad = np.flatnonzero(~np.asarray(right, dtype=bool))
        require(bad.size == 0, f"{self.path}:{self.numbers[bad[0]] if bad.size else 0}: {message}")


def row_table(lines: Lines, header: dict[str, Any], records: list[list[Any]]) -> pd.DataFrame:
    """The rows, `ROW_COLUMNS`, once their numbers are possible and no sequence breaks off; raises InputError."""
    frame = pd.DataFrame.from_records(records, columns=list(ROW_COLUMNS))
    frame["looked_up"] = frame["looked_up"].map(lambda value: value or 0)
    _check_numbers(lines, header, frame, COUNTS)
    lines.require(frame["accepted"] <= frame["drafted"], "accepted must be at most drafted")
    lines.require(frame["kept"] <= frame["drafted"] + 1, "kept must be at most drafted + 1")
    lines.require(~frame.duplicated(["round", "row"]), "a row is given twice in a round")
    generated = frame["seq_len"] - np.array(header["prompt_lens"])[frame["sequence"]]
    lines.require(generated >= 0, "seq_len must be the prompt and more")
    made = frame.groupby("sequence")["kept"].sum().reindex(range(header["num_sequences"]), fill_value=0)
    ended = frame.groupby("sequence")["finished"].last().reindex(made.index, fill_value=False)
    cut = ended.index[made != header["output_lens"] if "output_lens" in header else ~ended.astype(bool)]
    require(len(cut) == 0, f"{lines.path}: breaks off: sequence {cut[0] if len(cut) else 0} has not all of its rounds")
    return frame


def chunk_table(lines: Lines, header: dict[str, Any], records: list[list[Any]]) -> pd.DataFrame:
    """The chunks, `CHUNK_COLUMNS`, once their numbers are possible; raises InputError."""
    frame = pd.DataFrame.from_records(records, columns=list(CHUNK_COLUMNS))
    _check_numbers(lines, header, frame, CHUNK_COUNTS)
    return frame


def _check_numbers(lines: Lines, header: dict[str, Any], frame: pd.DataFrame, counts: Iterable[str]) -> None:
    """Make the numbers of a table plain; raise InputError where one is impossible."""
    frame["record_s"] = [0.0 if value is None else value for value in frame["record_s"]]
    for name in (*counts, *STAGES, "record_s", "round_s"):
        numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float)
        whole = (np.floor(numbers) == numbers) & (numbers <= MAX_TOKENS) if name in counts else np.isfinite(numbers)
        lines.require(whole & (numbers >= 0), f"{name} must be a {'whole ' * (name in counts)}number ≥ 0")
        frame[name] = numbers.astype(int) if name in counts else numbers
    frame["round_s"] -= frame["record_s"]  # a round is recorded once, and replayed from then on
    for name in OF_ROUNDS:
        frame[name] = pd.to_numeric(frame[name]).to_numpy(dtype=float)
    lines.require(frame["sequence"] < header["num_sequences"], "sequence must be below num_sequences")
