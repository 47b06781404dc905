"""Files written whole or not at all."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from refimpl.errors import InputError


def check_writable(path: Path) -> None:
    """Raise InputError, before any work is done, unless a file can be made at `path`."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise InputError(f"cannot write {path}: permission denied")


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a temporary neighbour and move it into place, so that readers never see half a file."""
    check_writable(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
