"""Files of others, read whole or refused in one line that names the file."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from simulator.errors import InputError, require

BROKEN = (OSError, EOFError, zlib.error, ValueError)  # the last one is that of pandas, of json and of other encodings


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(f"{path}: cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}") from None


def read_text(path: Path) -> str:
    """UTF-8 text of a file, unpacked if its name ends in ``.gz``; InputError if it has none."""
    with _named(path):
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; InputError if there is none."""
    text = read_text(path)
    with _named(path):
        data = json.loads(text)
        require(isinstance(data, dict), f"{path}: must hold a mapping")
        return data


def read_table(path: Path) -> pd.DataFrame:
    """Columns of a CSV file, or of a file of JSON lines (``.jsonl``, ``.ndjson``); InputError if it has none."""
    with _named(path):
        if {".jsonl", ".ndjson"} & set(path.suffixes):
            return pd.read_json(path, lines=True, dtype=False)
        return pd.read_csv(path)
