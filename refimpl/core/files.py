"""Files and folders of results: written whole or not at all, and refused by name."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from refimpl.core.errors import InputError


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Turn what the system says against writing into one line of InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, UnicodeEncodeError) as error:
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def _leads_to(path: str | Path) -> Path:
    """The file at the end of links; a pipe without a name, such as /dev/stdout or /dev/fd/63, is only where it is."""
    path = Path(path)
    is_special = path.exists() and not path.is_file() and not path.is_dir()
    return path.absolute() if is_special else path.resolve()


def check_writable(path: str | Path, *others: str | Path | None) -> None:
    """Raise InputError, before any work is done, unless a file can be made at `path`.

    It must not take the place of one of `others`.
    """
    if str(path) == "-":
        raise InputError("cannot write -: standard output is /dev/stdout")
    with _named(path):
        file = _leads_to(path)
        is_replaced = not file.exists() or file.is_file()
    if file.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if not file.parent.is_dir():
        folder = Path(path).parent
        told = f"{folder} is not a folder" if file.parent.exists() else f"the folder {folder} does not exist"
        raise InputError(f"cannot write {path}: {told}")
    if (is_replaced and not os.access(file.parent, os.W_OK)) or (file.exists() and not os.access(file, os.W_OK)):
        raise InputError(f"cannot write {path}: permission denied")
    if is_replaced and any(other and file == Path(other).resolve() for other in others):
        raise InputError(f"cannot write {path}: another option reads or writes it")


def write_whole(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines of text as `whole_file` does."""
    with whole_file(path) as file:
        file.writelines(f"{line}\n" for line in lines)


@contextmanager
def whole_file(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Yield a temporary neighbour of a file, which takes its place at the end: readers never see half of it.

    Links are followed; a pipe or a device is written to as it is. `mode` is ``w`` for text or ``wb`` for bytes.

    Raises:
        InputError: it cannot be written, or the disk is full; nothing is left behind.
    """
    check_writable(path)
    with _named(path):
        path, encoding = _leads_to(path), None if "b" in mode else "utf-8"
        if path.exists() and not path.is_file():
            with path.open(mode, encoding=encoding) as device:
                yield device
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.")
        try:
            with os.fdopen(handle, mode, encoding=encoding) as file:
                yield file
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
    with _named(path):
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
        os.replace(new, folder)
