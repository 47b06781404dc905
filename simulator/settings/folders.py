"""Where the simulator's data and examples are."""

import os
from pathlib import Path

from refimpl.core.errors import did_you_mean, require
from refimpl.core.reading import STANDARD_INPUT, is_file

DATA = Path(os.environ.get("RAGGEDSPEC_DATA") or Path(__file__).parents[1] / "data")
CALIBRATION, VALIDATION, PUBLISHED = (DATA / name for name in ("calibration", "validation", "published"))
EXAMPLE = Path("example")  # in place of a file: the shipped one
EXAMPLES = Path(__file__).parents[1] / "examples"  # scenario.yaml and sweep.yaml


def or_example(path: str | Path, name: str) -> Path:
    """The path itself; the shipped file `name` where the path is the word ``example`` and no such file exists.

    Raises:
        InputError: there is no such file, but one whose name is nearly the same, or the word was meant.
    """
    path = Path(path)
    if path == EXAMPLE and not path.exists():
        return EXAMPLES / name
    near = "" if _is_there(path) else did_you_mean(path.name, _neighbours(path))
    require(not near, f"{path}: cannot be read: No such file or directory{near}")
    return path


def _is_there(path: Path) -> bool:
    """Whether there is anything of that name; who reads it says what is wrong with a name that cannot be one."""
    try:
        return path == STANDARD_INPUT or "\0" in str(path) or path.exists()
    except OSError:  # too long
        return True


def _neighbours(path: Path) -> list[str]:
    """Names of the YAML files in the folder of a path, and the word ``example`` where the path names no folder."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml")]
    except OSError:
        names = []
    return names + ([str(EXAMPLE)] if path.name == str(path) else [])


def find_data(path: str | Path) -> Path | None:
    """The file of that name in the working directory, else in the shipped data; None if there is none."""
    return next((file for file in (Path(path), DATA / path) if is_file(file)), None)
