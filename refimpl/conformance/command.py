"""``conformance``: test an engine from the command line. Loads nothing heavy before it runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from refimpl.errors import InputError
from refimpl.extras import missing_extra


def conformance(
    engine: Annotated[str | None, typer.Option(help="module:factory, or with an argument module:make:it")] = None,
    command: Annotated[str | None, typer.Option(help="command of a server that speaks JSON lines")] = None,
    max_examples: Annotated[int, typer.Option(min=1, help="cases per property")] = 20,
    seed: Annotated[int, typer.Option(help="of the search for cases; the same one gives the same cases")] = 0,
    timeout_s: Annotated[float, typer.Option(min=0.01, help="seconds that an answer may take")] = 60.0,
    long_prompt: Annotated[int, typer.Option(min=1, help="longest prompt of the long case, in tokens")] = 32,
    long_output: Annotated[int, typer.Option(min=1, help="new tokens of the long case")] = 48,
    law_samples: Annotated[
        int, typer.Option(min=100, help="continuations that the law of samples is judged by")
    ] = 4096,
    fail_fast: Annotated[bool, typer.Option(help="stop after the first property that fails")] = False,
    properties: Annotated[str | None, typer.Option(help="names, separated by commas; all by default")] = None,
    reference: Annotated[str | None, typer.Option(help="module:factory of an engine that decodes plainly")] = None,
    output: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
) -> None:
    """Test any engine's batch speculative decoding against autoregressive decoding."""
    try:
        passed = _run(
            engine,
            command,
            {"prompt_tokens": long_prompt, "new_tokens": long_output, "law_samples": law_samples},
            reference=reference,
            max_examples=max_examples,
            seed=seed,
            timeout_s=timeout_s,
            fail_fast=fail_fast,
            properties=properties,
            output=output,
        )
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if passed else 1)


def _run(engine: str | None, command: str | None, limits: dict[str, int], **options: Any) -> bool:
    try:
        from refimpl.conformance.engine_cases import Limits
        from refimpl.conformance.runner import run_conformance
    except ModuleNotFoundError as error:
        raise InputError(missing_extra(error) or str(error)) from error
    return run_conformance(engine, command, limits=Limits(**limits), **options)
