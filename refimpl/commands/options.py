"""Options that several commands share, and what every command does with them."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from refimpl.errors import InputError

SECONDS_A_LINE = 30  # of progress, where stderr is no terminal
Turns = Enum("Turns", {"first": "first", "all": "all"}, type=str)

PairOption = Annotated[str, typer.Option("--pair", help="tiny, vicuna, qwen3, glm4; or --target and --draft.")]
TargetOption = Annotated[str | None, typer.Option(help="Path or hub id of a target of your own.")]
DraftOption = Annotated[str | None, typer.Option(help="Path or hub id of its draft.")]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help="One prompt a line (.txt), or JSON lines with `prompt` or `turns`; - is stdin. Default: bundled.",
    ),
]
TurnsOption = Annotated[Turns, typer.Option(help="Which turns of a multi-turn file to take.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use the first so many prompts.")]
MaxPromptOption = Annotated[int | None, typer.Option(help="Keep the last so many tokens of each prompt.")]
MaxNewOption = Annotated[int, typer.Option(help="Budget of new tokens per prompt.")]
DraftTokensOption = Annotated[int, typer.Option("--num-speculative-tokens", "-k", help="Drafts per row and round.")]
WindowOption = Annotated[int | None, typer.Option(help="Sequences that a grouped scheduler chooses from.")]
ChecksOption = Annotated[str | None, typer.Option(help="Run-time checks: off, host, device, oracle.")]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy.")]
TopKOption = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopPOption = Annotated[float, typer.Option(help="Keep the most probable tokens of this mass.")]
MinPOption = Annotated[float, typer.Option(help="Drop tokens below this share of the most probable one.")]
AcceptanceOption = Annotated[str | None, typer.Option(help="greedy, rejection or coupled. Default: by temperature.")]
SeedOption = Annotated[int, typer.Option(help="Key of the random numbers.")]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
DtypeOption = Annotated[str | None, typer.Option(help="float64, float32, bfloat16, float16.")]
RandomOption = Annotated[bool, typer.Option("--random-weights", help="The preset's architecture, no download.")]
GraphsOption = Annotated[bool, typer.Option("--cuda-graphs", help="Record rounds of inplace and replay them.")]
RoomOption = Annotated[
    float | None,
    typer.Option("--kv-memory-gib", help="Bound on both models' K/V. Default: most of what is free."),
]
CompileOption = Annotated[bool, typer.Option("--compile", help="Fuse MLPs and norms with torch.compile.")]
ReportOption = Annotated[Path | None, typer.Option("--output", help="Write the rows and their provenance as JSON.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object on stdout, the table on stderr.")]


def load(
    pair: str,
    target: str | None,
    draft: str | None,
    device: str,
    dtype: str | None,
    random_weights: bool,
    compile_modules: bool = False,
) -> Any:
    """Load the pair that the options describe."""
    from refimpl.pairs import load_pair

    if (target is None) != (draft is None):
        raise InputError("--target and --draft go together")
    return load_pair(
        target or pair,
        draft,
        device=device,
        dtype=dtype,
        random_weights=random_weights,
        compile_modules=compile_modules,
    )


def prompts_from(path: Path | None, turns: str, limit: int | None) -> list:
    """Prompts of a file, or the bundled ones."""
    from refimpl.pairs.loading import TINY
    from refimpl.prompts import read_prompts

    return read_prompts(path or TINY / "prompts.jsonl", turns, limit)  # type: ignore[arg-type]


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (label, done, total): bars on a terminal, elsewhere a line now and then."""
    if not sys.stderr.isatty():
        yield _line_now_and_then()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, Any] = {}

        def update(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done)

        yield update


def _line_now_and_then() -> Callable[[str, int, int], None]:
    last = time.monotonic()

    def update(label: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_A_LINE:
            last = time.monotonic()
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

    return update


def parse_sizes(text: str, option: str = "--batch-sizes") -> list[int]:
    """Read the comma-separated positive integers of an option.

    Raises:
        InputError: something else stands there.
    """
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} must be comma-separated integers, not {text!r}") from error
    if not sizes or min(sizes) < 1:
        raise InputError(f"{option} must be at least 1, not {text!r}")
    return sizes


def check_outputs(outputs: list[Path | None], inputs: list[Path | None]) -> None:
    """Refuse impossible files before any work is done, also where two are the same."""
    from refimpl.files import check_writable

    for place, path in enumerate(outputs):
        if path:
            check_writable(path, *outputs[:place], *inputs)


def write_report(
    output: Path | None, report: dict[str, Any], device: Any, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Add provenance and `meta` to a report, write it where one asked for it, and return it."""
    from refimpl.files import write_whole
    from refimpl.provenance import provenance

    report = {**report, "meta": provenance(device) | (meta or {})}
    if output:
        write_whole(output, [json.dumps(report, indent=1)])
    return report


def console_for_tables(*, json_: bool = False) -> Console:
    """A console that does not fold tables when its output is piped; on stderr where stdout is for JSON alone."""
    stream = sys.stderr if json_ else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 160)
