"""In which order the passes of rounds run."""

from typing import Literal, get_args

from refimpl.core.errors import require, shown

ExecutionName = Literal["serial", "overlapped"]
EXECUTIONS: tuple[str, ...] = get_args(ExecutionName)
OVERLAPPABLE = (("inplace", "fifo"), ("paged", "fifo"), (None, None))  # ordinary decoding has nothing to overlap


def check_execution(execution: str, layout: str | None, scheduler: str | None) -> None:
    """Raise InputError for an unknown execution, and for layouts and schedulers that it cannot have."""
    require(execution in EXECUTIONS, f"execution must be one of {', '.join(EXECUTIONS)}, not {shown(execution)}")
    require(
        execution == "serial" or (layout, scheduler) in OVERLAPPABLE,
        f"execution {execution!r} needs rows that stay where they are and run in turns: {layout}+{scheduler} does not "
        "have them; choose inplace or paged, with scheduler fifo",
    )
