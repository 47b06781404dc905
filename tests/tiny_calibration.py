"""A calibration of seconds: its plan, and prompts."""

from refimpl.calibrate.grid import Axes, MixedAxes, PackedAxes
from refimpl.calibrate.run import Plan
from refimpl.calibrate.studies import Studies, StudySettings

HELD_OUT = (
    StudySettings("eqspec", "eqspec", 2, 2, 6, 10, 20),
    StudySettings("exspec", "exspec", 2, 2, 8, 10, 20, window_size=6),
    StudySettings("masked-fifo", "masked+fifo", 2, 2, 6, 10, 20),
    StudySettings("rollback", "rollback", 3, 1, 6, 8, 20),
    StudySettings("inplace-grouped", "inplace+grouped", 2, 2, 6, 10, 20, window_size=5),
    StudySettings("paged-continuous", "paged+continuous", 2, 2, 6, 10, 20, token_budget=12),
    StudySettings("inplace-recorded", "inplace", 2, 2, 6, 10, 20, recorded=True),
)
AXES = Axes(
    (1, 2, 3), (0, 2), (2, 40), (2, 24), 2,
    MixedAxes((1, 2), (0, 12), (0, 24)), PackedAxes((2,), (1, 3), (2, 40)),
    recorded=True,
)  # fmt: skip
PLAN = Plan(
    (AXES,),
    Studies(
        StudySettings("acceptance", "inplace", 3, 2, 12, 10, 20),
        (StudySettings("probe-eqspec", "eqspec", 2, 2, 4, 8, 20),),
        HELD_OUT,
    ),
    passes=2,
    repeats=2,
)
PROMPTS = [[(7 * i + 3 * j) % 50 + 5 for j in range(3 + 5 * i % 29)] for i in range(80)]


def folder_of(data, kind):
    return data / kind / "cpu" / "toy"
