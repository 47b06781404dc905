"""Where in an engine's code an error was raised."""

import os
import sys
import sysconfig
import traceback
from pathlib import Path

_HERE = Path(__file__).parent
_OF_THE_KIT = {str(_HERE / name) for name in ("subject.py", "python_engine.py", "protocol.py")}
_OF_PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


def place_of(error: BaseException) -> str:
    """File, line and function of the innermost call in code that is not installed, else in any but Python's own.

    Calls of the kit itself do not count. Where all are such, as for a module that does not exist, there is no place.
    """
    calls = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    calls = [(code, line) for code, line in calls if _is_told(code.co_filename)]
    own = [(code, line) for code, line in calls if not _is_installed(code.co_filename)] or calls
    if not own:
        return ""
    code, line = own[-1]
    return f"{_as_imported(code.co_filename)}:{line}, in {code.co_name}"


def _is_told(file: str) -> bool:
    of_python = file.startswith(_OF_PYTHON) and not _is_installed(file)
    return not (file in _OF_THE_KIT or file.startswith("<") or of_python)


def _is_installed(file: str) -> bool:
    return any(folder in Path(file).parts for folder in _INSTALLED)


def _as_imported(file: str) -> str:
    """The path below the folder that the module was found in, which is the shortest one; its name if there is none."""
    path = Path(file).absolute()
    folders = (Path(entry).absolute() for entry in ("", *sys.path))
    below = [str(path.relative_to(folder)) for folder in folders if path.is_relative_to(folder)]
    return min(below, key=len, default=path.name)
