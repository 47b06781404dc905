"""Where the simulator's data lie."""

import os
from pathlib import Path

DATA = Path(os.environ.get("RAGGEDSPEC_DATA") or Path(__file__).parents[1] / "data")
CALIBRATION, VALIDATION = DATA / "calibration", DATA / "validation"
