"""Tables of others, read whole or refused in one line that names the file."""

from pathlib import Path

import pandas as pd

from refimpl.core.reading import open_bounded, read_mappings


def read_table(path: Path) -> pd.DataFrame:
    """Columns of a CSV file, or of a file of JSON lines (``.jsonl``, ``.ndjson``), unpacked if it ends in ``.gz``.

    Raises:
        InputError: it has none, or exceeds the bounds of `refimpl.core.reading`.
    """
    if {".jsonl", ".ndjson"} & set(path.suffixes):
        return pd.DataFrame.from_records([record for _, record in read_mappings(path)])
    with open_bounded(path) as source:
        return pd.read_csv(source)
