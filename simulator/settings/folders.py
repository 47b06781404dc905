"""Where the simulator's data and examples are."""

import os
from pathlib import Path

from refimpl.core.reading import is_file

DATA = Path(os.environ.get("RAGGEDSPEC_DATA") or Path(__file__).parents[1] / "data")
CALIBRATION, VALIDATION, PUBLISHED = (DATA / name for name in ("calibration", "validation", "published"))
EXAMPLE = Path("example")  # in place of a file: the shipped one
EXAMPLES = Path(__file__).parents[1] / "examples"  # scenario.yaml and sweep.yaml


def or_example(path: str | Path, name: str) -> Path:
    """The path itself; the shipped file `name` where the path is the word ``example`` and no such file exists."""
    path = Path(path)
    return EXAMPLES / name if path == EXAMPLE and not path.exists() else path


def find_data(path: str | Path) -> Path | None:
    """The file of that name in the working directory, else in the shipped data; None if there is none."""
    return next((file for file in (Path(path), DATA / path) if is_file(file)), None)
