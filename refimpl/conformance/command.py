"""`conformance`: test an engine from the command line. Loads nothing heavy before it runs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from refimpl.conformance.limits import Limits
from refimpl.core.interrupts import INTERRUPTED
from refimpl.core.option_groups import (
    ENGINE,
    OUTPUT,
    PROMPTS,
    SAMPLING,
    HtmlPath,
    JunitPath,
    as_folder,
    command,
    declared_options,
    option,
)

MOST_S = 1e8  # loading may take ten times as long, and locks wait 9.2e9 s at most

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Which engine is tested, against what."""

    engine: Annotated[str | None, option(ENGINE, "Engine in Python: module:make, or module:make:argument.")] = None
    command: Annotated[str | None, option(ENGINE, "Command that starts a program which speaks JSON lines.")] = None
    server: Annotated[
        str | None, option(ENGINE, "OpenAI-compatible server: http://host:port/v1 (its key from OPENAI_API_KEY).")
    ] = None
    model: Annotated[str | None, option(ENGINE, "Name of the model on the server.", none="its only one")] = None
    tokenizer: Annotated[
        Path | None,
        option(ENGINE, "Folder of the server's config.json and tokenizer.json.", none="the model's", parser=as_folder),
    ] = None
    reference: Annotated[
        str | None,
        option(
            ENGINE,
            "What decodes plainly: module:make, a server's http://…, or a model's folder.",
            none="the engine's own",
        ),
    ] = None
    reference_command: Annotated[
        str | None, option(ENGINE, "Command of a program that decodes plainly, in place of --reference.")
    ] = None
    timeout_s: Annotated[float, option(ENGINE, "Seconds an answer may take.", min=0.01, max=MOST_S)] = 60.0


@declared_options(Limits, panel=ENGINE)
class LimitOptions:
    """How far the cases go."""


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
    html: HtmlPath = None
    junit: JunitPath = None
    replay: Annotated[
        Path | None, option(PROMPTS, "Ask again for the failures of a report that --output has written.")
    ] = None


@command(app, "conformance --engine refimpl.conformance.adapters:method:exspec")
def conformance(*, tested: SubjectOptions, limits: LimitOptions, search: SearchOptions) -> None:
    """Test any engine's batch speculative decoding against autoregressive decoding.

    Exit codes: 0 it passes, 1 it does not, 2 bad input, 3 nothing failed but the time was up. Progress is on stderr.
    """
    from refimpl.conformance.runner import run_conformance

    try:
        report = run_conformance(tested, limits=Limits(**vars(limits)), **asdict(search))
    except KeyboardInterrupt as end:  # a signal with its exit code, which no engine takes for an error of its own
        raise typer.Exit(end.args[0] if end.args else INTERRUPTED) from None
    raise typer.Exit(report.exit_code)
