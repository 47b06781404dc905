"""Where the simulator's data and examples are."""

import os
from pathlib import Path

from refimpl.core.reading import is_file

DATA = Path(os.environ.get("RAGGEDSPEC_DATA") or Path(__file__).parents[1] / "data")
CALIBRATION, VALIDATION, PUBLISHED = (DATA / name for name in ("calibration", "validation", "published"))
EXAMPLE = Path("example")  # in place of a file: the shipped one
EXAMPLES = Path(__file__).parents[1] / "examples"


def or_example(path: str | Path, name: str) -> Path:
    """The path itself; where no such file exists, ``example`` is the shipped file `name`, ``example/NAME`` another."""
    path = Path(path)
    if path.exists() or EXAMPLE not in (path, path.parent):
        return path
    return EXAMPLES / (name if path == EXAMPLE else f"{path.name}.yaml")


def find_data(path: str | Path) -> Path | None:
    """The file of that name in the working directory, else in the shipped data; None if there is none."""
    return next((file for file in (Path(path), DATA / path) if is_file(file)), None)
