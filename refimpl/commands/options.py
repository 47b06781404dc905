"""Options that several commands share, and what every command does with them."""

import json
import sys
from collections.abc import Callable
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from refimpl.core.config import LAYOUTS, NAMED_METHODS, SCHEDULERS, CheckLevel
from refimpl.core.errors import InputError

Turns = Enum("Turns", {"first": "first", "all": "all"}, type=str)

MODELS, PROMPTS, SAMPLING, ENGINE, OUTPUT = "Models", "Prompts", "Sampling", "Engine", "Output"  # panels of the help
Choice = Callable[[], list[str]]
Rule = Literal["greedy", "rejection", "coupled"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]


def _methods() -> list[str]:
    """Names that complete: of methods, and every layout with every scheduler."""
    return [*NAMED_METHODS, *map("+".join, product(LAYOUTS, SCHEDULERS))]


def _option(panel: str, help_: str, *names: str, choices: Choice | None = None, **limits: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, autocompletion=choices, **limits)


PairOption = Annotated[
    str,
    _option(
        MODELS,
        "tiny, vicuna, qwen3, glm4; or --target and --draft.",
        "--pair",
        choices=lambda: ["tiny", "vicuna", "qwen3", "glm4"],
    ),
]
TargetOption = Annotated[str | None, _option(MODELS, "Path or hub id of a target of your own.")]
DraftOption = Annotated[str | None, _option(MODELS, "Path or hub id of its draft.")]
VocabOption = Annotated[
    int | None, _option(MODELS, "Ids that are tokens, where the models' vocabularies differ and there is no tokenizer.")
]
DeviceOption = Annotated[str, _option(MODELS, "cpu or cuda.", choices=lambda: ["cpu", "cuda"])]
DtypeOption = Annotated[Dtype | None, _option(MODELS, "Number format. Default: float32 on a CPU, else bfloat16.")]
RandomOption = Annotated[bool, _option(MODELS, "The preset's architecture, no download.", "--random-weights")]
CompileOption = Annotated[bool, _option(MODELS, "Fuse MLPs and norms with torch.compile.", "--compile")]

PromptsOption = Annotated[
    Path | None,
    _option(
        PROMPTS,
        "One prompt a line (.txt), or JSON lines with `prompt` or `turns`; - is stdin. Default: bundled.",
        "--prompts",
    ),
]
TurnsOption = Annotated[Turns, _option(PROMPTS, "Which turns of a multi-turn file to take.")]
LimitOption = Annotated[int | None, _option(PROMPTS, "Use the first so many prompts.", min=1)]
MaxPromptOption = Annotated[int | None, _option(PROMPTS, "Keep the last so many tokens of each prompt.")]

TemperatureOption = Annotated[float, _option(SAMPLING, "0 is greedy.")]
TopKOption = Annotated[int, _option(SAMPLING, "Keep the k most probable tokens; 0 keeps all.")]
TopPOption = Annotated[float, _option(SAMPLING, "Keep the most probable tokens of this mass.")]
MinPOption = Annotated[float, _option(SAMPLING, "Drop tokens below this share of the most probable one.")]
AcceptanceOption = Annotated[Rule | None, _option(SAMPLING, "Which drafts survive. Default: by temperature.")]
SeedOption = Annotated[int, _option(SAMPLING, "Key of the random numbers.")]
StopOption = Annotated[list[str] | None, _option(SAMPLING, "Text that ends a generation; may be repeated.")]

MethodOption = Annotated[str, _option(ENGINE, "A named method, or LAYOUT+SCHEDULER.", choices=_methods)]
MethodsOption = Annotated[str, _option(ENGINE, "Comma-separated names, or all.", choices=lambda: ["all", *_methods()])]
BatchOption = Annotated[int, _option(ENGINE, "Rows of a round.")]
BatchesOption = Annotated[str, _option(ENGINE, "Rows of a round, comma-separated.")]
DraftTokensOption = Annotated[int, _option(ENGINE, "Drafts per row and round.", "--num-speculative-tokens", "-k")]
MaxNewOption = Annotated[int, _option(ENGINE, "Budget of new tokens per prompt.")]
WindowOption = Annotated[int | None, _option(ENGINE, "Sequences that a grouped scheduler chooses from.")]
ChecksOption = Annotated[CheckLevel | None, _option(ENGINE, "Run-time checks. Default: device on a CPU, else host.")]
StableOption = Annotated[bool, _option(ENGINE, "Passes of one shape: same bits always.", "--shape-stable")]
BitwiseOption = Annotated[bool, _option(ENGINE, "Run shape-stable; compare to the last bit.", "--bitwise")]
GraphsOption = Annotated[bool, _option(ENGINE, "Record rounds of inplace and replay them.", "--cuda-graphs")]
RoomOption = Annotated[
    float | None, _option(ENGINE, "Bound on both models' K/V. Default: most of what is free.", "--kv-memory-gib")
]
JobsOption = Annotated[int, _option(ENGINE, "Processes, on a CPU only; each run has one thread then.", min=1)]

OutputOption = Annotated[Path | None, _option(OUTPUT, "JSON lines, in input order. Default: stdout.")]
TraceOption = Annotated[Path | None, _option(OUTPUT, "NDJSON, one line per row per round.")]
LinesOption = Annotated[
    bool | None,
    _option(OUTPUT, "JSON lines, or prompts with their text. Default: text on a terminal.", "--json/--text"),
]
ReportOption = Annotated[Path | None, _option(OUTPUT, "Write the rows and their provenance as JSON.", "--output")]
JsonOption = Annotated[bool, _option(OUTPUT, "Print a JSON object on stdout, the table on stderr.", "--json")]


def load(
    pair: str,
    target: str | None,
    draft: str | None,
    device: str,
    dtype: str | None,
    random_weights: bool,
    compile_modules: bool = False,
    vocab_size: int | None = None,
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
        vocab_size=vocab_size,
    )


def prompts_from(path: Path | None, turns: str, limit: int | None) -> list:
    """Prompts of a file, or the bundled ones."""
    from refimpl.pairs.loading import TINY
    from refimpl.prompts import read_prompts

    return read_prompts(path or TINY / "prompts.jsonl", turns, limit)  # type: ignore[arg-type]


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
    from refimpl.core.files import check_writable

    for place, path in enumerate(outputs):
        if path:
            check_writable(path, *outputs[:place], *inputs)


def write_report(
    output: Path | None, report: dict[str, Any], device: Any, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Add provenance and `meta` to a report, write it where one asked for it, and return it."""
    from refimpl.core.files import write_whole
    from refimpl.decoding.devices import provenance

    report = {**report, "meta": provenance(device) | (meta or {})}
    if output:
        write_whole(output, [json.dumps(report, indent=1)])
    return report


def console_for_tables(*, json_: bool = False) -> Console:
    """A console that does not fold tables when its output is piped; on stderr where stdout is for JSON alone."""
    stream = sys.stderr if json_ else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 160)
