"""Text files and folders of results: read by lines, written whole or not at all."""

import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from refimpl.errors import InputError

STANDARD_INPUT = Path("-")


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, as editors number them: the other separators of Unicode stay within a line.

    A byte order mark in front is no part of the text. A path ``-`` is standard input.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    try:
        content = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
        return [line.rstrip("\n") for line in io.StringIO(content.decode("utf-8-sig"), newline=None)]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read {path}: {reason}") from error


def check_writable(path: str | Path, *others: str | Path | None) -> None:
    """Raise InputError, before any work is done, unless a file can be made at `path`, and is none of `others`."""
    file = Path(path).resolve()
    is_replaced = not file.exists() or file.is_file()
    if file.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if not file.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {Path(path).parent} does not exist")
    if (is_replaced and not os.access(file.parent, os.W_OK)) or (file.exists() and not os.access(file, os.W_OK)):
        raise InputError(f"cannot write {path}: permission denied")
    if is_replaced and any(other and file == Path(other).resolve() for other in others):
        raise InputError(f"cannot write {path}: another option reads or writes it")


def write_whole(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines to a temporary neighbour and move it into place, so that readers never see half a file.

    Links are followed; a pipe or a device is written to as it is.
    """
    check_writable(path)
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file, if it exists, else those that a new one gets."""
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def check_folder(path: Path) -> None:
    """Raise InputError, before any work is done, unless files can be made in a folder `path`."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise InputError(f"cannot write to {path}: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"cannot write to {path}: permission denied")


@contextmanager
def in_place_of(folder: Path) -> Iterator[Path]:
    """Yield a new folder that takes the place of `folder` once it is filled; after an error nothing has changed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        new.mkdir()
        yield new
        if folder.exists():
            os.replace(folder, old)
        try:
            os.replace(new, folder)
        except OSError:
            if old.exists():
                os.replace(old, folder)
            raise
