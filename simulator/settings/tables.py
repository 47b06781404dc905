"""Tables: those of others read whole or refused in one line, the simulator's own written with what made them."""

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from refimpl.core import provenance
from refimpl.core.errors import InputError, require
from refimpl.core.files import whole_file
from refimpl.core.reading import is_file, open_bounded, read_mappings
from refimpl.core.shown import Shown
from refimpl.core.values import as_path
from simulator.settings.json_files import LIBRARIES


def read_table(path: Path) -> pd.DataFrame:
    """Columns of a CSV file, or of a file of JSON lines (``.jsonl``, ``.ndjson``), unpacked if it ends in ``.gz``.

    Raises:
        InputError: it has none, lines are longer than the header, or it exceeds the bounds of `refimpl.core.reading`.
    """
    if {".jsonl", ".ndjson"} & set(path.suffixes):
        return pd.DataFrame.from_records([record for _, record in read_mappings(path)])
    with open_bounded(path) as source, warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(source, index_col=False)  # else values beyond the header make others the index
        except pd.errors.ParserWarning:
            raise InputError(f"{path}: lines have more values than the first line has names") from None


def write_parquet(frame: pd.DataFrame, path: str | Path, meta: dict[str, Any] | None = None) -> None:
    """Write a Parquet file, whole or not at all.

    Args:
        frame: the table; its index is left out.
        path: the file.
        meta: what made the table; commit, time and library versions are added to it in the file's metadata.

    Raises:
        InputError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = as_path(path)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    stamp = json.dumps(provenance.stamp(*LIBRARIES) | (meta or {})).encode()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"raggedspec": stamp})
    with whole_file(path, "wb") as file:
        pq.write_table(table, file)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """What made the table in a Parquet file: scenario, seed, inputs, commit, library versions.

    Raises:
        InputError: no such file, or none that raggedspec wrote.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = as_path(path)
    require(is_file(path), f"{path}: no such file")
    try:
        return json.loads((pq.read_schema(path).metadata or {})[b"raggedspec"])
    except (OSError, pa.ArrowInvalid, KeyError):
        raise InputError(f"{path}: is no Parquet file that raggedspec wrote") from None


class Table(Shown):
    """A result with a table that can be written."""

    __slots__ = ()

    def to_parquet(self, path: str | Path) -> None:
        """Write the table of `to_frame` as Parquet, whole or not at all; commit and libraries are in its metadata."""
        write_parquet(self.to_frame().reset_index(), path)
