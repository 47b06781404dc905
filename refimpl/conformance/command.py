"""``conformance``: test an engine from the command line. Loads nothing heavy before it runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from refimpl.core.errors import InputError
from refimpl.core.extras import missing_extra


def conformance(
    engine: Annotated[str | None, typer.Option(help="module:factory, or with an argument module:make:it")] = None,
    command: Annotated[str | None, typer.Option(help="command of a server that speaks JSON lines")] = None,
    max_examples: Annotated[int, typer.Option(min=1, help="cases per property")] = 20,
    seed: Annotated[int, typer.Option(help="of the search for cases; the same one gives the same cases")] = 0,
    timeout_s: Annotated[float, typer.Option(min=0.01, help="seconds that an answer may take")] = 60.0,
    total_time_s: Annotated[
        float | None, typer.Option("--total-time", min=0, help="seconds after which the run ends, not finished")
    ] = None,
    prompt_length: Annotated[
        int, typer.Option("--prompt-length", "--long-prompt", min=1, help="longest prompt of the long case, in tokens")
    ] = 32,
    long_output: Annotated[int, typer.Option(min=1, help="new tokens of the long case")] = 48,
    law_samples: Annotated[
        int, typer.Option(min=100, help="continuations that judge their law; 16384 show subtle errors")
    ] = 4096,
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="largest batch; the long case has it. 1: one row at a time")
    ] = None,
    max_k: Annotated[int | None, typer.Option(min=1, help="most drafts a round; the long case has them")] = None,
    shrink: Annotated[bool, typer.Option(help="look for the smallest failing case")] = True,
    fail_fast: Annotated[bool, typer.Option(help="stop after the first property that fails")] = False,
    properties: Annotated[str | None, typer.Option(help="names, separated by commas; all by default")] = None,
    reference: Annotated[str | None, typer.Option(help="module:factory of an engine that decodes plainly")] = None,
    output: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
) -> None:
    """Test any engine's batch speculative decoding against autoregressive decoding.

    Exit codes: 0 it passes, 1 it does not, 2 bad input, 3 nothing failed but the time was up. Progress is on stderr.
    """
    limits = {
        "prompt_tokens": prompt_length,
        "new_tokens": long_output,
        "law_samples": law_samples,
        "max_batch": max_batch,
        "max_k": max_k,
    }
    try:
        report = _run(
            engine,
            command,
            limits,
            reference=reference,
            max_examples=max_examples,
            seed=seed,
            timeout_s=timeout_s,
            total_time_s=total_time_s,
            fail_fast=fail_fast,
            shrink=shrink,
            properties=properties,
            output=output,
        )
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as end:
        raise typer.Exit(143 if end.args else 130) from None
    raise typer.Exit(report.exit_code)


def _run(engine: str | None, command: str | None, limits: dict[str, Any], **options: Any) -> Any:
    try:
        from refimpl.conformance.cases import Limits
        from refimpl.conformance.runner import run_conformance
    except ModuleNotFoundError as error:
        raise InputError(missing_extra(error) or str(error)) from error
    return run_conformance(engine, command, limits=Limits(**limits), **options)
