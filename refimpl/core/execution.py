"""How the passes of rounds run: in which order, in one shape, recorded, with prompts beside drafts."""

from typing import Any, Literal

from refimpl.core.errors import InputError, require

ExecutionName = Literal["serial", "overlapped"]
OVERLAPPABLE = (("inplace", "fifo"), ("paged", "fifo"), (None, None))  # ordinary decoding has nothing to overlap
UNMOVED_LAYOUTS = ("inplace", "paged")  # each token has a place of its own, and passes read it there, without copies
RECORDABLE = (("inplace", "static"), ("inplace", "fifo"))  # rows stay in their places from round to round


def check_execution(settings: Any) -> None:
    """Raise InputError for layouts and schedulers whose rounds cannot overlap."""
    layout, scheduler = settings.layout, settings.scheduler
    require(
        settings.execution == "serial" or (layout, scheduler) in OVERLAPPABLE,
        f"execution {settings.execution!r} needs rows that stay where they are and run in turns: {layout}+{scheduler} "
        "does not have them; choose inplace or paged, with scheduler fifo",
    )


def check_shapes(config: Any) -> None:
    """Raise InputError for a `DecodeConfig` whose passes cannot have one shape, as it asks."""
    require(
        not config.shape_stable or config.layout in (*UNMOVED_LAYOUTS, None),
        f"shape-stable execution needs every token at a column of its own: {config.method} moves them; "
        "choose inplace, paged, either with +SCHEDULER, or autoregressive",
    )


def check_recording(settings: Any) -> None:
    """Raise InputError where rounds are to be recorded that cannot be."""
    if not settings.cuda_graphs:
        return
    layout, scheduler = settings.layout, settings.scheduler
    name = getattr(settings, "method", f"{layout}+{scheduler}")  # as it was given
    require(
        layout is None or (layout, scheduler) in RECORDABLE,
        f"cuda_graphs need rows that stay where they are: {name} gathers them; choose inplace",
    )
    require(
        settings.drafting.recordable,
        f"cuda_graphs record passes, but drafter {settings.drafter!r} with draft_budget {settings.draft_budget!r} "
        "decides on the host: choose 'model', and 'fixed', 'by_load' or 'goodput'",
    )
    serial = settings.execution == "serial"
    require(serial, f"cuda_graphs record whole rounds: choose execution 'serial', not {settings.execution!r}")


def check_joint_prefill(settings: Any) -> None:
    """Raise InputError where a prompt and its row's drafts cannot share a pass."""
    if settings.joint_prefill and (obstacle := joint_prefill_obstacle(settings)):
        raise InputError(f"joint_prefill {obstacle}")


def joint_prefill_obstacle(settings: Any) -> str:
    """What keeps a prompt and its row's drafts from sharing a pass, and what to choose instead; empty where nothing."""
    if settings.layout not in (*UNMOVED_LAYOUTS, None):
        return (
            f"needs rows that are read where their prompts are written: {settings.layout} gathers them first; choose "
            "inplace or paged"
        )
    if settings.execution != "serial":
        return f"drafts for rows as they join: choose execution 'serial', not {settings.execution!r}"
    one_shape = next((name for name in ("shape_stable", "cuda_graphs") if getattr(settings, name, False)), "")
    return f"packs prompts into passes, which {one_shape} does not let: choose one" if one_shape else ""
