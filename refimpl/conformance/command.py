"""`conformance`: test an engine from the command line. Loads nothing heavy before it runs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from refimpl.core.console import BAD_INPUT, INTERRUPTED
from refimpl.core.errors import InputError
from refimpl.core.extras import missing_extra
from refimpl.core.interrupts import tell
from refimpl.core.option_groups import ENGINE, OUTPUT, PROMPTS, SAMPLING, command, option

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Which engine is tested, against what."""

    engine: Annotated[str | None, option(ENGINE, "Engine in Python: module:make, or module:make:argument.")] = None
    command: Annotated[str | None, option(ENGINE, "Command that starts a server which speaks JSON lines.")] = None
    reference: Annotated[
        str | None,
        option(ENGINE, "module:make of an engine that decodes plainly.", none="the engine's own"),
    ] = None
    reference_command: Annotated[
        str | None, option(ENGINE, "Command of a server that decodes plainly, in place of --reference.")
    ] = None
    timeout_s: Annotated[float, option(ENGINE, "Seconds an answer may take.", min=0.01)] = 60.0


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How far the cases go: fields of `refimpl.conformance.cases.Limits`."""

    max_batch: Annotated[
        int | None, option(ENGINE, "Largest batch. 1 tests an engine that takes one row at a time.", min=1)
    ] = None
    max_k: Annotated[int | None, option(ENGINE, "Most tokens drafted per row and round.", min=1)] = None
    k: Annotated[
        int | None,
        option(ENGINE, "An engine built for one number of drafts: ask for it alone, and for 0.", "--k", min=1),
    ] = None
    prompt_tokens: Annotated[
        int, option(PROMPTS, "Longest prompt of the long case, in tokens.", "--prompt-length", "--long-prompt", min=1)
    ] = 130
    new_tokens: Annotated[int, option(PROMPTS, "New tokens of the long case.", "--long-output", min=1)] = 66
    law_samples: Annotated[
        int, option(SAMPLING, "Continuations that judge the law of samples; 16384 show subtle errors.", min=100)
    ] = 4096


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Which properties are tested, and how cases are searched."""

    properties: Annotated[str | None, option(PROMPTS, "Names of properties, separated by commas.", none="all")] = None
    max_examples: Annotated[int, option(PROMPTS, "Cases per property.", min=1)] = 20
    seed: Annotated[int, option(SAMPLING, "Seed of the search: the same seed gives the same cases.")] = 0
    shrink: Annotated[bool, option(OUTPUT, "Look for the smallest case that fails.")] = True
    fail_fast: Annotated[bool, option(OUTPUT, "Stop after the first property that fails.")] = False
    total_time_s: Annotated[
        float | None, option(OUTPUT, "End the run, unfinished, after this many seconds.", "--total-time", min=0)
    ] = None
    output: Annotated[Path | None, option(OUTPUT, "Write the report to this JSON file.")] = None


@command(app, "conformance --engine refimpl.conformance.adapters:method:exspec")
def conformance(*, tested: SubjectOptions, limits: LimitOptions, search: SearchOptions) -> None:
    """Test any engine's batch speculative decoding against autoregressive decoding.

    Exit codes: 0 it passes, 1 it does not, 2 bad input, 3 nothing failed but the time was up. Progress is on stderr.
    """
    try:
        report = _run(limits, **asdict(tested), **asdict(search))
    except InputError as error:
        tell(f"error: {error}")
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt as end:
        raise typer.Exit(end.args[0] if end.args else INTERRUPTED) from None
    raise typer.Exit(report.exit_code)


def _run(limits: LimitOptions, **options: Any) -> Any:
    try:
        from refimpl.conformance.cases import Limits
        from refimpl.conformance.runner import run_conformance
    except ModuleNotFoundError as error:
        raise InputError(missing_extra(error) or str(error)) from error
    return run_conformance(limits=Limits(**asdict(limits)), **options)
