"""Text, gzip and JSON files of anybody: read within bounds, or refused in one line that names file, line and bound.

A bound is far above what a file in use needs, and low enough that reading ends soon: files may be built to never end.
"""

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from refimpl.core.errors import InputError, require, shown

STANDARD_INPUT = Path("-")
BROKEN = (OSError, EOFError, zlib.error, ValueError)  # the last one: other encodings, a name with a NUL, pandas

MAX_BYTES = 2**30  # of a file, unpacked
MAX_LINE = 2**26  # characters
MAX_DOCUMENT = 2**26  # bytes of a file that is read as one
TOO_DEEP = "lists and mappings are nested too deeply"


def is_file(path: str | Path) -> bool:
    """Whether there is a file of that name; a name that is too long for a file has none."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder of that name; a name that is too long for one has none."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Turn what is wrong with a file into one line of InputError that begins with its name."""
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path}: cannot be read: it is not UTF-8 text") from None
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read: {reason.splitlines()[0]}") from None


class _Bounded(io.RawIOBase):
    """The bytes of another file, refused beyond `MAX_BYTES`."""

    def __init__(self, source: BinaryIO, path: Path):
        self.source, self.path, self.left = source, path, MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self.source.read(len(buffer))
        self.left -= len(chunk)
        if self.left < 0:
            raise InputError(f"{self.path}: unpacks to more than {MAX_BYTES} bytes, the most that is read")
        buffer[: len(chunk)] = chunk
        return len(chunk)


@contextmanager
def open_bounded(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for reading, unpacked if its name ends in ``.gz``; ``-`` is standard input.

    Raises:
        InputError: also from within the block: it cannot be read or unpacked, or has more than `MAX_BYTES` bytes.
    """
    path = Path(path)
    with named(path):
        if path == STANDARD_INPUT:
            require(sys.stdin is not None, "standard input is closed")
            yield io.BufferedReader(_Bounded(sys.stdin.buffer, path))
            return
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            yield io.BufferedReader(_Bounded(source, path))  # type: ignore[arg-type]


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a text file one by one, as editors number them: other separators of Unicode stay within a line.

    A byte order mark in front is no part of the text. A name that ends in ``.gz`` is unpacked; ``-`` is standard input.

    Raises:
        InputError: it cannot be read, is not UTF-8, or exceeds `MAX_BYTES` or `MAX_LINE`.
    """
    with open_bounded(path) as source:
        text = io.TextIOWrapper(source, encoding="utf-8-sig", newline=None)
        for number in count(1):
            if not (line := text.readline(MAX_LINE)):
                return
            if len(line) == MAX_LINE:
                raise InputError(f"{path}:{number}: has more than {MAX_LINE} characters, the most that a line may have")
            yield line.rstrip("\n")


def read_text(path: str | Path, limit: int = MAX_DOCUMENT) -> str:
    """UTF-8 text of a whole file.

    Raises:
        InputError: it cannot be read, is not UTF-8, or has more than `limit` bytes.
    """
    with open_bounded(path) as source:
        raw = source.read(limit + 1)
        if len(raw) > limit:
            raise InputError(f"{path}: has more than {limit} bytes, the most that is read")
        return raw.decode("utf-8-sig")


def parse_json(text: str, where: str) -> Any:
    """Plain data in a JSON text.

    Raises:
        InputError: not JSON, a key given twice, or nested too deeply; one line that begins with `where`.
    """
    try:
        return json.loads(text, object_pairs_hook=_mapping)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: {TOO_DEEP}") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {str(error) or type(error).__name__}") from None


def parse_mapping(text: str, where: str) -> dict[str, Any]:
    """The mapping in a JSON text; raises InputError as `parse_json` does, or if it is none."""
    data = parse_json(text, where)
    if not isinstance(data, dict):
        raise InputError(f"{where}: must hold a mapping")
    return data


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The mapping in a JSON file; raises InputError, one line that begins with the file's name, if there is none."""
    return parse_mapping(read_text(path), str(path))


def read_mappings(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and mapping of every line of JSON lines that is not blank; raises InputError that names file and line."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield number, parse_mapping(line, f"{path}:{number}")


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InputError(f"the key {shown(name)} is given twice")
        found[name] = value
    return found
