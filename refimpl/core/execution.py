"""How the passes of rounds run: in which order, in one shape, recorded, with prompts beside drafts."""

from typing import Any, Literal, get_args

from refimpl.core.errors import InputError, require, shown

ExecutionName = Literal["serial", "overlapped"]
EXECUTIONS: tuple[str, ...] = get_args(ExecutionName)
OVERLAPPABLE = (("inplace", "fifo"), ("paged", "fifo"), (None, None))  # ordinary decoding has nothing to overlap
UNMOVED_LAYOUTS = ("inplace", "paged")  # each token has a place of its own, and passes read it there, without copies
RECORDABLE = (("inplace", "static"), ("inplace", "fifo"))  # rows stay in their places from round to round


def check_execution(execution: str, layout: str | None, scheduler: str | None) -> None:
    """Raise InputError for an unknown execution, and for layouts and schedulers that it cannot have."""
    require(execution in EXECUTIONS, f"execution must be one of {', '.join(EXECUTIONS)}, not {shown(execution)}")
    require(
        execution == "serial" or (layout, scheduler) in OVERLAPPABLE,
        f"execution {execution!r} needs rows that stay where they are and run in turns: {layout}+{scheduler} does not "
        "have them; choose inplace or paged, with scheduler fifo",
    )


def check_shapes(config: Any, layout: str | None, scheduler: str | None) -> None:
    """Raise InputError for a `DecodeConfig` whose passes cannot have one shape, or cannot be recorded, as it asks."""
    require(
        not config.shape_stable or layout in (*UNMOVED_LAYOUTS, None),
        f"shape-stable execution needs every token at a column of its own: {config.method} moves them; "
        "choose inplace, paged, either with +SCHEDULER, or autoregressive",
    )
    check_recording(config, layout, scheduler, config.drafting)


def check_recording(config: Any, layout: str | None, scheduler: str | None, drafting: Any) -> None:
    """Raise InputError where rounds are to be recorded that cannot be; of an engine, or of a scenario."""
    if not config.cuda_graphs:
        return
    name = getattr(config, "method", f"{layout}+{scheduler}")  # as it was given
    require(
        layout is None or (layout, scheduler) in RECORDABLE,
        f"cuda_graphs need rows that stay where they are: {name} gathers them; choose inplace",
    )
    require(
        drafting.recordable,
        f"cuda_graphs record passes, but drafter {drafting.drafter!r} with draft_budget {drafting.draft_budget!r} "
        "decides on the host: choose 'model' and 'fixed'",
    )
    serial = config.execution == "serial"
    require(serial, f"cuda_graphs record whole rounds: choose execution 'serial', not {config.execution!r}")


def check_joint_prefill(config: Any, layout: str | None) -> None:
    """Raise InputError where a prompt and its row's drafts cannot share a pass; of an engine, or of a scenario."""
    if config.joint_prefill and (obstacle := joint_prefill_obstacle(config, layout)):
        raise InputError(f"joint_prefill {obstacle}")


def joint_prefill_obstacle(config: Any, layout: str | None) -> str:
    """What keeps a prompt and its row's drafts from sharing a pass, and what to choose instead; empty where nothing."""
    if layout not in (*UNMOVED_LAYOUTS, None):
        return (
            f"needs rows that are read where their prompts are written: {layout} gathers them first; choose inplace or "
            "paged"
        )
    if config.execution != "serial":
        return f"drafts for rows as they join: choose execution 'serial', not {config.execution!r}"
    one_shape = next((name for name in ("shape_stable", "cuda_graphs") if getattr(config, name, False)), "")
    return f"packs prompts into passes, which {one_shape} does not let: choose one" if one_shape else ""
